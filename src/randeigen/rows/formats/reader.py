"""One pass over many files: numbers of a leaf, wherever each file stores them.

Where that is takes few bytes to remember: thousands of files of one layout share one record of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.host_leaves import cast_array
from randeigen.rows.formats.alike import StoredAlike, stored_alike
from randeigen.rows.formats.inflate import Inflater
from randeigen.rows.formats.io import (
    READS_AT_OFFSETS,
    Deflated,
    Entry,
    LeafOffset,
    Stamp,
    UnreadableFile,
    nbytes,
    read_into,
    storage,
)
from randeigen.rows.formats.open_files import OpenFiles
from randeigen.rows.formats.transposed import TransposedLeaves
from randeigen.rows.leaves import LeafSlice

Structure: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]  # (name, code, shape) of each leaf
LEAF = struct.Struct("<q8s??qqqI")  # start, code, Fortran order, deflated: stored, size, skip, CRC


def packed(entries: Iterable[Entry]) -> bytes:
    """The offsets of these entries, one after the other."""
    return b"".join(map(_packed, entries))


def _packed(entry: Entry) -> bytes:
    start, fortran, deflated = entry.offset
    return LEAF.pack(
        start, entry.code.encode(), fortran, deflated is not None, *(deflated or Deflated(0, 0, 0, 0))
    )


@lru_cache(maxsize=1024)
def unpacked(offsets: bytes, index: int) -> tuple[str, LeafOffset]:
    """The code one leaf is stored in, and its offset."""
    start, code, fortran, is_deflated, *member = LEAF.unpack_from(offsets, index * LEAF.size)
    deflated = Deflated(*member) if is_deflated else None
    return code.rstrip(b"\0").decode(), LeafOffset(start, fortran, deflated)


class Reader:
    """Leaves of many files, by row and leaf; quickest when each leaf is read forward."""

    def __init__(
        self,
        paths: Sequence[str],
        stamps: list[Stamp | None],
        offsets: Mapping[int, bytes],
        leaves: Structure,
    ) -> None:
        self._handles = OpenFiles(paths, stamps)
        self._stay_open = False  # until the pass ends
        self._offsets = offsets
        self._leaves = leaves
        ranks = {name: rank for rank, name in enumerate(sorted(name for name, _, _ in leaves))}
        self._ranks = [ranks[name] for name, _, _ in leaves]  # offsets are kept by name
        self._streams: dict[int, tuple[int, Inflater]] = {}  # by row: the leaf being inflated
        self._transposed: TransposedLeaves | None = None  # made for the first
        # By leaf, and of how many rows: those that are read together, and the others.
        self._alike: dict[tuple[int, int], tuple[list[StoredAlike], list[int]]] = {}

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handles.__exit__(kind, error, trace)
        if self._transposed:
            self._transposed.close()

    def keep_open(self, rows: Sequence[int]) -> None:
        """Open the files of all rows that will be read, if they may be open at a time: threads share these.

        Objects behind URLs are opened when they are needed.
        """
        self._stay_open = self._handles.are_local and self._handles.has_room_for(len(rows))
        for row in rows if self._stay_open else ():
            with suppress(UnreadableFile):  # whoever reads the row hears of it
                self.open(row)
        self._stay_open = self._stay_open and self._handles.has_room_for(len(rows))

    def opens_again(self) -> bool:
        """Whether files are closed, and opened again for every block."""
        return self._handles.are_local and not self._stay_open

    def takes_threads(self) -> bool:
        """Whether several may read at a time, each its own rows: they share no file, and close none."""
        layouts = set(self._offsets.values())
        fortran = any(unpacked(each, k)[1].fortran for each in layouts for k in range(len(self._leaves)))
        return self._stay_open and not fortran

    def reads_anywhere(self) -> bool:
        """Whether any number of threads may read any rows at a time, each anywhere."""
        if not (READS_AT_OFFSETS and self._stay_open):
            return False
        layouts, leaves = set(self._offsets.values()), range(len(self._leaves))
        return all(unpacked(each, k)[1].is_plain for each in layouts for k in leaves)

    def open(self, row: int) -> None:
        """Open a row's file, unless it is."""
        self._handles[row]

    def floats(self, row: int, leaf: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Entries start..stop of a float leaf, in C order, into `out`."""
        code, offset = self._at(row, leaf)
        if storage(code) == out.dtype and not offset.fortran:
            self._bytes(row, leaf, offset, start * out.itemsize, out.data.cast("B"))
            return
        values = self.stored(row, leaf, start, stop)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # what does not fit becomes inf
            cast_array(out, values.view("<i2") if code == "BF16" else values)

    def lines(self, rows: list[int], leaf: int, start: int, out: NDArray[Any]) -> list[int]:
        """Read a leaf's entries from `start` on into the lines of these rows, by few calls; the rows left.

        These hold it in another way, or cannot be read. Call after call rows may only become fewer.
        """
        alike, others = self._stored_alike(rows, leaf, out.dtype)
        return others + [row for some in alike for row in some.rows[some.read(start, out) :]]

    def few(self, rows: list[int], leaf: int, entries: Sequence[int], out: NDArray[Any]) -> list[int]:
        """The same for a few entries, wherever in the leaf they lie, each into a column."""
        alike, others = self._stored_alike(rows, leaf, out.dtype)
        return others + [row for some in alike for row in some.rows[some.read_few(entries, out) :]]

    def _stored_alike(
        self, rows: list[int], leaf: int, dtype: np.dtype[Any]
    ) -> tuple[list[StoredAlike], list[int]]:
        """How the open files of these rows hold a leaf."""
        alike = self._alike.get((leaf, len(rows)))
        if alike is None:
            alike = stored_alike(
                rows, lambda row: self._at(row, leaf), lambda row: self._handles[row].fileno(), dtype
            )
            self._alike[leaf, len(rows)] = alike
        return alike

    def fetch(self, rows: Iterable[int], slices: Sequence[LeafSlice], leaves: Sequence[int]) -> None:
        """Fetch these stretches of all objects behind URLs at once; files are read when they are needed."""
        from randeigen.rows.formats.remote import RemoteFile, fetch_together

        ranges = []
        for row in rows:
            for entries in slices:
                code, offset = self._at(row, leaves[entries.leaf])
                size = storage(code).itemsize
                with suppress(UnreadableFile):  # whoever reads the row hears of it
                    file = self._handles[row]
                    if isinstance(file, RemoteFile) and offset.deflated is None and not offset.fortran:
                        start, stop = offset.start + entries.start * size, offset.start + entries.stop * size
                        ranges.append((file, start, stop))
        fetch_together(ranges)

    def stored(self, row: int, leaf: int, start: int, stop: int) -> NDArray[Any]:
        """Entries start..stop of a leaf, in C order, in the dtype they are stored in."""
        code, offset = self._at(row, leaf)
        size = storage(code).itemsize
        if not offset.fortran:
            raw = self._raw(row, leaf, offset, start * size, (stop - start) * size)
        elif self._transposed and self._transposed.holds(row, leaf):
            raw = self._transposed.read(row, start * size, (stop - start) * size)
        else:
            raw = self._transpose(row, leaf, code, offset, whole=stop - start)[start * size : stop * size]
        # A bool is a byte that others wrote: any but 0 and 1 would confuse numpy.
        return raw != 0 if code == "BOOL" else raw.view(storage(code))

    def _at(self, row: int, leaf: int) -> tuple[str, LeafOffset]:
        return unpacked(self._offsets[row], self._ranks[leaf])

    def _transpose(self, row: int, leaf: int, code: str, offset: LeafOffset, whole: int) -> NDArray[np.uint8]:
        """The bytes of a Fortran-ordered leaf in C order; kept unless all of it was asked for at once."""
        shape = self._leaves[leaf][2]
        raw = self._raw(row, leaf, offset, 0, nbytes(code, shape)).view(storage(code))
        transposed = np.ascontiguousarray(raw.reshape(shape, order="F")).reshape(-1)
        if transposed.size > whole:
            self._transposed = self._transposed or TransposedLeaves()
            self._transposed.write(row, leaf, transposed)
        return transposed.view(np.uint8)

    def _raw(self, row: int, leaf: int, offset: LeafOffset, start: int, count: int) -> NDArray[np.uint8]:
        buffer = np.empty(count, np.uint8)
        self._bytes(row, leaf, offset, start, buffer.data)
        return buffer

    def _bytes(self, row: int, leaf: int, offset: LeafOffset, start: int, view: memoryview) -> None:
        """Fill `view` with a leaf's bytes from `start` on."""
        file = self._handles[row]
        if offset.deflated is None:
            read_into(file, offset.start + start, view)
            return
        held, stream = self._streams.get(row, (-1, None))
        begin = offset.deflated.skip + start
        if stream is None or held != leaf or stream.at > begin:
            stream = Inflater(offset.start, offset.deflated)
        stream.skip(file, begin - stream.at)
        stream.read_into(file, view)
        self._streams[row] = leaf, stream
