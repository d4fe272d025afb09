"""The Gram matrix of few rows on a GPU: on the host, with RandEigen's directions found where the rows are.

Rounds of a hundred rows take LAPACK longer than all else in a call. `foresee` has a GPU go through them in
one launch; a direction is taken from there where it is asked for under the same weights, and else found here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from randeigen.backend.arrays import to_host_float64
from randeigen.backend.batched import DeviceCloud, SoftFilter
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
from randeigen.types import Array, Block, TopDirection

MAX_FORESEEN_ROWS = 128  # rows whose rounds a GPU goes through in one launch
SAME_WEIGHTS = 1e-9  # of the heaviest row: weights that differ by less differ by rounding
EXACT = 1e-12  # of an eigenvalue: LAPACK's own rounding, for which nothing is allowed either


class FewDeviceRows(GramAccumulator):
    """Accumulates on the host, and keeps the Gram matrix on the device while that is the same."""

    there: Any = None
    most_compared = MAX_FORESEEN_ROWS  # their coins are not needed otherwise

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
        return ForeseenGram(
            whole.gram, whole.prior_weights, whole.directions,
            precision=whole.precision, floor=whole.floor, there=self.there,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class ForeseenGram(GramGeometry, DeviceCloud):
    """The exact Gram matrix, the same on a GPU, and what that has found out before it is asked for."""

    there: Any = None  # (n+1, n+1) on the device; the origin's line may be at another scale

    @cached_property
    def _ahead(self) -> list[Any]:
        return []  # rounds in the order in which they will be asked for

    def foresee(self, f: int, rule: SoftFilter) -> None:
        from randeigen.backend.cuda.one_cloud import rounds_of
        from randeigen.backend.cuda.spectral_filter import Limits

        if self.there is not None:
            limits = Limits(
                CENTRING_ROUNDING, ROUNDING, SMALLEST_MEAN_SQUARE, UNDERFLOW, self.precision, self.floor
            )
            self._ahead[:] = rounds_of(self.there, self.prior_weights, f, rule, limits)

    def pick_by_krum(self, apart: Array, f: int, count: int) -> Index | None:
        from randeigen.backend.cuda.krum_picks import krum_picks

        return None if self.there is None else krum_picks(apart, f, count, self.there.device)

    def _top(self, weights: Array, settled: float = 0.0, alone: bool = False) -> TopDirection:
        if self._ahead:
            _, *others = known = self._ahead[0]
            if abs(weights - known.weights).max() <= SAME_WEIGHTS * weights.max():
                del self._ahead[0]
                projections, variance, typical, allowance = others
                return TopDirection(
                    variance, projections, typical, allowance if allowance > EXACT * variance else 0.0
                )
        return super()._top(weights, settled, alone)

    def _take(self, index: Index) -> ForeseenGram:
        return _alone(super()._take(index))

    def combine_rows(self, matrix: Array) -> GramGeometry:
        return _alone(super().combine_rows(matrix))


def _alone(other: GramGeometry) -> ForeseenGram:
    """A matrix that was made of one on a GPU, without that."""
    assert isinstance(other, ForeseenGram)
    return replace(other, there=None)
