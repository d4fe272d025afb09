"""Rows that are files, read block by block. What a file says about itself is evidence, never an exception."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import FileIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.errors import BadRows
from randeigen.rows import npy, npz, safetensors
from randeigen.rows.disk import (
    Entry,
    Handles,
    Place,
    Refused,
    Stamp,
    is_float,
    nbytes,
    open_regular,
    quote,
    shown,
    stamp_of,
    storage,
)
from randeigen.rows.layout import Draft, Layout, Piece, lower_median, majority, strips, width
from randeigen.rows.reader import Reader, Structure
from randeigen.types import Answer, Block, Weights

FORMATS: Mapping[str, Callable[[FileIO], list[Entry]]] = {
    ".safetensors": safetensors.inspect,
    ".npz": npz.inspect,
    ".npy": npy.inspect,
}


class Files:
    """n files of one structure, the one most of them share; the others are lost, with the reason."""

    def __init__(self, paths: Sequence[str], block_bytes: int, multiple: int = 1) -> None:
        self.paths = list(paths)
        self._lost: dict[int, str] = {}
        self.lost: Mapping[int, str] = self._lost  # grows when a file fails during a pass
        self._inspect = FORMATS[suffix_of(self.paths)]
        self._single = suffix_of(self.paths) == ".npy"
        self._budget = block_bytes
        self._multiple = multiple
        self._leaves = self._template()
        self._stamps, self._places = self._open_all()
        self._known = set(self._lost)
        self.n: int = len(self.paths)
        self._averaged = [k for k, (_, code, _) in enumerate(self._leaves) if is_float(code)]
        self._layout = Layout([self._leaves[k][2] for k in self._averaged])
        self.d: int = self._layout.d
        self.carries = len(self._averaged) < len(self._leaves)
        self.dtypes: dict[str, str] = {name: code for name, code, _ in self._leaves}
        if not self.d:
            raise BadRows(f"{self._example()} holds no floating-point numbers; pass files of float arrays.")
        wide = any(storage(self._leaves[k][1]).itemsize >= 8 for k in self._averaged)
        self._work = np.dtype(np.float64 if wide else np.float32)

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        """Strips read into one buffer; lost rows are NaN."""
        shape = self.d, self.n, self._work.itemsize, self._budget, self._multiple
        buffer = np.empty((self.n, width(*shape)), self._work)
        self._known = set(self._lost)
        with Handles(self.paths, self._stamps) as handles:
            reader = Reader(handles, self._places, self._leaves)
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

        return Draft(self._layout, list(averaged.values()), settle)

    def changed(self) -> list[int]:
        """Rows whose file is not the one that was opened, or that failed since the latest pass began."""
        found = [row for row in self._lost if row not in self._known]
        for row, stamp in enumerate(self._stamps):
            try:
                now = os.stat(self.paths[row]) if stamp else None
            except OSError:
                found.append(row)
                continue
            if now and stamp != (now.st_size, now.st_mtime_ns):
                found.append(row)
        return sorted(set(found))

    def _fill(self, reader: Reader, row: int, line: NDArray[Any], pieces: Sequence[Piece]) -> None:
        """One row's part of a block; all NaN once the file is lost."""
        try:
            for piece in pieces if row not in self.lost else ():
                leaf = self._averaged[piece.leaf]
                reader.floats(row, leaf, piece.start, piece.stop, line[piece.columns])
        except Refused as reason:
            self._lose(row, reason)
        if row in self.lost:
            line.fill(np.nan)

    def _lose(self, row: int, reason: Refused | str) -> None:
        self._lost[row] = f"no usable file: {shown(self.paths[row])} {reason}"

    def _inspected(self, row: int) -> tuple[Stamp, list[Entry]] | None:
        """What a file declares, or None and a reason in `lost`."""
        try:
            with open_regular(self.paths[row]) as file:
                return stamp_of(file), self._inspect(file)
        except Refused as reason:
            self._lose(row, reason)
            return None

    def _template(self) -> Structure:
        """The structure most readable files share: no one sender can set it, not even the first.

        Only digests are kept while counting, so that a header of a million names costs nothing later.
        """
        votes: dict[int, tuple[bytes, bytes]] = {}
        for row in range(len(self.paths)):
            if found := self._inspected(row):
                votes[row] = digests(found[1])
        if not votes:
            raise BadRows(
                f"none of the {len(self.paths):,} files can be read: row 0 is {self.lost[0]}; "
                "pass files of one model's numbers."
            )
        ballots = Counter(structure for structure, _ in votes.values())
        winner, count = ballots.most_common(1)[0]
        if 2 * count <= len(votes):
            raise BadRows(self._no_majority(ballots, {row: vote[0] for row, vote in votes.items()}))
        orders = Counter(order for structure, order in votes.values() if structure == winner)
        order = orders.most_common(1)[0][0]
        first = next(row for row, vote in votes.items() if vote == (winner, order))
        found = self._inspected(first)
        if found is None or digests(found[1]) != (winner, order):
            raise BadRows(f"{self.paths[first]} changed while it was read; pass files that are complete.")
        return tuple(entry.structure for entry in found[1])

    def _open_all(self) -> tuple[list[Stamp | None], list[list[Place]]]:
        """Where each file keeps each leaf of the template; those that differ from it are lost."""
        stamps: list[Stamp | None] = [None] * len(self.paths)
        places: list[list[Place]] = [[]] * len(self.paths)
        for row in range(len(self.paths)):
            found = None if row in self.lost else self._inspected(row)
            if found is None:
                continue
            entries = {entry.name: entry for entry in found[1]}
            if reason := difference(self._leaves, entries):
                self._lose(row, reason)
                continue
            stamps[row] = found[0]
            places[row] = [entries[name].place for name, _, _ in self._leaves]
        return stamps, places

    def _no_majority(self, ballots: Counter[bytes], votes: Mapping[int, bytes]) -> str:
        groups = []
        for ballot, count in ballots.most_common(4):
            row = next(row for row, vote in votes.items() if vote == ballot)
            groups.append(f"{count:,} like {shown(self.paths[row])} ({self._summary(row)})")
        more = f" and {len(ballots) - 4:,} more kinds" if len(ballots) > 4 else ""
        return (
            f"more than half the files must share names, shapes and dtypes, found {', '.join(groups)}{more}; "
            "pass files of one model."
        )

    def _summary(self, row: int) -> str:
        found = self._inspected(row)
        entries = found[1] if found else []
        size = sum(nbytes(entry.code, entry.shape) // storage(entry.code).itemsize for entry in entries)
        return f"{len(entries):,} arrays, {size:,} numbers"

    def _example(self) -> str:
        return self.paths[next(row for row, stamp in enumerate(self._stamps) if stamp)]

    def _carry(self, weights: Weights) -> dict[int, NDArray[Any]]:
        """Integers and bools, settled by the rows that have weight and can still be read."""
        carried: dict[int, NDArray[Any]] = {}
        with Handles(self.paths, self._stamps) as handles:
            reader = Reader(handles, self._places, self._leaves)
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
        for columns in strips(len(out), len(rows), 8, self._budget // 8):
            read = {}
            for row in rows:
                try:
                    if row not in self.lost:
                        read[row] = reader.stored(row, k, columns.start, columns.stop)
                except Refused as reason:
                    self._lose(row, reason)
            if read:
                out[columns] = rule(np.stack(list(read.values())), weights[list(read)])


def suffix_of(paths: Sequence[str]) -> str:
    """The one suffix all paths share, if it is a format we read."""
    suffixes = [os.path.splitext(path)[1].lower() for path in paths]
    for row, suffix in enumerate(suffixes):
        if suffix not in FORMATS:
            known = ", ".join(FORMATS)
            raise BadRows(f"row {row}, {paths[row]}, is no file we read; pass paths that end in {known}.")
        if suffix != suffixes[0]:
            raise BadRows(f"row {row} is a {suffix} file, row 0 a {suffixes[0]} file; pass one format.")
    return suffixes[0]


def digests(entries: Sequence[Entry]) -> tuple[bytes, bytes]:
    """What a file votes for: its structure whatever the order, and its order."""
    order = [entry.structure for entry in entries]
    return digest(sorted(order)), digest(order)


def digest(thing: object) -> bytes:
    """A short stand-in for a structure of any size."""
    return hashlib.sha256(repr(thing).encode()).digest()


def difference(expected: Structure, found: Mapping[str, Entry]) -> str | None:
    """How a file departs from the others, or None: the first difference only."""
    for name, code, shape in expected:
        if name not in found:
            return f"has no array {quote(name)}, most files have one"
        other = found[name]
        if (other.code, other.shape) != (code, shape):
            array = f"array {quote(name)}" if name else "an array"
            return f"has {array} of {other.code} {list(other.shape)}, most files have {code} {list(shape)}"
    names = {name for name, _, _ in expected}
    extra = next((name for name in found if name not in names), None)
    return None if extra is None else f"has array {quote(extra)}, most files have none of that name"
