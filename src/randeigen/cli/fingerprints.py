"""Fingerprints of files, so that a verdict names exactly what it judged."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from io import FileIO
from typing import NamedTuple

from randeigen.rows.formats import UnreadableFile
from randeigen.rows.formats.io import open_regular, read_into, stamp_of
from randeigen.types import Progress

READ_BYTES = 2**20
MAX_UNACCEPTED_BYTES = 2**16  # a file that was not accepted is fingerprinted up to this size, or the others'


class Digest(NamedTuple):
    """A file's bytes, by their SHA-256; or why there is none."""

    sha256: str | None
    size: int | None
    unread: str | None


class Fingerprints:
    """The digests of n files: of those that are judged as they are opened for it, of the others if small."""

    def __init__(self, paths: Sequence[str], progress: Progress | None = None) -> None:
        self._paths = paths
        self._progress = progress
        self._digests: dict[int, Digest] = {}

    def visit(self, row: int, file: FileIO, size: int) -> None:
        """Fingerprint a file whose header was accepted."""
        self._digests[row] = Digest(hashed(file, size), size, None)
        if self._progress:
            self._progress("fingerprinting", row + 1, len(self._paths))

    def all(self, sizes: Mapping[int, int] | None = None) -> list[Digest]:
        """A digest for each file. One that was not accepted is read if it is no larger than those that were.

        A sender may name a file of terabytes. `sizes` of rows are read whatever the others have.
        """
        largest = max((each.size or 0 for each in self._digests.values()), default=0)
        most = max(MAX_UNACCEPTED_BYTES, largest)
        for row, path in enumerate(self._paths):
            if row not in self._digests:
                self._digests[row] = digest(path, max(most, (sizes or {}).get(row, 0)))
        if self._progress:
            self._progress("fingerprinting", len(self._paths), len(self._paths))
        return [self._digests[row] for row in range(len(self._paths))]


def digest(path: str, most: int | None = None) -> Digest:
    """The digest of one file as it is now, unless it has more bytes than `most`."""
    try:
        with open_regular(path) as file:
            size = stamp_of(file).size
            if most is not None and size > most:
                return Digest(None, size, f"has {size:,} bytes, more than the files that were judged")
            return Digest(hashed(file, size), size, None)
    except UnreadableFile as reason:
        return Digest(None, None, str(reason))
    except OSError as error:
        return Digest(None, None, f"cannot be read: {error.strerror}")


def hashed(file: FileIO, size: int) -> str:
    """The SHA-256 of a file's first `size` bytes, no matter whether it grows or never ends."""
    sha, buffer, done = hashlib.sha256(), memoryview(bytearray(min(size, READ_BYTES))), 0
    while done < size:
        part = buffer[: min(READ_BYTES, size - done)]
        read_into(file, done, part)
        sha.update(part)
        done += len(part)
    return sha.hexdigest()
