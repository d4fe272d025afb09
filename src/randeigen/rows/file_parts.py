"""Large files in parts: each thread reads what it works on next, by one call for all rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.host_leaves import HostLeaves
from randeigen.rows.formats.reader import Reader
from randeigen.rows.leaves import Layout, LeafSlice

BLOCKS_TOGETHER = 8  # blocks that threads share before they meet


def joined_cuts(cuts: Sequence[slice], segment: int, most: int) -> Iterator[slice]:
    """Up to so many blocks as one: within one segment, or whole segments that are a block wide."""
    width = cuts[0].stop - cuts[0].start if cuts else 1
    together = segment if segment > width else sys.maxsize
    for _, inside in groupby(cuts, lambda columns: columns.start // together):
        some = list(inside)
        for i in range(0, len(some), most):
            yield slice(some[i].start, some[i : i + most][-1].stop)


@dataclass(frozen=True)
class FileParts:
    """One pass over the numbers that are averaged, of which nothing is read before a thread takes it.

    What a thread has read is still in its core's cache when it works on that, and none waits for another.
    """

    reader: Reader
    n: int
    layout: Layout
    averaged: Sequence[int]  # which of the files' leaves these are
    unusable: Mapping[int, str]
    # Writes some entries of a row into a line; NaN, and the row becomes unusable, where they cannot be read.
    fill_line: Callable[[int, NDArray[Any], Sequence[LeafSlice]], None]

    def blocks(
        self, chosen: Sequence[slice], segment: int, dtype: np.dtype[Any]
    ) -> Iterator[tuple[slice, HostLeaves]]:
        """These columns, some blocks at a time."""
        width = chosen[0].stop - chosen[0].start if chosen else 1
        for cut in joined_cuts(chosen, segment, BLOCKS_TOGETHER):
            columns = range(cut.start, cut.stop)
            yield cut, HostLeaves(self._fill, range(self.n), columns, dtype, self._fill_few, width)

    def _fill(self, out: NDArray[Any], rows: Sequence[int], columns: slice) -> None:
        """Write these columns of some rows."""
        slices = self.layout.leaf_slices(columns)
        if rows != range(self.n):
            for line, row in zip(out, rows, strict=True):
                self.fill_line(row, line, slices)
            return
        usable = [row for row in rows if row not in self.unusable]
        for entries in slices:
            leaf, here = self.averaged[entries.leaf], out[:, entries.columns]
            for row in self.reader.lines(usable, leaf, entries.start, here):
                self.fill_line(row, here[row], [entries._replace(at=0)])
        out[list(self.unusable)] = np.nan

    def _fill_few(self, out: NDArray[Any], rows: Sequence[int], columns: range) -> None:
        """Write columns that lie far apart, those of a leaf by one call."""
        slices = [
            self.layout.leaf_slices(slice(column, column + 1))[0]._replace(at=at)
            for at, column in enumerate(columns)
        ]
        left = dict.fromkeys(rows)
        if rows == range(self.n):
            left = dict.fromkeys(self.unusable)
            usable = [row for row in rows if row not in left]
            for k, group in groupby(slices, lambda entries: entries.leaf):
                some = list(group)
                here = out[:, some[0].at : some[-1].at + 1]
                starts = [entries.start for entries in some]
                left |= dict.fromkeys(self.reader.few(usable, self.averaged[k], starts, here))
        for line, row in zip(out, rows, strict=True):
            if row in left:
                self.fill_line(row, line, slices)
