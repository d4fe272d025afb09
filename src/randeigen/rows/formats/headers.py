"""What files declare about themselves, and the structure most of them share.

A header costs its reader far more than its bytes cost the sender. So all files are first asked how long
theirs is, and none is parsed that is much longer than most: no sender decides what reading costs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import FileIO
from typing import Any, NamedTuple, TypeVar

from randeigen.errors import BadRows
from randeigen.rows.formats import Entry, UnreadableFile, is_float, nbytes, npy, npz, quote, shown, storage
from randeigen.rows.formats.io import OpenFiles
from randeigen.rows.formats.offsets import packed
from randeigen.rows.formats.reader import Structure
from randeigen.rows.formats.safetensors import extent, inspect

FREE_HEADER_BYTES = 2**12  # bytes of header any file may have, whatever the others have
FREE_DEFLATED_BYTES = 2**14  # bytes any file may deflate
MAX_TIMES_MEDIAN = 2  # as much as most files have

T = TypeVar("T")


class Format(NamedTuple):
    """How files of one suffix are looked at."""

    inspect: Callable[[FileIO], list[Entry]]
    extent: Callable[[FileIO], int] | None = None  # bytes of header it declares, if these are not few
    effort: Callable[[FileIO], int] | None = None  # bytes it wants inflated
    header: str = "header"


FORMATS: Mapping[str, Format] = {
    ".safetensors": Format(inspect, extent),
    ".npz": Format(npz.inspect, npz.extent, npz.effort, "zip directory"),
    ".npy": Format(npy.inspect),
}


class Vote(NamedTuple):
    """What one file declares, in digests: a header of many names costs nothing once it is read."""

    structure: bytes  # names, shapes and kinds of numbers, whatever their order
    order: bytes
    codes: tuple[str, ...]  # dtypes, by name
    places: bytes  # likewise


class Look(NamedTuple):
    """What a file says at once; None where it has to wait until the others have been asked."""

    extent: int
    effort: int | None = None
    vote: Vote | None = None


class Survey:
    """The headers of n files, each read through one handle."""

    def __init__(
        self, paths: Sequence[str], handles: OpenFiles, form: Format, lose: Callable[[int, str], None]
    ) -> None:
        self._paths = paths
        self._handles = handles
        self._form = form
        self._lose = lose
        self._known: dict[Any, Any] = {}

    def take(self, rows: Iterable[int]) -> tuple[Structure, dict[int, bytes]]:
        """The structure most of these rows share, and where each that has it keeps each leaf, by name."""
        looks = self._asked(rows, self._look)
        told = f"declares a {self._form.header} of {{:,}} bytes"
        rows = self._within({row: look.extent for row, look in looks.items()}, FREE_HEADER_BYTES, told)
        if self._form.effort:
            efforts = {row: effort for row in rows if (effort := looks[row].effort) is not None}
            efforts |= self._asked((row for row in rows if row not in efforts), self._form.effort)
            rows = self._within(efforts, FREE_DEFLATED_BYTES, "deflates {:,} bytes, which cost more to read")
        votes = {row: vote for row in rows if (vote := looks[row].vote) is not None}
        votes |= self._asked((row for row in rows if row not in votes), self._vote)
        if not votes:
            return (), {}
        winner = self._winner(votes)
        alike = {row: vote for row, vote in votes.items() if vote.structure == winner}
        leaves = self._leaves(alike)
        for row in votes:
            if row not in alike:
                self._tell_apart(row, leaves)
        return leaves, {row: vote.places for row, vote in alike.items()}

    def _asked(self, rows: Iterable[int], question: Callable[[FileIO], T]) -> dict[int, T]:
        """The answers of those rows that can give one."""
        found = {}
        for row in rows:
            try:
                found[row] = question(self._handles[row])
            except UnreadableFile as reason:
                self._lose(row, str(reason))
        return found

    def _within(self, sizes: Mapping[int, int], free: int, told: str) -> list[int]:
        """The rows that ask for no more than TIMES the median; fewer than half cannot move it."""
        median = sorted(sizes.values())[len(sizes) // 2] if sizes else 0
        most = max(free, MAX_TIMES_MEDIAN * median)
        for row, size in sizes.items():
            if size > most:
                self._lose(row, f"{told.format(size)}, most files {median:,}; at most {most:,} are read")
        return [row for row, size in sizes.items() if size <= most]

    def _look(self, file: FileIO) -> Look:
        """All that can be asked of a file before it is known what others ask for, at one opening."""
        extent = self._form.extent(file) if self._form.extent else 0
        if extent > FREE_HEADER_BYTES:
            return Look(extent)
        effort = self._form.effort(file) if self._form.effort else 0
        return Look(extent, effort, None if effort > FREE_DEFLATED_BYTES else self._vote(file))

    def _vote(self, file: FileIO) -> Vote:
        """What a file votes for; files of one model vote for the same, which is kept once."""
        return Vote(*(self._known.setdefault(part, part) for part in vote_of(self._form.inspect(file))))

    def _winner(self, votes: Mapping[int, Vote]) -> bytes:
        """The structure more than half the files share: no one sender can set it, not even the first."""
        ballots = Counter(vote.structure for vote in votes.values())
        winner, count = ballots.most_common(1)[0]
        if 2 * count > len(votes):
            return winner
        groups = []
        for ballot, count in ballots.most_common(4):
            row = next(row for row, vote in votes.items() if vote.structure == ballot)
            groups.append(f"{count:,} like {shown(self._paths[row])} ({self._summary(row)})")
        more = f" and {len(ballots) - 4:,} more kinds" if len(ballots) > 4 else ""
        raise BadRows(
            f"more than half the files must share names, shapes and dtypes, found {', '.join(groups)}{more}; "
            "pass files of one model."
        )

    def _leaves(self, alike: Mapping[int, Vote]) -> Structure:
        """Leaves in the order of most files, each in the dtype of most, or else of the middle one."""
        order = Counter(vote.order for vote in alike.values()).most_common(1)[0][0]
        for row in [row for row, vote in alike.items() if vote.order == order]:
            entries = self._asked([row], self._form.inspect).get(row, [])
            if vote_of(entries) == alike[row]:
                break
            self._lose(row, "changed while it was read")
        else:
            raise BadRows("the files changed while they were read; pass files that are complete.")
        counts = Counter(vote.codes for vote in alike.values())
        middle = {entry.name: middle_code(tallied(counts, at)) for at, entry in enumerate(by_name(entries))}
        return tuple((entry.name, middle[entry.name], entry.shape) for entry in entries)

    def _tell_apart(self, row: int, leaves: Structure) -> None:
        """Lose a row of another structure, saying how it differs."""
        for _, entries in self._asked([row], self._form.inspect).items():
            found = {entry.name: entry for entry in entries}
            self._lose(row, difference(leaves, found) or "changed while it was read")

    def _summary(self, row: int) -> str:
        entries = self._asked([row], self._form.inspect).get(row, [])
        size = sum(nbytes(entry.code, entry.shape) // storage(entry.code).itemsize for entry in entries)
        return f"{len(entries):,} arrays, {size:,} numbers"


def by_name(entries: Iterable[Entry]) -> list[Entry]:
    """Entries in an order that does not depend on the file's."""
    return sorted(entries, key=lambda entry: entry.name)


def vote_of(entries: Sequence[Entry]) -> Vote:
    """What a file votes for."""
    ordered = by_name(entries)
    structure = [(entry.name, kind(entry.code), entry.shape) for entry in ordered]
    codes = tuple(entry.code for entry in ordered)
    return Vote(digest(structure), digest([entry.name for entry in entries]), codes, packed(ordered))


def kind(code: str) -> str:
    """Floats of any width are cast; of integers, where a cast can lose all, only one width is accepted."""
    return "float" if is_float(code) else code


def digest(thing: object) -> bytes:
    """A short stand-in for a structure of any size."""
    return hashlib.sha256(repr(thing).encode()).digest()


def tallied(counts: Mapping[tuple[str, ...], int], at: int) -> Counter[str]:
    """How many files store one leaf in each dtype."""
    found: Counter[str] = Counter()
    for codes, count in counts.items():
        found[codes[at]] += count
    return found


def middle_code(counts: Counter[str]) -> str:
    """The dtype of most files; where there is none, the median by width, which a minority cannot move."""
    half = (sum(counts.values()) + 1) // 2
    for code in sorted(counts, key=lambda code: (storage(code).itemsize, code)):
        half -= counts[code]
        if half <= 0:
            return code
    raise AssertionError("no files, no dtype")


def difference(expected: Structure, found: Mapping[str, Entry]) -> str | None:
    """How a file departs from the others, or None: the first difference only."""
    for name, code, shape in expected:
        if name not in found:
            return f"has no array {quote(name)}, most files have one"
        other = found[name]
        if (kind(other.code), other.shape) != (kind(code), shape):
            array = f"array {quote(name)}" if name else "an array"
            return f"has {array} of {other.code} {list(other.shape)}, most files have {code} {list(shape)}"
    names = {name for name, _, _ in expected}
    extra = next((name for name in found if name not in names), None)
    return None if extra is None else f"has array {quote(extra)}, most files have none of that name"
