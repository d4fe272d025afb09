"""Rows that are files, read block by block. What a file declares is evidence, never an exception."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from io import RawIOBase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.chunking import (
    MAX_COPIED_BYTES,
    block_columns,
    block_width,
    memory_for_rows,
    one_ahead,
    parallel_map,
)
from randeigen.errors import NO_USABLE_FILE, BadRows, Unusable
from randeigen.rows.file_parts import FileParts, joined_cuts
from randeigen.rows.formats.headers import FORMATS, StructureVote
from randeigen.rows.formats.io import (
    Stamp,
    UnreadableFile,
    is_float,
    is_url,
    let_clock_pass,
    printable,
    printable_suffix,
    stamps_at,
    storage,
)
from randeigen.rows.formats.reader import OpenFiles, Reader
from randeigen.rows.leaves import Layout, LeafSlice, OutputBuffer, decide_by_vote, winner_of
from randeigen.types import Answer, Block, Weights

BLOCKS_AHEAD = 8  # blocks that are fetched from a store at once: a request takes long, however small it is
MAX_SEGMENTS = 256  # runs of blocks that workers can share among them
READERS = 2  # threads that read a block, each its own files
REOPENED_BYTES = 2**26  # bytes of a block, if files are opened again for each: the fewer the better
MAPPED_BYTES = 2**28  # bytes of an array from which an answer is kept in a file while it is made
ColumnsRead = tuple[slice, Block]
Visit = Callable[[int, RawIOBase, int], None]  # (row, its open file, its size)


def _room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Memory for an answer: a large one's is backed by a file without a name, and no private memory."""
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if size < MAPPED_BYTES:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        return np.frombuffer(mmap.mmap(file.fileno(), size), dtype).reshape(shape)


class FileRows:
    """n files of one structure, the one most of them share; the others are unusable, with the reason.

    `visit` is called with each file that has it, open, before any number is read.
    """

    def __init__(
        self, paths: Sequence[str], block_bytes: int, multiple: int = 1, visit: Visit | None = None
    ) -> None:
        self.paths = list(paths)
        self.n: int = len(self.paths)
        self._unusable: dict[int, str] = {}
        self.unusable: Mapping[int, str] = self._unusable  # grows when a file fails during a pass
        self._budget = block_bytes
        self._multiple = multiple
        self.stamps: list[Stamp | None] = [None] * self.n  # of the files that could be opened
        form = FORMATS[self._suffix()]
        self.single = form.single
        with OpenFiles(self.paths, self.stamps) as handles:
            vote = StructureVote(self.paths, handles, form, self._refuse)
            self.structure, self._offsets = vote.take(
                row for row in range(self.n) if row not in self._unusable
            )
            if not self.structure and len(self._unusable) == self.n:
                raise BadRows(
                    f"none of the {self.n:,} files can be read: row 0 is {self.unusable[0]}; "
                    "pass files of one model's numbers."
                )
            let_clock_pass(self.stamps)
            if visit:
                for row in [row for row in self._offsets if row not in self._unusable]:
                    self._show(visit, row, handles)
        self._unusable |= {
            row: self._unusable.pop(row) for row in sorted(self._unusable)
        }  # in the order of rows
        self._known = set(self._unusable)
        self._averaged = [k for k, (_, code, _) in enumerate(self.structure) if is_float(code)]
        self._layout = Layout([self.structure[k][2] for k in self._averaged])
        self.d: int = self._layout.d
        self.carries = len(self._averaged) < len(self.structure)
        self.leaves: Sequence[tuple[str, tuple[int, ...]]] = [
            (self.structure[k][0], tuple(self.structure[k][2])) for k in self._averaged
        ]
        self.on_host = True
        self.output: Answer | None = None  # where the answer goes, if not into memory
        self._carried: dict[int, NDArray[Any]] | None = None
        self.dtypes: dict[str, str] = {name: code for name, code, _ in self.structure}
        if not self.d:
            example = self.paths[next(iter(self._offsets))]
            raise BadRows(f"{example} holds no floating-point numbers; pass files of float arrays.")
        wide = any(storage(self.structure[k][1]).itemsize >= 8 for k in self._averaged)
        self.work = np.dtype(np.float64 if wide else np.float32)  # what blocks hold
        width = block_width(*self._shape())
        self.segment_columns: int | None = width * -(-self.d // (width * MAX_SEGMENTS))

    def _shape(self, multiple: int = 1) -> tuple[int, int, int, int, int]:
        return self.d, self.n, self.work.itemsize, self._budget, math.lcm(self._multiple, multiple)

    def blocks(self, multiple: int = 1, within: slice | None = None) -> Iterator[ColumnsRead]:
        """Blocks of which threads read the parts they take, or each read while the one before is in use.

        Unusable rows are NaN. `within`: only blocks among these columns.
        """
        shape, self._known = self._shape(multiple), set(self._unusable)
        first, last = (within.start, within.stop) if within else (0, self.d)
        chosen = [cut for cut in block_columns(*shape) if first <= cut.start and cut.stop <= last]
        with self._reader() as reader:
            reader.keep_open([row for row in range(self.n) if row not in self.unusable])
            self._read_carried(reader)
            width, segment = block_width(*shape), self.segment_columns or self.d
            if self.n * self.d * self.work.itemsize > MAX_COPIED_BYTES and reader.reads_anywhere():
                fill = partial(self._fill, reader)
                parts = FileParts(reader, self.n, self._layout, self._averaged, self.unusable, fill)
                yield from parts.blocks(chosen, segment, self.work)
            else:
                room = REOPENED_BYTES if reader.opens_again() else 0
                most = room // (self.n * self.work.itemsize * width)
                if most > 1:
                    chosen, width = list(joined_cuts(chosen, segment, most)), min(most * width, self.d)
                yield from self._read_ahead(reader, chosen, width)

    def _read_ahead(self, reader: Reader, chosen: Sequence[slice], width: int) -> Iterator[ColumnsRead]:
        """Blocks that are each read into one buffer while the one before is in another."""
        buffers = [memory_for_rows((self.n, width), self.work) for _ in range(2)]
        remote = any(map(is_url, self.paths))
        self._fetched = chosen[0].start if chosen else 0
        count = READERS if not remote and reader.takes_threads() else 1
        groups = [range(first_row, self.n, count) for first_row in range(count)]

        def read(columns: slice) -> ColumnsRead:
            if remote and columns.start >= self._fetched:
                self._fetch(reader, slice(columns.start, chosen[-1].stop), width)
            buffers.reverse()
            block = buffers[0][:, : columns.stop - columns.start]
            slices = self._layout.leaf_slices(columns)

            def fill(rows: range) -> None:
                for row in rows:
                    self._fill(reader, row, block[row], slices)

            parallel_map(fill, groups)
            return columns, block

        yield from one_ahead(read, chosen)

    def _fetch(self, reader: Reader, columns: slice, width: int) -> None:
        """The first of these columns, a few blocks wide, of all objects behind URLs at once."""
        ahead = slice(columns.start, min(columns.start + BLOCKS_AHEAD * width, columns.stop))
        rows = [row for row in range(self.n) if row not in self.unusable]
        reader.fetch(rows, self._layout.leaf_slices(ahead), self._averaged)
        self._fetched = ahead.stop  # columns up to here are at hand

    def answer(self) -> Answer:
        """Fresh arrays, by name; for .npy the one array. bfloat16 becomes float32, see `dtypes`."""
        if self.output is not None:
            return self.output
        averaged = {
            k: _room(shape, np.dtype(np.float32) if code == "BF16" else storage(code))
            for k, (_, code, shape) in enumerate(self.structure)
            if is_float(code)
        }

        def finish(weights: Weights) -> Any:
            values = averaged | self._carry(weights)
            if self.single:
                return values[0]
            return {name: values[k] for k, (name, _, _) in enumerate(self.structure)}

        return OutputBuffer(self._layout, list(averaged.values()), finish)

    def changed(self) -> list[int]:
        """Rows whose file is not the one that was opened, or that failed since the latest pass began."""
        changed = {row for row in self._unusable if row not in self._known}
        judged = sorted(self._offsets.keys() - self._known)  # of the others nothing was used
        now = stamps_at([self.paths[row] for row in judged])
        changed |= {row for row, stamp in zip(judged, now, strict=True) if stamp != self.stamps[row]}
        return sorted(changed)

    def carried(self, weights: Weights) -> dict[str, NDArray[Any]]:
        """Integers and bools by name, decided by the rows that have weight and can be read."""
        return {self.structure[k][0]: values for k, values in self._carry(weights).items()}

    def _reader(self) -> Reader:
        return Reader(self.paths, self.stamps, self._offsets, self.structure)

    def _suffix(self) -> str:
        """The suffix most files have; files with another are unusable."""
        suffixes = [suffix_of(path) for path in self.paths]
        most = winner_of(Counter(suffixes), self.n)
        if most is None or most not in FORMATS:
            raise BadRows(self._no_format(suffixes))
        for row, suffix in enumerate(suffixes):
            if suffix != most:
                self._refuse(row, f"is a {printable_suffix(suffix)} file, most are {most} files")
        return most

    def _no_format(self, suffixes: Sequence[str]) -> str:
        """The first file of a format that is not read, or not that of the first."""
        for row, suffix in enumerate(suffixes):
            if suffix not in FORMATS:
                path, known = printable(self.paths[row]), ", ".join(FORMATS)
                return f"row {row}, {path}, is no file we read; pass paths that end in {known}."
            if suffix != suffixes[0]:
                return f"row {row} is a {suffix} file, row 0 a {suffixes[0]} file; pass one format."
        raise AssertionError("all files have one format that is read")

    def _show(self, visit: Visit, row: int, handles: OpenFiles) -> None:
        try:
            stamp = self.stamps[row]
            visit(row, handles[row], stamp.size if stamp else 0)
        except UnreadableFile as reason:
            self._refuse(row, reason)

    def _fill(self, reader: Reader, row: int, line: NDArray[Any], slices: Sequence[LeafSlice]) -> None:
        """One row of a block; all NaN once the file is unusable."""
        try:
            for entries in slices if row not in self.unusable else ():
                leaf = self._averaged[entries.leaf]
                reader.floats(row, leaf, entries.start, entries.stop, line[entries.columns])
        except UnreadableFile as reason:
            self._refuse(row, reason)
        if row in self.unusable:
            line.fill(np.nan)

    def _refuse(self, row: int, reason: UnreadableFile | str) -> None:
        self._unusable[row] = Unusable(NO_USABLE_FILE, str(reason), printable(self.paths[row]))

    def _read_carried(self, reader: Reader) -> None:
        """Integers are few as a rule: read along with the first pass, they need no opening of their own."""
        sizes = {
            k: int(np.prod(shape, dtype=object))
            for k, (_, code, shape) in enumerate(self.structure)
            if not is_float(code)
        }
        if self._carried is not None or not sizes or 8 * self.n * sum(sizes.values()) > self._budget:
            return
        carried = {k: np.zeros((self.n, size), storage(self.structure[k][1])) for k, size in sizes.items()}
        for row in self._offsets:
            try:
                for k, size in sizes.items() if row not in self.unusable else ():
                    carried[k][row] = reader.stored(row, k, 0, size)
            except UnreadableFile as reason:
                self._refuse(row, reason)
        self._carried = carried

    def _carry(self, weights: Weights) -> dict[int, NDArray[Any]]:
        """Integers and bools by leaf, decided by the rows that have weight and can still be read."""
        carried: dict[int, NDArray[Any]] = {}
        with self._reader() as reader:
            for k, (_, code, shape) in enumerate(self.structure):
                if not is_float(code):
                    out = np.zeros(shape, storage(code))
                    self._decide_leaf(reader, k, out.reshape(-1), weights)
                    carried[k] = out
        return carried

    def _decide_leaf(self, reader: Reader, k: int, out: NDArray[Any], weights: Weights) -> None:
        voters = [row for row in np.flatnonzero(weights > 0).tolist() if row not in self.unusable]

        def read(columns: slice) -> tuple[NDArray[Any], Weights]:
            if self._carried is not None:
                return self._carried[k][voters, columns], weights[voters]
            values = {}
            for row in voters:
                try:
                    if row not in self.unusable:
                        values[row] = reader.stored(row, k, columns.start, columns.stop)
                except UnreadableFile as reason:
                    self._refuse(row, reason)
            return np.array(list(values.values())), weights[list(values)]

        decide_by_vote(out, len(voters), self._budget // 8, read)


def suffix_of(path: str) -> str:
    """What decides how a file is read."""
    return os.path.splitext(path)[1].lower()
