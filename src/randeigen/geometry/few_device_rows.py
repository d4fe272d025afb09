"""The Gram matrix of few rows on a GPU, on the host and there: a GPU goes through a rule's rounds by itself.

Rounds take the host longer than all else in a call: of a hundred rows it is LAPACK, of ten Python itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from randeigen.backend.arrays import to_host_float64
from randeigen.backend.batched import DeviceCloud, FilterRounds, SoftFilter
from randeigen.backend.device_blocks import takes
from randeigen.geometry.batched_eigen import ROUNDING
from randeigen.geometry.gram import (
    CENTRING_ROUNDING,
    SMALLEST_MEAN_SQUARE,
    UNDERFLOW,
    GramGeometry,
    Index,
)
from randeigen.geometry.gram_accumulator import GramAccumulator
from randeigen.geometry.products import UNSET, Pivot, ScaledGram
from randeigen.types import Array, Block

MIN_FILTERED_ROWS, MAX_FILTERED_ROWS = 4, 128  # rows whose rounds a GPU goes through in one launch


class FewDeviceRows(GramAccumulator):
    """Accumulates on the host, and keeps the Gram matrix on the device while that is the same."""

    there: Any = None
    most_compared = MAX_FILTERED_ROWS  # their coins are not needed otherwise

    def _add_from(self, block: Block, pivot_rows: Pivot | None) -> bool:
        self.there = None
        if not takes(block):
            return super()._add_from(block, pivot_rows)
        from randeigen.backend.cuda import gram_on_device

        gram, exponent, precision = gram_on_device(block, pivot_rows, self.norms)
        exponents, is_first = np.zeros(self.n + 1, np.int64), self._is_empty
        exponents[-1] = UNSET if pivot_rows is None else exponent
        measured = ScaledGram(to_host_float64(gram), exponents)
        if not self._add_measured(block, pivot_rows, measured, precision):
            self.norms = np.sqrt(measured.gram.diagonal()[:-1]) if pivot_rows is None else self.norms
            return False
        self.there = gram if is_first and self.total.gram is measured.gram else None
        return True

    def geometry(self) -> GramGeometry:
        """The finished matrix. Lines of unusable rows are zero."""
        whole = super().geometry()
        if self.there is None or whole.scale != 1 or whole.beyond is not None or self.unusable.any():
            return whole
        return FilteredGram(
            whole.gram, whole.prior_weights, whole.directions,
            precision=whole.precision, floor=whole.floor, there=self.there,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class FilteredGram(GramGeometry, DeviceCloud):
    """The exact Gram matrix, the same on a GPU, where rounds are gone through."""

    there: Any = None  # (n+1, n+1) on the device; the origin's line may be at another scale

    def filtered_rounds(self, f: int, rule: SoftFilter) -> FilterRounds | None:
        if self.there is None:
            return None
        from randeigen.backend.cuda.one_cloud import rounds_of
        from randeigen.backend.cuda.spectral_filter import Limits

        limits = Limits(
            CENTRING_ROUNDING, ROUNDING, SMALLEST_MEAN_SQUARE, UNDERFLOW, self.precision, self.floor
        )
        rounds = rounds_of(self.there, self.prior_weights, f, rule, limits)
        is_whole = rounds.stop and np.isfinite(rounds.weights[-1].sum())
        return rounds if is_whole else None  # else the host goes through them, with more care

    def pick_by_krum(self, apart: Array, f: int, count: int) -> Index | None:
        from randeigen.backend.cuda.krum_picks import krum_picks

        return None if self.there is None else krum_picks(apart, f, count, self.there.device)

    def _take(self, index: Index) -> FilteredGram:
        return _alone(super()._take(index))

    def combine_rows(self, matrix: Array) -> GramGeometry:
        return _alone(super().combine_rows(matrix))


def _alone(other: GramGeometry) -> FilteredGram:
    """A matrix that was made of one on a GPU, without that."""
    assert isinstance(other, FilteredGram)
    return replace(other, there=None)
