"""One pass over many files: numbers of a leaf, wherever each file stores them.

Where that is takes few bytes to remember: thousands of files of one layout share one record of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from io import RawIOBase
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.host_leaves import cast_array
from randeigen.rows.formats.alike import StoredAlike, stored_alike
from randeigen.rows.formats.inflate import Inflater
from randeigen.rows.formats.io import (
    NO_DESCRIPTORS,
    READS_AT_OFFSETS,
    LeafOffset,
    Stamp,
    Structure,
    UnreadableFile,
    is_url,
    most_open_files,
    nbytes,
    open_regular,
    read_into,
    stamp_of,
    storage,
    unpacked,
)
from randeigen.rows.formats.transposed import TransposedLeaves
from randeigen.rows.leaves import LeafSlice


class OpenFiles:
    """Files open for a pass, each checked to be the one that was opened first.

    Rows are visited in turn, so those opened first stay open: to close the oldest would close each file
    just before it is needed again. A file that was refused stays so: however many ask for it, and whatever
    is put in its place, it is not opened again. Where the process has no descriptor left, fewer stay open.
    """

    def __init__(self, paths: Sequence[str], stamps: list[Stamp | None]) -> None:
        self._paths = paths
        self._stamps = stamps  # filled in where a file is opened for the first time
        self._most = most_open_files()
        self._open: dict[int, RawIOBase] = {}
        self._on_disk: list[int] = []  # the open rows that take a descriptor, the latest last
        self._refused: dict[int, str] = {}  # by row, why
        self._urls: dict[int, Any] = {}  # objects that were opened ahead, or why they could not be

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on_disk.clear()
        while self._open:
            self._open.popitem()[1].close()

    def __getitem__(self, row: int) -> RawIOBase:
        """The open file of a row."""
        if row in self._open:
            return self._open[row]
        if row in self._refused:
            raise UnreadableFile(self._refused[row])
        try:
            return self._checked(row, self._opened(row))
        except UnreadableFile as reason:
            self._refused[row] = str(reason)
            raise

    @property
    def are_local(self) -> bool:
        """Whether none is behind a URL."""
        return not any(map(is_url, self._paths))

    def has_room_for(self, count: int) -> bool:
        """Whether so many may be open at a time, for all that is known: each that is opened may show less."""
        return count <= self._most

    def _opened(self, row: int) -> RawIOBase:
        if is_url(self._paths[row]):
            return self._opened_url(row)
        if len(self._on_disk) >= self._most:
            self._close_latest()
        while True:
            try:
                return open_regular(self._paths[row])
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    raise
                if not self._on_disk:
                    advice = f"{error.strerror}; let this process open more (ulimit -n)"
                    raise OSError(error.errno, advice, self._paths[row]) from error
                self._most = len(self._on_disk)
                self._close_latest()

    def _close_latest(self) -> None:
        self._open.pop(self._on_disk.pop()).close()

    def _opened_url(self, row: int) -> RawIOBase:
        """The object of a row: those of all rows are opened at once, as a request takes its time."""
        from randeigen.rows.formats.remote import open_urls

        if row not in self._urls:
            rows = [each for each, path in enumerate(self._paths) if is_url(path) and each not in self._open]
            files = open_urls([self._paths[each] for each in rows], self._stamps[row] is None)
            self._urls |= dict(zip(rows, files, strict=True))
        file: RawIOBase | Exception = self._urls.pop(row)
        if isinstance(file, Exception):
            raise file
        return file

    def _checked(self, row: int, file: RawIOBase) -> RawIOBase:
        stamp = stamp_of(file)
        if self._stamps[row] not in (None, stamp):
            file.close()
            raise UnreadableFile("changed between two passes over it")
        self._stamps[row] = stamp
        self._open[row] = file
        if not is_url(self._paths[row]):
            self._on_disk.append(row)
        return file


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
