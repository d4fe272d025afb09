"""Pass 1 over rows in parts: the Gram matrix of all columns, and of every part that is met in pieces.

Parts of one width side by side, the rows of a tensor, are measured in pass 2, when they are averaged: their
Gram matrices together may be larger than the rows. Here all of such a run share one matrix.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from randeigen.backend.arrays import as_host_array
from randeigen.backend.device_blocks import as_matrices
from randeigen.errors import BadParameter
from randeigen.geometry.gram import GramGeometry
from randeigen.geometry.gram_accumulator import NOT_FINITE, GramAccumulator
from randeigen.geometry.products import added
from randeigen.partition import Partition
from randeigen.types import Index, Progress, Rows

MAX_GRAM_NUMBERS = 2**27  # numbers of all Gram matrices that are kept between the passes


class MeasuredParts:
    """All that is known of rows in parts after one reading."""

    def __init__(self, rows: Rows, partition: Partition, seed: int, progress: Progress | None) -> None:
        self.partition = partition
        keys = sorted({run.part for run in partition.runs})  # of a long run, its first part
        if len(keys) * rows.n**2 > MAX_GRAM_NUMBERS:
            raise BadParameter(
                f"partition has {len(keys)} groups of columns, too many for {rows.n} rows; give fewer, or "
                "equal ones side by side, as columns:NUMBER cuts them."
            )
        seeds = np.random.default_rng(seed).integers(2**63, size=len(keys)).tolist()
        self._accumulators = {key: GramAccumulator(rows.n, own) for key, own in zip(keys, seeds, strict=True)}
        first, *others = self._accumulators.values()
        for each in others:
            each.start = first.start
        with np.errstate(all="ignore"):
            for columns, block in as_matrices(rows.blocks()):
                self._add(columns, as_host_array(block))
                if progress:
                    progress("measuring", columns.stop, rows.d)
            self.whole = self._finish()
        self.unusable = self._unusable | dict(rows.unusable)

    def _add(self, columns: slice, block: Any) -> None:
        for run in self.partition.within(columns):
            here = slice(max(run.start, columns.start), min(run.stop, columns.stop))
            some = block[:, here.start - columns.start : here.stop - columns.start]
            self._accumulators[run.part].add(here, some)

    def _finish(self) -> GramGeometry:
        every = list(self._accumulators.values())
        unusable = reduce(np.logical_or, (each.unusable for each in every))
        whole = GramAccumulator(every[0].n, 0)
        whole.total = reduce(added, (each.total for each in every))
        whole.start, whole.precision = every[0].start, max(each.precision for each in every)
        whole.underflow = sum(each.underflow for each in every)
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
                if (key in runs) == batched
            }


def exponent_of(geometry: GramGeometry) -> int:
    """Of its unit, which is a power of two."""
    return math.frexp(geometry.scale)[1] - 1
