"""Rows that are files, read block by block. What a file says about itself is evidence, never an exception."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import FileIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.chunking import strip_width, strips
from randeigen.errors import BadRows
from randeigen.outcomes import NO_USABLE_FILE, Unusable
from randeigen.rows.formats import UnreadableFile, is_float, shown, storage
from randeigen.rows.formats.headers import FORMATS, Survey
from randeigen.rows.formats.io import OpenFiles, Stamp, let_clock_pass
from randeigen.rows.formats.reader import Reader
from randeigen.rows.layout import Layout, Piece
from randeigen.rows.output import OutputBuffer, lower_median, majority
from randeigen.types import Answer, Block, Weights

Visit = Callable[[int, FileIO, int], None]  # (row, its open file, its size)


class FileRows:
    """n files of one structure, the one most of them share; the others are lost, with the reason.

    `visit` is shown each file that has it, open, before any number is read.
    """

    def __init__(
        self, paths: Sequence[str], block_bytes: int, multiple: int = 1, visit: Visit | None = None
    ) -> None:
        self.paths = list(paths)
        self.n: int = len(self.paths)
        self._lost: dict[int, str] = {}
        self.lost: Mapping[int, str] = self._lost  # grows when a file fails during a pass
        self._budget = block_bytes
        self._multiple = multiple
        self._stamps: list[Stamp | None] = [None] * self.n
        suffix = self._suffix()
        self._single = suffix == ".npy"
        with OpenFiles(self.paths, self._stamps) as handles:
            survey = Survey(self.paths, handles, FORMATS[suffix], self._lose)
            self._leaves, self._places = survey.take(row for row in range(self.n) if row not in self._lost)
            if not self._leaves and len(self._lost) == self.n:
                raise BadRows(
                    f"none of the {self.n:,} files can be read: row 0 is {self.lost[0]}; "
                    "pass files of one model's numbers."
                )
            let_clock_pass(self._stamps)
            if visit:
                for row in [row for row in self._places if row not in self._lost]:
                    self._show(visit, row, handles)
        self._lost |= {row: self._lost.pop(row) for row in sorted(self._lost)}  # in the order of rows
        self._known = set(self._lost)
        self._averaged = [k for k, (_, code, _) in enumerate(self._leaves) if is_float(code)]
        self._layout = Layout([self._leaves[k][2] for k in self._averaged])
        self.d: int = self._layout.d
        self.carries = len(self._averaged) < len(self._leaves)
        self._carried: dict[int, NDArray[Any]] | None = None
        self.dtypes: dict[str, str] = {name: code for name, code, _ in self._leaves}
        if not self.d:
            example = self.paths[next(iter(self._places))]
            raise BadRows(f"{example} holds no floating-point numbers; pass files of float arrays.")
        wide = any(storage(self._leaves[k][1]).itemsize >= 8 for k in self._averaged)
        self._work = np.dtype(np.float64 if wide else np.float32)

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        """Strips read into one buffer; lost rows are NaN."""
        shape = self.d, self.n, self._work.itemsize, self._budget, self._multiple
        buffer = np.empty((self.n, strip_width(*shape)), self._work)
        self._known = set(self._lost)
        with self._reader() as reader:
            self._read_carried(reader)
            for columns in strips(*shape):
                block = buffer[:, : columns.stop - columns.start]
                pieces = self._layout.pieces(columns)
                for row in range(self.n):
                    self._fill(reader, row, block[row], pieces)
                yield columns, block

    def answer(self) -> Answer:
        """Fresh arrays, by name; for .npy the one array. bfloat16 becomes float32, see `dtypes`."""
        averaged = {
            k: np.empty(shape, np.float32 if code == "BF16" else storage(code))
            for k, (_, code, shape) in enumerate(self._leaves)
            if is_float(code)
        }

        def settle(weights: Weights) -> Any:
            values = averaged | self._carry(weights)
            if self._single:
                return values[0]
            return {name: values[k] for k, (name, _, _) in enumerate(self._leaves)}

        return OutputBuffer(self._layout, list(averaged.values()), settle)

    def changed(self) -> list[int]:
        """Rows whose file is not the one that was opened, or that failed since the latest pass began."""
        found = {row for row in self._lost if row not in self._known}
        for row in self._places.keys() - self._known:  # of the others nothing was used
            try:
                if Stamp.of(os.stat(self.paths[row])) != self._stamps[row]:
                    found.add(row)
            except OSError:
                found.add(row)
        return sorted(found)

    def carried(self, weights: Weights) -> dict[str, NDArray[Any]]:
        """Integers and bools by name, settled by the rows that have weight and can be read."""
        return {self._leaves[k][0]: values for k, values in self._carry(weights).items()}

    def _reader(self) -> Reader:
        return Reader(self.paths, self._stamps, self._places, self._leaves)

    def _suffix(self) -> str:
        """The suffix most files have; those of another are lost."""
        suffixes = [suffix_of(path) for path in self.paths]
        most, count = Counter(suffixes).most_common(1)[0]
        if 2 * count <= self.n or most not in FORMATS:
            for row, suffix in enumerate(suffixes):
                if suffix not in FORMATS:
                    path, known = shown(self.paths[row]), ", ".join(FORMATS)
                    raise BadRows(f"row {row}, {path}, is no file we read; pass paths that end in {known}.")
                if suffix != suffixes[0]:
                    raise BadRows(
                        f"row {row} is a {suffix} file, row 0 a {suffixes[0]} file; pass one format."
                    )
        for row, suffix in enumerate(suffixes):
            if suffix != most:
                self._lose(row, f"is a {quoted(suffix)} file, most are {most} files")
        return most

    def _show(self, visit: Visit, row: int, handles: OpenFiles) -> None:
        try:
            stamp = self._stamps[row]
            visit(row, handles[row], stamp.size if stamp else 0)
        except UnreadableFile as reason:
            self._lose(row, reason)

    def _fill(self, reader: Reader, row: int, line: NDArray[Any], pieces: Sequence[Piece]) -> None:
        """One row's part of a block; all NaN once the file is lost."""
        try:
            for piece in pieces if row not in self.lost else ():
                leaf = self._averaged[piece.leaf]
                reader.floats(row, leaf, piece.start, piece.stop, line[piece.columns])
        except UnreadableFile as reason:
            self._lose(row, reason)
        if row in self.lost:
            line.fill(np.nan)

    def _lose(self, row: int, reason: UnreadableFile | str) -> None:
        self._lost[row] = Unusable(NO_USABLE_FILE, str(reason), shown(self.paths[row]))

    def _read_carried(self, reader: Reader) -> None:
        """Integers are few as a rule: read along with the first pass, they need no opening of their own."""
        sizes = {
            k: int(np.prod(shape, dtype=object))
            for k, (_, code, shape) in enumerate(self._leaves)
            if not is_float(code)
        }
        if self._carried is not None or not sizes or 8 * self.n * sum(sizes.values()) > self._budget // 8:
            return
        found = {k: np.zeros((self.n, size), storage(self._leaves[k][1])) for k, size in sizes.items()}
        for row in self._places:
            try:
                for k, size in sizes.items() if row not in self.lost else ():
                    found[k][row] = reader.stored(row, k, 0, size)
            except UnreadableFile as reason:
                self._lose(row, reason)
        self._carried = found

    def _carry(self, weights: Weights) -> dict[int, NDArray[Any]]:
        """Integers and bools by leaf, settled by the rows that have weight and can still be read."""
        carried: dict[int, NDArray[Any]] = {}
        with self._reader() as reader:
            for k, (_, code, shape) in enumerate(self._leaves):
                if not is_float(code):
                    out = np.zeros(shape, storage(code))
                    self._settle_leaf(reader, k, out.reshape(-1), weights)
                    carried[k] = out
        return carried

    def _settle_leaf(self, reader: Reader, k: int, out: NDArray[Any], weights: Weights) -> None:
        rule = majority if out.dtype.kind == "b" else lower_median
        rows = [row for row in np.flatnonzero(weights > 0).tolist() if row not in self.lost]
        if not rows or not len(out):
            return
        if self._carried is not None:
            out[:] = rule(self._carried[k][rows], weights[rows])
            return
        for columns in strips(len(out), len(rows), 8, self._budget // 8):
            read = {}
            for row in rows:
                try:
                    if row not in self.lost:
                        read[row] = reader.stored(row, k, columns.start, columns.stop)
                except UnreadableFile as reason:
                    self._lose(row, reason)
            if read:
                out[columns] = rule(np.stack(list(read.values())), weights[list(read)])


def suffix_of(path: str) -> str:
    """What decides how a file is read."""
    return os.path.splitext(path)[1].lower()


def quoted(suffix: str) -> str:
    """A suffix fit for a sentence, whatever a sender made of it."""
    return shown(suffix[:20]) or "nameless"
