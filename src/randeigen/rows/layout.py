"""Which columns of a row belong to which leaf: leaves are laid end to end."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


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
