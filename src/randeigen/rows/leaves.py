"""Leaves laid end to end: which columns of a row are whose, and the answer as it is written into leaves.

And votes. Integers and bools are decided by the rows' weights; a form, a structure or a format is the one
that more than half of the rows share: no one sender sets it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import as_writable_array, copy, is_tensor, joined, kind, store
from randeigen.backend.chunking import block_columns
from randeigen.backend.device_blocks import Leaves
from randeigen.backend.host_leaves import (
    as_lines,
    cast_array,
    cast_lines,
    cast_vector,
    cast_vectors,
    nan_line,
    side_by_side,
)
from randeigen.types import Weights

Ballot = TypeVar("Ballot")

# Sums of weights carry rounding; half is reached a little early, so that ties fall to the lower value.
HALF_OF_WEIGHT = 0.5 * (1 - 1e-9)


class LeafSlice(NamedTuple):
    """The entries of one leaf that lie in a block."""

    leaf: int
    start: int  # the first entry of the leaf, in C order
    stop: int  # one past the last
    at: int  # its first column within the block

    @property
    def columns(self) -> slice:
        """Its columns within the block."""
        return slice(self.at, self.at + self.stop - self.start)


class Layout:
    """Leaves of these shapes as one long row."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self._ends = list(accumulate(math.prod(shape) for shape in shapes))
        self.d = self._ends[-1] if self._ends else 0

    def leaf_slices(self, columns: slice) -> list[LeafSlice]:
        """The leaves that a block of these columns runs through, in order."""
        slices, column = [], columns.start
        leaf = bisect_right(self._ends, column)
        while column < columns.stop:
            begin = self._ends[leaf - 1] if leaf else 0
            stop = min(self._ends[leaf], columns.stop)
            if stop > column:
                slices.append(LeafSlice(leaf, column - begin, stop - begin, column - columns.start))
            column, leaf = stop, leaf + 1
        return slices


def flat(leaf: Any, start: int, stop: int) -> Any:
    """Entries start..stop of a leaf in C order; copies no more than it returns."""
    if leaf.ndim == 1:
        return leaf if stop - start == len(leaf) else leaf[start:stop]
    if leaf.is_contiguous() if is_tensor(leaf) else leaf.flags.c_contiguous:
        return leaf.reshape(-1)[start:stop]
    inner = math.prod(leaf.shape[1:])
    first, last = start // inner, (stop - 1) // inner
    if first == last:
        return flat(leaf[first], start - first * inner, stop - first * inner)
    parts = [
        flat(leaf[first], start - first * inner, inner),
        leaf[first + 1 : last].reshape(-1),
        flat(leaf[last], 0, stop - last * inner),
    ]
    return joined(parts)


class LeafOfRows:
    """One leaf of all rows in main memory, or several as one: an (n, k) array, or lines that lie anywhere."""

    def __init__(self, lines: NDArray[Any] | list[Any]) -> None:
        self._lines = lines
        self._are_arrays = self._are_vectors = False  # whether all lines are such, and cast by one call
        self._dtype: np.dtype[Any] | None = None  # of arrays that are all of one
        if isinstance(lines, np.ndarray):
            return
        shapes, dtypes = {line.shape for line in lines}, {line.dtype for line in lines}
        if set(map(type, lines)) == {np.ndarray}:
            of_bits = any(dtype.kind == "i" for dtype in dtypes)
            self._are_arrays = shapes == {(1, self.size)} and (len(dtypes) == 1 or not of_bits)
            self._dtype = dtypes.pop() if len(dtypes) == 1 else None
        elif len(shapes) == 1 and not any(isinstance(line, np.ndarray) or line.is_neg() for line in lines):
            self._are_vectors = lines[0].ndim == 1

    @property
    def size(self) -> int:
        """Numbers of each row."""
        line = self._lines[0]
        return int(line.size if isinstance(line, np.ndarray) else line.numel())

    @classmethod
    def as_they_lie(cls, leaves: Sequence[Any], rows: Sequence[int], n: int) -> LeafOfRows:
        """Each of the leaves of these rows among n, where it is; those of the other rows are NaN."""
        lines = as_lines(leaves)
        if len(rows) < n:
            some, lines = lines, [nan_line(lines[0], math.prod(leaves[0].shape))] * n
            for row, line in zip(rows, some, strict=True):
                lines[row] = line
        return cls(lines)

    @classmethod
    def copied(
        cls, leaves: Sequence[Sequence[Any]], rows: Sequence[int], n: int, dtype: np.dtype[Any]
    ) -> LeafOfRows:
        """A copy of several leaves of these rows, end to end: of small ones the quicker way to read them."""
        ends = list(accumulate(math.prod(each[0].shape) for each in leaves))
        lines = np.empty((len(rows), ends[-1]), dtype)
        for each, start, end in zip(leaves, [0, *ends], ends, strict=False):
            side_by_side(lines[:, start:end], each)
        if len(rows) < n:
            some, lines = lines, np.full((n, ends[-1]), math.nan, dtype)
            lines[rows] = some
        return cls(lines)

    def copy_to(self, out: NDArray[Any], rows: Sequence[int], start: int, stop: int) -> None:
        """Cast entries start..stop of these rows into an array."""
        lines = self._lines
        follow = slice(rows.start, rows.stop, rows.step) if isinstance(rows, range) else None
        if isinstance(lines, np.ndarray):
            cast_array(out, lines[list(rows) if follow is None else follow, start:stop])
            return
        some = [lines[row] for row in rows] if follow is None else lines[follow]
        whole = stop - start == self.size
        if self._are_arrays:
            cast_lines(out, some if whole else [line[:, start:stop] for line in some], self._dtype)
        elif self._are_vectors:
            cast_vectors(out, some if whole else [line[start:stop] for line in some])
        else:
            for target, line in zip(out, some, strict=True):
                cast_vector(target, flat(line, start, stop))


class OutputBuffer:
    """The answer while it is being written, column by column, into leaves of its own."""

    def __init__(self, layout: Layout, leaves: Sequence[Any], finish: Callable[[Weights], Any]) -> None:
        self._layout = layout
        self._flat = [as_writable_array(leaf).reshape(-1) for leaf in leaves]
        self._finish = finish

    def write(self, columns: slice, values: Any) -> float:
        """Store the answer for some columns, cast to each leaf's dtype; how far that moved them."""
        rounding = 0.0
        for entries in self._layout.leaf_slices(columns):
            leaf = self._flat[entries.leaf][entries.start : entries.stop]
            rounding = math.hypot(rounding, store(leaf, values[entries.columns]))
        return rounding

    def memory_for(self, columns: slice, like: Any) -> Any:
        """The answer's own memory for these columns, or None if it does not hold numbers like these.

        For a block of leaves it is a list, one for each.
        """
        slices = self._layout.leaf_slices(columns)
        memory = [self._flat[entries.leaf][entries.start : entries.stop] for entries in slices]
        if any(leaf.dtype != like.dtype for leaf in memory):
            return None
        if isinstance(like, Leaves):
            return memory
        return memory[0] if len(memory) == 1 else None

    def finish(self, weights: Weights) -> Any:
        """The answer in the caller's form; `weights` decide integers and bools."""
        return self._finish(np.asarray(weights, np.float64))


def decide_by_vote(
    out: Any, voters: int, budget: int, read: Callable[[slice], tuple[NDArray[Any], Weights]]
) -> None:
    """Fill a flat integer or bool leaf with what the rows' weights decide, some columns at a time.

    `read(columns)` gives the (m, b) values of at most `voters` rows and their weights; columns of which no
    row can be read any more keep what they hold.
    """
    decide = majority if kind(out.dtype) == "bool" else lower_median
    for columns in block_columns(len(out), voters, 8, budget) if len(out) and voters else ():
        values, weights = read(columns)
        if len(values):
            copy(out[columns], decide(values, weights))


def lower_median(values: NDArray[Any], weights: Weights) -> NDArray[Any]:
    """Per column of (m, b) integers, the least value that half the weight does not exceed."""
    order = np.argsort(values, axis=0, kind="stable")
    below = np.cumsum(weights[order], axis=0)
    index = (below >= HALF_OF_WEIGHT * weights.sum()).argmax(axis=0)
    chosen = np.take_along_axis(order, index[None], axis=0)
    return np.asarray(np.take_along_axis(values, chosen, axis=0)[0])


def majority(values: NDArray[Any], weights: Weights) -> NDArray[np.bool_]:
    """Per column of (m, b) bools, whether more than half the weight is True; False in a tie."""
    return np.asarray(weights @ (values == 0) < HALF_OF_WEIGHT * weights.sum())


def winner_of(ballots: Counter[Ballot], voters: int) -> Ballot | None:
    """What more than half of the voters chose, or None."""
    for ballot, count in ballots.most_common(1):
        if 2 * count > voters:
            return ballot
    return None
