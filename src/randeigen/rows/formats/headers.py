"""What files declare about themselves, and the structure most of them share.

A header costs its reader far more than its bytes cost the sender. So the length of every header is read
first, and none is parsed that is much longer than most: no sender decides what reading costs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import RawIOBase
from typing import Any, NamedTuple, TypeVar

from randeigen.errors import BadRows
from randeigen.rows.formats import npy, npz
from randeigen.rows.formats.io import (
    Entry,
    Structure,
    UnreadableFile,
    is_float,
    nbytes,
    packed,
    printable,
    quote,
    storage,
)
from randeigen.rows.formats.reader import OpenFiles
from randeigen.rows.formats.safetensors import extent, inspect
from randeigen.rows.leaves import winner_of

FREE_HEADER_BYTES = 2**12  # bytes of header that any file may have, whatever the others have
FREE_DEFLATED_BYTES = 2**14  # bytes that any file may deflate
MAX_TIMES_MEDIAN = 2  # beyond these, as many times the median of all files

T = TypeVar("T")


class Format(NamedTuple):
    """How files of one suffix are looked at."""

    inspect: Callable[[RawIOBase], list[Entry]]
    extent: Callable[[RawIOBase], int] | None = None  # bytes of header it declares, if these are not few
    effort: Callable[[RawIOBase], int] | None = None  # bytes it wants inflated
    header: str = "header"
    single: bool = False  # whether a file is one array without a name


FORMATS: Mapping[str, Format] = {
    ".safetensors": Format(inspect, extent),
    ".npz": Format(npz.inspect, npz.extent, npz.effort, "zip directory"),
    ".npy": Format(npy.inspect, single=True),
}


class Declared(NamedTuple):
    """What one file declares, in digests: a header of many names costs no memory once it is read."""

    structure: bytes  # names, shapes and kinds of numbers, whatever their order
    order: bytes
    codes: tuple[str, ...]  # dtypes, by name
    offsets: bytes  # where each leaf lies, by name


class FirstLook(NamedTuple):
    """What can be read of a file at once; None where that has to wait for the median of all files."""

    extent: int
    effort: int | None = None
    declared: Declared | None = None


class StructureVote:
    """The headers of n files, each read through one handle."""

    def __init__(
        self, paths: Sequence[str], handles: OpenFiles, form: Format, refuse: Callable[[int, str], None]
    ) -> None:
        self._paths = paths
        self._handles = handles
        self._form = form
        self._refuse = refuse
        self._known: dict[Any, Any] = {}

    def take(self, rows: Iterable[int]) -> tuple[Structure, dict[int, bytes]]:
        """The structure most of these rows share, and where each that has it keeps each leaf, by name."""
        looks = self._read_each(rows, self._look)
        text = f"declares a {self._form.header} of {{:,}} bytes"
        rows = self._within({row: look.extent for row, look in looks.items()}, FREE_HEADER_BYTES, text)
        if self._form.effort:
            efforts = {row: effort for row in rows if (effort := looks[row].effort) is not None}
            efforts |= self._read_each((row for row in rows if row not in efforts), self._form.effort)
            rows = self._within(efforts, FREE_DEFLATED_BYTES, "deflates {:,} bytes, which cost more to read")
        known = {row: declared for row in rows if (declared := looks[row].declared) is not None}
        known |= self._read_each((row for row in rows if row not in known), self._declared)
        if not known:
            return (), {}
        winner = self._winner(known)
        alike = {row: declared for row, declared in known.items() if declared.structure == winner}
        leaves = self._leaves(alike)
        for row in known:
            if row not in alike:
                self._refuse_structure(row, leaves)
        return leaves, {row: declared.offsets for row, declared in alike.items()}

    def _read_each(self, rows: Iterable[int], read: Callable[[RawIOBase], T]) -> dict[int, T]:
        """What `read` makes of each of these files; those it cannot read are refused."""
        results = {}
        for row in rows:
            try:
                results[row] = read(self._handles[row])
            except UnreadableFile as reason:
                self._refuse(row, str(reason))
        return results

    def _within(self, sizes: Mapping[int, int], free: int, text: str) -> list[int]:
        """The rows within MAX_TIMES_MEDIAN times the median size, which fewer than half cannot move."""
        median = sorted(sizes.values())[len(sizes) // 2] if sizes else 0
        most = max(free, MAX_TIMES_MEDIAN * median)
        for row, size in sizes.items():
            if size > most:
                self._refuse(row, f"{text.format(size)}, most files {median:,}; at most {most:,} are read")
        return [row for row, size in sizes.items() if size <= most]

    def _look(self, file: RawIOBase) -> FirstLook:
        """All that can be read before the median of all files is known, at one opening."""
        extent = self._form.extent(file) if self._form.extent else 0
        if extent > FREE_HEADER_BYTES:
            return FirstLook(extent)
        effort = self._form.effort(file) if self._form.effort else 0
        return FirstLook(extent, effort, None if effort > FREE_DEFLATED_BYTES else self._declared(file))

    def _declared(self, file: RawIOBase) -> Declared:
        """What a file declares; files of one model declare the same, which is kept once."""
        return Declared(*(self._known.setdefault(part, part) for part in declared(self._form.inspect(file))))

    def _winner(self, known: Mapping[int, Declared]) -> bytes:
        """The structure more than half the files share: no one sender can set it, not even the first."""
        ballots = Counter(declared.structure for declared in known.values())
        winner = winner_of(ballots, len(known))
        if winner is not None:
            return winner
        groups = []
        for ballot, count in ballots.most_common(4):
            row = next(row for row, declared in known.items() if declared.structure == ballot)
            groups.append(f"{count:,} like {printable(self._paths[row])} ({self._summary(row)})")
        more = f" and {len(ballots) - 4:,} more kinds" if len(ballots) > 4 else ""
        raise BadRows(
            f"more than half the files must share names, shapes and dtypes, found {', '.join(groups)}{more}; "
            "pass files of one model."
        )

    def _leaves(self, alike: Mapping[int, Declared]) -> Structure:
        """Leaves in the order of most files, each in the dtype of most, or else of the middle one."""
        order = Counter(each.order for each in alike.values()).most_common(1)[0][0]
        for row in [row for row, each in alike.items() if each.order == order]:
            entries = self._read_each([row], self._form.inspect).get(row, [])
            if declared(entries) == alike[row]:
                break
            self._refuse(row, "changed while it was read")
        else:
            raise BadRows("the files changed while they were read; pass files that are complete.")
        counts = Counter(each.codes for each in alike.values())
        middle = {entry.name: middle_code(codes_at(counts, at)) for at, entry in enumerate(by_name(entries))}
        return tuple((entry.name, middle[entry.name], entry.shape) for entry in entries)

    def _refuse_structure(self, row: int, leaves: Structure) -> None:
        """Refuse a file of another structure, with the first difference."""
        for _, entries in self._read_each([row], self._form.inspect).items():
            by_its_names = {entry.name: entry for entry in entries}
            self._refuse(row, file_difference(leaves, by_its_names) or "changed while it was read")

    def _summary(self, row: int) -> str:
        entries = self._read_each([row], self._form.inspect).get(row, [])
        size = sum(nbytes(entry.code, entry.shape) // storage(entry.code).itemsize for entry in entries)
        return f"{len(entries):,} arrays, {size:,} numbers"


def by_name(entries: Iterable[Entry]) -> list[Entry]:
    """Entries in an order that does not depend on the file's."""
    return sorted(entries, key=lambda entry: entry.name)


def declared(entries: Sequence[Entry]) -> Declared:
    """What a file with these entries declares."""
    ordered = by_name(entries)
    structure = [(entry.name, kind_of(entry.code), entry.shape) for entry in ordered]
    codes = tuple(entry.code for entry in ordered)
    return Declared(digest(structure), digest([entry.name for entry in entries]), codes, packed(ordered))


def kind_of(code: str) -> str:
    """Floats of any width are cast; of integers, where a cast can lose all, only one width is accepted."""
    return "float" if is_float(code) else code


def digest(thing: object) -> bytes:
    """32 bytes in place of a structure of any size."""
    return hashlib.sha256(repr(thing).encode()).digest()


def codes_at(counts: Mapping[tuple[str, ...], int], at: int) -> Counter[str]:
    """How many files store one leaf in each dtype."""
    total: Counter[str] = Counter()
    for codes, count in counts.items():
        total[codes[at]] += count
    return total


def middle_code(counts: Counter[str]) -> str:
    """The dtype of most files; where there is none, the median by width, which a minority cannot move."""
    half = (sum(counts.values()) + 1) // 2
    for code in sorted(counts, key=lambda code: (storage(code).itemsize, code)):
        half -= counts[code]
        if half <= 0:
            return code
    raise AssertionError("no files, no dtype")


def file_difference(expected: Structure, entries: Mapping[str, Entry]) -> str | None:
    """How a file departs from the others, or None: the first difference only."""
    for name, code, shape in expected:
        if name not in entries:
            return f"has no array {quote(name)}, most files have one"
        other = entries[name]
        if (kind_of(other.code), other.shape) != (kind_of(code), shape):
            array = f"array {quote(name)}" if name else "an array"
            return f"has {array} of {other.code} {list(other.shape)}, most files have {code} {list(shape)}"
    names = {name for name, _, _ in expected}
    extra = next((name for name in entries if name not in names), None)
    return None if extra is None else f"has array {quote(extra)}, most files have none of that name"
