"""Fingerprints of files, so that a verdict names exactly what it judged."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from randeigen.errors import BadRows
from randeigen.rows.disk import Refused, open_regular
from randeigen.types import Progress

CHUNK = 2**20


class Digest(NamedTuple):
    """A file's bytes, by their SHA-256; or why they cannot be read."""

    sha256: str | None
    size: int | None
    unread: str | None
    changed_ns: int = 0


def digest_all(paths: Sequence[str], progress: Progress | None = None) -> list[Digest]:
    """A digest for each file. A file that cannot be read has a reason instead."""
    total = sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
    found, done = [], 0
    for path in paths:
        found.append(digest(path))
        done += found[-1].size or 0
        if progress:
            progress("fingerprinting", done, total)
    return found


def digest(path: str) -> Digest:
    """The digest of one file, read to its end as it is now."""
    try:
        with open_regular(path) as file:
            state, sha, size = os.fstat(file.fileno()), hashlib.sha256(), 0
            while chunk := file.read(CHUNK):
                sha.update(chunk)
                size += len(chunk)
            return Digest(sha.hexdigest(), size, None, state.st_mtime_ns)
    except Refused as reason:
        return Digest(None, None, str(reason))
    except OSError as error:
        return Digest(None, None, f"cannot be read: {error.strerror}")


def refuse_changes(paths: Sequence[str], digests: Sequence[Digest]) -> None:
    """A file rewritten after its digest was taken would be judged under another's name."""
    for path, before in zip(paths, digests, strict=False):
        if before.sha256 is None:
            continue
        try:
            now = os.stat(path)
        except OSError:
            raise BadRows(f"{path} vanished while it was judged; aggregate the files again.") from None
        if (now.st_size, now.st_mtime_ns) != (before.size, before.changed_ns):
            raise BadRows(f"{path} changed while it was judged; aggregate the files again.")
