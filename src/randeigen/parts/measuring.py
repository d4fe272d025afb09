"""Pass 1 over rows in parts: the Gram matrix of all columns, and of every part that is met in pieces.

Parts of one width side by side, the rows of a tensor, are measured in pass 2, when they are averaged: their
Gram matrices together may be larger than the rows. Here all of such a run share one matrix.
"""

from __future__ import annotations

from dataclasses import replace
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

MAX_SCALE = 2.0**400  # of a part beside the whole: with more, what is squared overflows or vanishes


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
        whole.rng, whole.precision = every[0].rng, max(each.precision for each in every)
        whole.underflow = sum(each.underflow for each in every)
        for each in (whole, *every):
            each.unusable |= unusable
        self._unusable = {int(i): NOT_FINITE for i in np.flatnonzero(unusable)}
        return whole.geometry()

    def geometries(self, index: Index, unit: float, *, batched: bool) -> dict[int, GramGeometry]:
        """Of these rows, in this unit: the geometry of each long run, or of each part that is in none."""
        runs = {run.part for run in self.partition.runs if run.times > 1}
        with np.errstate(all="ignore"):
            found = {
                key: each.geometry().take(index)
                for key, each in self._accumulators.items()
                if (key in runs) == batched
            }
        return {key: _in_unit(each, unit) for key, each in found.items()}


def _in_unit(geometry: GramGeometry, unit: float) -> GramGeometry:
    """The same in another unit; where squares would not fit it, every row off the pivot is too far out."""
    scale = geometry.scale / unit
    if 1 / MAX_SCALE < scale < MAX_SCALE:
        return replace(geometry, scale=scale)
    return replace(geometry, scale=1.0, beyond=geometry.squared_norms_from_pivot() > 0)
