"""Pass 1 over rows in parts: the Gram matrix of all columns, and of every part that is met in pieces.

Parts of one width side by side, the rows of a tensor, are measured in pass 2, when they are averaged: their
Gram matrices together may be larger than the rows. Here all of such a run share one matrix. So do all narrow
parts, of fewer columns than rows: their columns are kept instead, which are fewer numbers than n×n.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np

from randeigen.backend.arrays import as_host, as_host_array
from randeigen.backend.chunking import HOST_GRAM_NUMBERS
from randeigen.backend.device_blocks import as_matrices
from randeigen.errors import BadParameter
from randeigen.geometry.batched_eigen import MAX_SQUARED_ROWS
from randeigen.geometry.gram import GramGeometry
from randeigen.geometry.gram_accumulator import NOT_FINITE, GramAccumulator
from randeigen.geometry.point_batch import numbers_of_cloud
from randeigen.geometry.products import added
from randeigen.partition import Partition, Run
from randeigen.parts.judging import MAX_BATCHED_SIZE
from randeigen.types import Array, Index, Progress, Rows

MAX_GRAM_NUMBERS = 2**27  # numbers of all Gram matrices that are kept between the passes
NARROW = -1  # the key of the Gram matrix of all narrow parts


class MeasuredParts:
    """All that is known of rows in parts after one reading."""

    def __init__(self, rows: Rows, partition: Partition, seed: int, progress: Progress | None) -> None:
        self.partition = partition
        self._columns: dict[int, list[Array]] = {part: [] for part in narrow_parts(partition, rows.n)}
        keys = sorted({self._key(run) for run in partition.runs})  # of a long run, its first part
        kept = sum(int(partition.widths[part]) for part in self._columns)
        if len(keys) * rows.n**2 + kept * rows.n > MAX_GRAM_NUMBERS:
            raise BadParameter(
                f"partition has {len(keys)} groups of columns, too many for {rows.n} rows; give fewer, or "
                "equal ones side by side, as columns:NUMBER cuts them."
            )
        self._seed = seed
        self._accumulators = {key: GramAccumulator(rows.n, seed, k) for k, key in enumerate(keys)}
        with np.errstate(all="ignore"):
            for columns, block in as_matrices(rows.blocks()):
                self._add(columns, as_host_array(block))
                if progress:
                    progress("measuring", columns.stop, rows.d)
            self.whole = self._finish()
        self.unusable = self._unusable | dict(rows.unusable)

    def _key(self, run: Run) -> int:
        return NARROW if run.part in self._columns else run.part

    def _add(self, columns: slice, block: Any) -> None:
        spans: list[tuple[int, int, int]] = []  # key, start, stop; narrow parts side by side are one
        for run in self.partition.within(columns):
            key, start, stop = self._key(run), max(run.start, columns.start), min(run.stop, columns.stop)
            if key == NARROW:
                some = block[:, start - columns.start : stop - columns.start]
                self._columns[run.part].append(np.array(as_host(some)))
                if spans and spans[-1][0] == key and spans[-1][2] == start:
                    start = spans.pop()[1]
            spans.append((key, start, stop))
        for key, start, stop in spans:
            some = block[:, start - columns.start : stop - columns.start]
            self._accumulators[key].add(slice(start, stop), some)

    def _finish(self) -> GramGeometry:
        every = list(self._accumulators.values())
        unusable = reduce(np.logical_or, (each.unusable for each in every))
        whole = GramAccumulator(every[0].n, self._seed)
        whole.total = reduce(added, (each.total for each in every))
        whole.precision = max(each.precision for each in every)
        whole.underflow = sum(each.underflow for each in every)
        whole.columns = sum(each.columns for each in every)
        for each in (whole, *every):
            each.unusable |= unusable
        self._unusable = {int(i): NOT_FINITE for i in np.flatnonzero(unusable)}
        return whole.geometry()

    def geometries(self, index: Index, *, batched: bool) -> dict[int, GramGeometry]:
        """Of these rows, in the unit of whole rows: the geometry of each long run, or of each other part."""
        exponent = exponent_of(self.whole)
        runs = {run.part for run in self.partition.runs if run.times > 1}
        with np.errstate(all="ignore"):
            return {
                key: each.geometry_in(exponent).take(index)
                for key, each in self._accumulators.items()
                if key != NARROW and (key in runs) == batched
            }

    def narrow_groups(self, index: Index, widening: int) -> Iterator[tuple[Index, Array]]:
        """Numbers of narrow parts, and (p, n, w) of these rows in them, with zeros beyond a part's columns.

        No part gets more than `widening` times its width.
        """
        widths = self.partition.widths
        left = sorted(self._columns, key=lambda part: int(widths[part]))
        while left:
            most = min(widening * widths[left[0]], widths[left[-1]])
            together = max(HOST_GRAM_NUMBERS // numbers_of_cloud(index.size, int(most)), 1)
            group = [part for part in left[:together] if widths[part] <= most]
            left = left[len(group) :]
            pieces = np.zeros((len(group), index.size, widths[group[-1]]), self._columns[group[0]][0].dtype)
            for piece, part in zip(pieces, group, strict=True):
                piece[:, : widths[part]] = np.hstack(self._columns[part])[index]
            yield np.array(group), pieces


def narrow_parts(partition: Partition, n: int) -> list[int]:
    """Parts of fewer columns than the n rows, all in one place, that are not among many of their width."""
    often = Counter(run.part for run in partition.runs)
    most = min(n - 1, MAX_BATCHED_SIZE) if n > MAX_SQUARED_ROWS else 0
    return [run.part for run in partition.runs if run.times == often[run.part] == 1 and run.width <= most]


def exponent_of(geometry: GramGeometry) -> int:
    """Of its unit, which is a power of two."""
    return math.frexp(geometry.scale)[1] - 1
