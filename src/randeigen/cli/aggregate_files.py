"""From files to an aggregate, with fingerprints of what was judged: what `aggregate` and `replay` share."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import RawIOBase
from typing import Any, NamedTuple

import numpy as np

import randeigen
from randeigen.cli.console import UsageError
from randeigen.errors import BadRows, TooManyCorrupt, Unusable
from randeigen.rows import as_rows, write_answer
from randeigen.rows.file_rows import Visit, suffix_of
from randeigen.rows.formats.io import UnreadableFile, is_url, open_regular, read_into, stamp_of, storage
from randeigen.rows.write import coded
from randeigen.rules import Rule
from randeigen.types import Aggregate, GeometryKind, OnExcess, Progress

READ_BYTES = 2**20
MAX_UNACCEPTED_BYTES = 2**16  # a file that was not accepted is fingerprinted up to this size, or the others'
MAX_REASONS_SHOWN = 8  # files named one by one in an error


@dataclass(frozen=True)
class AggregateOptions:
    """Everything but the files that decides a verdict."""

    rule: str  # as --rule spells it
    eps: float | None
    f: int | None
    seed: int | None
    geometry: GeometryKind
    on_excess: OnExcess
    partition: str = "whole"
    counts: tuple[Any, ...] | None = None  # what each file claims for itself, in the order of the files


class Judged(NamedTuple):
    """The aggregate of the files, and what it takes to write it."""

    result: Aggregate
    dtypes: dict[str, str]  # array name: the dtype that most files store
    numbers: int  # how many numbers of each file are averaged


def aggregate_files(
    paths: Sequence[str],
    rule: Rule,
    call: AggregateOptions,
    out: str,
    progress: Progress | None,
    visit: Visit | None = None,
) -> Judged:
    """The aggregate of the files; `out` is checked to be able to hold it."""
    f = rule.assumed_corrupt(
        len(paths)
    )  # an f that so few files cannot afford is refused before any is opened
    rows = _open(paths, rule, f, visit)
    dtypes = dict(rows.dtypes)
    check_form(out, dtypes)
    try:
        result = randeigen.aggregate(
            rows,
            rule=rule,
            seed=call.seed,
            geometry=call.geometry,
            on_excess=call.on_excess,
            partition=call.partition,
            row_weights=call.counts,
            progress=progress,
        )
    except TooManyCorrupt as error:
        raise TooManyCorrupt(excess_of_files(error, paths, f), error.reasons) from None
    return Judged(result, dtypes, rows.d)


def write(path: str, result: Aggregate, dtypes: Mapping[str, str]) -> None:
    """Write the answer in the format of the file name, whole or not at all."""
    answer = result.mean
    if suffix_of(path) == ".npy" and isinstance(answer, dict):
        (answer,) = answer.values()
    write_answer(path, answer, dtypes)


def without_path(reason: str) -> str:
    """Why a row is unusable, without the path, which is shown beside it."""
    if isinstance(reason, Unusable) and reason.path is not None:
        return f"unreadable: {reason.detail}"
    return reason


def check_form(out: str, dtypes: Mapping[str, str]) -> None:
    """Refuse a format that cannot hold arrays of these names and dtypes."""
    suffix = suffix_of(out)
    if suffix == ".npy" and len(dtypes) != 1:
        raise UsageError(f"{out} holds one array, the files hold {len(dtypes)}; give .npz or .safetensors.")
    for name, code in dtypes.items():
        if suffix == ".safetensors":
            coded(name, np.empty(0, storage(code)), "BF16" if code == "BF16" else None)
        if suffix == ".npz" and ("\0" in name or name.startswith("/") or ".." in re.split(r"[/\\]", name)):
            raise UsageError(f"{out} cannot hold an array named {name!r}; give .safetensors.")


def _open(paths: Sequence[str], rule: Rule, f: int, visit: Visit | None) -> Any:
    """The files as rows: their headers are read, no number yet."""
    try:
        return as_rows(paths, multiple=rule.block_multiple(), visit=visit)
    except BadRows as error:
        # Formats are settled, so this is about content: no structure is shared by most files. As f is
        # less than half of them, more than f must be corrupt.
        raise TooManyCorrupt(f"more than {f} of {len(paths)} files are unusable: {error}", {}) from None


def excess_of_files(error: TooManyCorrupt, paths: Sequence[str], f: int) -> str:
    """The library's error names rows; this one names the caller's files."""
    first = list(error.reasons.items())[:MAX_REASONS_SHOWN]
    reasons = [f"{paths[row]} ({without_path(reason)})" for row, reason in first]
    hidden = len(error.rows) - len(first)
    more = f"; and {hidden} more" if hidden > 0 else ""
    some = len(error.rows) < len(paths)
    advice = ", or give --on-excess drop to go on without them" if some else ""
    return (
        f"{len(error.rows)} of {len(paths)} files are unusable, but at most {f} were said to be corrupt: "
        f"{'; '.join(reasons)}{more}. Find out why{advice}."
    )


def folder_of(paths: Sequence[str]) -> str:
    """The deepest folder that holds all the files; of URLs in several stores, none."""
    if any(map(is_url, paths)):
        homes = [f"{os.path.dirname(path)}/" for path in paths]
        prefix = os.path.commonprefix(homes).rpartition("/")[0]  # noqa: RUF071 - URLs are no paths
        return prefix if is_url(prefix) and not prefix.endswith("/") else ""
    folders = [os.path.dirname(os.path.abspath(path)) for path in paths]
    return os.path.commonpath(folders)


def within(path: str, folder: str) -> str:
    """The name of a file in the folder that `folder_of` found."""
    if is_url(path) or not folder:
        return path[len(folder) + 1 :] if folder else path
    return os.path.relpath(os.path.abspath(path), folder)


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

    def visit(self, row: int, file: RawIOBase, size: int) -> None:
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


def hashed(file: RawIOBase, size: int) -> str:
    """The SHA-256 of a file's first `size` bytes, no matter whether it grows or never ends."""
    sha, buffer, done = hashlib.sha256(), memoryview(bytearray(min(size, READ_BYTES))), 0
    while done < size:
        part = buffer[: min(READ_BYTES, size - done)]
        read_into(file, done, part)
        sha.update(part)
        done += len(part)
    return sha.hexdigest()
