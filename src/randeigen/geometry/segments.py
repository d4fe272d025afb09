"""The Gram matrix as a sum over segments of columns, in an order that no division of the work changes.

Floating-point sums depend on their order. So columns are cut into segments that depend on the files alone,
each is measured with coins of its own, and segments are added up along a binary tree: a share of any run of
segments is kept as the largest subtrees it fills, and two halves of a subtree are added wherever they meet.
However many workers there are, and in whatever order their shares arrive, every sum is made of the same two
terms, so that the matrix is the same to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TypeAlias

import numpy as np

from randeigen.backend.arrays import as_host_array
from randeigen.backend.chunking import parallel_map
from randeigen.geometry.gram import GramGeometry
from randeigen.geometry.gram_accumulator import GramAccumulator
from randeigen.geometry.gram_share import GramShare
from randeigen.types import Block, Mask, Progress, Rows

Subtree: TypeAlias = tuple[int, int]  # (level, index): segments index·2^level up to (index + 1)·2^level


@dataclass(frozen=True)
class Segments:
    """Columns cut into segments of one width; the last may be narrower."""

    d: int
    width: int

    @property
    def count(self) -> int:
        return -(-self.d // self.width)

    def columns(self, first: int, last: int) -> slice:
        """The columns of the segments from `first` to before `last`."""
        return slice(min(first * self.width, self.d), min(last * self.width, self.d))

    def part(self, i: int, k: int) -> range:
        """The segments of part i of k: as even as segments allow; none where there are fewer than parts."""
        return range(i * self.count // k, (i + 1) * self.count // k)


class SegmentedGram:
    """Accumulates the exact Gram matrix segment by segment, in the order of the tree."""

    block_multiple = 1
    copies_parts = True

    def __init__(self, n: int, seed: int, segments: Segments) -> None:
        self._n, self._seed, self._segments = n, seed, segments
        self.unusable = np.zeros(n, dtype=bool)  # (n,) rows that hold NaN or infinity
        self._shares: dict[Subtree, GramShare] = {}
        self._current: tuple[int, GramAccumulator] | None = None  # a segment, and what was read of it

    def add(self, columns: slice, block: Block) -> None:
        """One block of columns, within one segment or several whole ones; blocks come in order."""
        first, width = columns.start // self._segments.width, self._segments.width
        if block.shape[1] > width:
            self._close()
            self._add_whole(range(first, first + -(-block.shape[1] // width)), block)
            return
        if self._current is None or self._current[0] != first:
            self._close()
            self._current = first, GramAccumulator(self._n, self._seed, first)
        self._current[1].add(columns, block)
        self.unusable |= self._current[1].unusable

    def _add_whole(self, segments: range, block: Block) -> None:
        """Segments that are narrow, each by a thread of its own, which copies it once."""
        start = segments.start * self._segments.width

        def measured(segment: int) -> GramAccumulator:
            columns = self._segments.columns(segment, segment + 1)
            accumulator = GramAccumulator(self._n, self._seed, segment)
            here = block[:, columns.start - start : columns.stop - start]
            accumulator.add(columns, as_host_array(here))
            return accumulator

        for segment, accumulator in zip(segments, parallel_map(measured, segments), strict=True):
            self._keep(segment, accumulator)
            self.unusable |= accumulator.unusable

    def shares(self) -> dict[Subtree, GramShare]:
        """What was measured, by subtree."""
        self._close()
        return self._shares

    def geometry(self) -> GramGeometry:
        """The finished matrix, if every segment was added. Lines of unusable rows are zero."""
        return whole(self.shares(), self._n).geometry(self._seed)

    def _close(self) -> None:
        if self._current is not None:
            self._keep(*self._current)
            self._current = None

    def _keep(self, segment: int, measured: GramAccumulator) -> None:
        columns = self._segments.columns(segment, segment + 1)
        share = GramShare(
            measured.total,
            measured.unusable,
            measured.precision,
            measured.underflow,
            columns.stop - columns.start,
        )
        join(self._shares, (0, segment), share)


def measure_segments(
    rows: Rows, seed: int, segments: Segments, progress: Progress | None = None
) -> dict[Subtree, GramShare]:
    """One reading of rows that hold some whole segments."""
    accumulator = SegmentedGram(rows.n, seed, segments)
    with np.errstate(all="ignore"):  # hostile numbers overflow; what they did is looked at afterwards
        for columns, block in rows.blocks():
            accumulator.add(columns, block)
            if progress:
                progress("measuring", columns.stop, rows.d)
        return accumulator.shares()


def join(shares: dict[Subtree, GramShare], at: Subtree, share: GramShare) -> None:
    """Put a share where it belongs, and add up every subtree of which both halves are there now."""
    level, index = at
    while (other := shares.pop((level, index ^ 1), None)) is not None:
        share = other + share if index % 2 else share + other
        level, index = level + 1, index // 2
    shares[level, index] = share


def whole(shares: Mapping[Subtree, GramShare], n: int) -> GramShare:
    """All shares added up, from the first column on."""
    in_order = sorted(shares, key=lambda at: at[1] << at[0])
    return reduce(add, (shares[at] for at in in_order), GramShare.of_nothing(n))


def unusable_in(shares: Mapping[Subtree, GramShare], n: int) -> Mask:
    """(n,) rows that are not finite in any of these shares."""
    unusable = np.zeros(n, dtype=bool)
    for share in shares.values():
        unusable |= share.unusable
    return unusable


def covered(shares: Mapping[Subtree, GramShare]) -> list[range]:
    """The runs of segments that these shares hold, in order; runs that touch are one."""
    runs: list[range] = []
    for first, last in sorted((index << level, (index + 1) << level) for level, index in shares):
        if runs and runs[-1].stop == first:
            runs[-1] = range(runs[-1].start, last)
        else:
            runs.append(range(first, last))
    return runs
