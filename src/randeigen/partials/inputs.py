"""Which files were measured, so that what workers found of others is never added up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from randeigen.errors import BadParameter, BadRows
from randeigen.geometry.segments import Segments
from randeigen.rows import as_rows
from randeigen.rows.file_rows import FileRows, Visit
from randeigen.rows.formats.checked import Mangled, counts, take
from randeigen.rows.formats.io import Stamp, printable
from randeigen.types import Answer, Block

Part: TypeAlias = tuple[int, int]  # (i, k): part i of k, counted from 0
Marks: TypeAlias = tuple[int, ...]  # what tells one file from another, wherever it is mounted


@dataclass(frozen=True)
class Inputs:
    """The files as one worker found them, in the order of rows."""

    names: tuple[str, ...]
    stamps: tuple[Marks | None, ...]  # None: the file could not be opened
    structure: str  # SHA-256 of the names, dtypes and shapes of their arrays
    d: int
    segment_columns: int
    itemsize: int  # bytes of the numbers they are summed up in: 4 or 8
    seed: int | None  # None: nobody gave one, and pivots are drawn from the stamps

    @classmethod
    def of(cls, rows: FileRows, seed: int | None) -> Inputs:
        """Names, sizes and stamps of files as they were opened."""
        structure = hashlib.sha256(repr(tuple(rows.structure)).encode()).hexdigest()
        stamps = tuple(None if stamp is None else marks(stamp) for stamp in rows.stamps)
        assert rows.segment_columns is not None
        names, size = tuple(map(printable, rows.paths)), rows.work.itemsize
        return cls(names, stamps, structure, rows.d, rows.segment_columns, size, seed)

    @property
    def segments(self) -> Segments:
        """How the columns are cut for workers."""
        return Segments(self.d, self.segment_columns)

    def coin(self) -> int:
        """The seed of the measurement: the one that was given, or one that all workers find alike.

        No sender knows at what time, and as which inode, the others' files will be written.
        """
        if self.seed is not None:
            return self.seed
        text = json.dumps([self.stamps, self.structure])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")

    def difference(self, other: Inputs) -> str | None:
        """How two workers' inputs differ, or None: a file that one could not open is unusable, not other."""
        if len(self.names) != len(other.names):
            return f"one is of {len(self.names):,} files, another of {len(other.names):,}"
        for name, one, two in zip(self.names, self.stamps, other.stamps, strict=True):
            if one is not None and two is not None and one != two:
                return f"{name} is another file, or was written between"
        if self.structure != other.structure or self.d != other.d:
            return "their files hold arrays of other names, dtypes or shapes"
        if (self.segment_columns, self.itemsize) != (other.segment_columns, other.itemsize):
            return "their columns are cut at other places, as by another version of randeigen"
        if self.seed != other.seed:
            return f"one was measured with seed {self.seed}, another with {other.seed}"
        return None

    def merged(self, other: Inputs) -> Inputs:
        """The inputs of both, with the stamps that either of them has."""
        stamps = tuple(
            one if one is not None else two for one, two in zip(self.stamps, other.stamps, strict=True)
        )
        return Inputs(**{**asdict(self), "names": min(self.names, other.names), "stamps": stamps})

    def as_json(self) -> dict[str, Any]:
        """Its fields, as JSON knows them."""
        return asdict(self)

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> Inputs:
        """What `to_json` wrote; each field is checked."""
        names, stamps = take(fields, "names", list), take(fields, "stamps", list)
        if not names or not all(isinstance(name, str) for name in names) or len(stamps) != len(names):
            raise Mangled("'names' and 'stamps' are not as many texts and stamps")
        for stamp in stamps:
            if stamp is not None and not (isinstance(stamp, list) and len(stamp) == 4 and counts(stamp)):
                raise Mangled(f"'stamps' holds {stamp!r:.60}")
        d, width = take(fields, "d", int), take(fields, "segment_columns", int)
        itemsize, seed = take(fields, "itemsize", int), take(fields, "seed", int, type(None))
        if not 0 < width < 2**62 or not 0 < d < 2**62 or itemsize not in (4, 8) or (seed or 0) < 0:
            raise Mangled("'d', 'segment_columns', 'itemsize' or 'seed' is out of range")
        return cls(
            tuple(names),
            tuple(None if stamp is None else tuple(stamp) for stamp in stamps),
            take(fields, "structure", str),
            d,
            width,
            itemsize,
            seed,
        )


def marks(stamp: Stamp) -> Marks:
    """A stamp without the device, whose number differs from machine to machine that mounts it."""
    return stamp.size, stamp.mtime_ns, stamp.ctime_ns, stamp.inode


def open_files(paths: Sequence[Any], visit: Visit | None = None) -> FileRows:
    """The files as rows, their headers read."""
    rows = as_rows(paths, visit=visit)
    if not isinstance(rows, FileRows):
        raise BadRows(
            f"workers share files, found rows of {type(rows).__name__}; pass a list of paths, one per sender."
        )
    return rows


def checked_part(part: Any) -> Part:
    """A part (i, k) with 0 ≤ i < k."""
    try:
        i, k = part
        if type(i) is int and type(k) is int and 0 <= i < k:
            return i, k
    except (TypeError, ValueError):
        pass
    raise BadParameter(
        f"part={part!r}; give (i, k), part i of k, counted from 0: (0, 4) to (3, 4) are four parts."
    )


class SomeColumns:
    """Rows in files of which some columns are read, in whole blocks."""

    def __init__(self, rows: FileRows, columns: slice, answer: Answer | None = None) -> None:
        self._rows, self._columns, self._answer = rows, columns, answer
        self.n, self.d, self.carries, self.on_host = rows.n, rows.d, rows.carries, rows.on_host
        self.leaves, self.segment_columns = rows.leaves, rows.segment_columns
        self.unusable = rows.unusable

    def blocks(self, multiple: int = 1) -> Iterator[tuple[slice, Block]]:
        """Those among the columns, which keep their numbers."""
        return self._rows.blocks(multiple, self._columns)

    def answer(self) -> Answer:
        """Where the answer for these columns goes."""
        return self._answer or self._rows.answer()

    def changed(self) -> Sequence[int]:
        """As of all columns."""
        return self._rows.changed()
