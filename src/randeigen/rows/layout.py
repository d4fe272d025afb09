"""Columns, and where they lie: leaves laid end to end, cut into strips."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from randeigen.rows.arrays import apart, copy, in_memory
from randeigen.types import Weights

# Sums of weights carry rounding; half is reached a little early, so that ties fall to the lower value.
HALF = 0.5 * (1 - 1e-9)


class Piece(NamedTuple):
    """Where a strip of columns meets one leaf."""

    leaf: int
    start: int  # first and last entry of the leaf, in C order
    stop: int
    at: int  # its first column within the strip

    @property
    def columns(self) -> slice:
        """Its columns within the strip."""
        return slice(self.at, self.at + self.stop - self.start)


class Layout:
    """Leaves of these shapes as one long row."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self._ends = list(accumulate(math.prod(shape) for shape in shapes))
        self.d = self._ends[-1] if self._ends else 0

    def pieces(self, columns: slice) -> list[Piece]:
        """The leaves a strip runs through, in order."""
        found, column = [], columns.start
        leaf = bisect_right(self._ends, column)
        while column < columns.stop:
            begin = self._ends[leaf - 1] if leaf else 0
            stop = min(self._ends[leaf], columns.stop)
            if stop > column:
                found.append(Piece(leaf, column - begin, stop - begin, column - columns.start))
            column, leaf = stop, leaf + 1
        return found


def strips(d: int, n: int, itemsize: int, budget: int, multiple: int = 1) -> Iterator[slice]:
    """Slices over d columns, each as wide as n rows fit the budget."""
    step = width(d, n, itemsize, budget, multiple)
    return (slice(start, min(start + step, d)) for start in range(0, d, step))


def width(d: int, n: int, itemsize: int, budget: int, multiple: int = 1) -> int:
    """Columns in a strip: within the budget, but a multiple of `multiple` and, if possible, of 1024."""
    most = max(multiple, budget // (n * itemsize))
    step = math.lcm(multiple, 1024) if most >= math.lcm(multiple, 1024) else multiple
    return min(d, most - most % step)


class Draft:
    """The answer while it is being written, column by column, into leaves of its own."""

    def __init__(self, layout: Layout, leaves: Sequence[Any], settle: Callable[[Weights], Any]) -> None:
        self._layout = layout
        self._flat = [in_memory(leaf).reshape(-1) for leaf in leaves]
        self._settle = settle

    def write(self, columns: slice, values: Any) -> float:
        """Store the answer for some columns, cast to each leaf's dtype; how far that moved them."""
        moved = 0.0
        for piece in self._layout.pieces(columns):
            stored, given = self._flat[piece.leaf][piece.start : piece.stop], values[piece.columns]
            copy(stored, given)
            if stored.dtype != given.dtype:
                moved = math.hypot(moved, apart(stored, given))
        return moved

    def place(self, columns: slice, like: Any) -> Any:
        """The answer's own memory for these columns, or None if it does not hold numbers like these."""
        pieces = self._layout.pieces(columns)
        leaf = self._flat[pieces[0].leaf]
        return (
            leaf[pieces[0].start : pieces[0].stop] if len(pieces) == 1 and leaf.dtype == like.dtype else None
        )

    def finish(self, weights: Weights) -> Any:
        """The caller's form; `weights` settle integers and bools."""
        return self._settle(np.asarray(weights, np.float64))


def lower_median(values: NDArray[Any], weights: Weights) -> NDArray[Any]:
    """Per column of (m, b) integers, the least value that half the weight does not exceed."""
    order = np.argsort(values, axis=0, kind="stable")
    mass = np.cumsum(weights[order], axis=0)
    index = (mass >= HALF * weights.sum()).argmax(axis=0)
    chosen = np.take_along_axis(order, index[None], axis=0)
    return np.asarray(np.take_along_axis(values, chosen, axis=0)[0])


def majority(values: NDArray[Any], weights: Weights) -> NDArray[np.bool_]:
    """Per column of (m, b) bools, what more than half the weight says; False in a tie."""
    return np.asarray(weights @ (values == 0) < HALF * weights.sum())
