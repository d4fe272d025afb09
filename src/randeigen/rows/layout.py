"""Columns, and where they lie: leaves laid end to end, cut into strips."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


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
