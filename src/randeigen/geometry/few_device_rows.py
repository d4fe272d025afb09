"""The Gram matrix of few rows on a GPU, on the host and there: a GPU goes through a rule's rounds by itself.

Rounds take the host longer than all else in a call: of a hundred rows it is LAPACK, of ten Python itself.
Where the rule is known they begin before the host has looked at the matrix, in case every row is as usual:
both are waited for once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from randeigen.backend.arrays import joined, to_host_float64
from randeigen.backend.batched import DeviceCloud, FilterRounds, RoundsAhead, SoftFilter
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

if TYPE_CHECKING:
    from randeigen.backend.cuda.spectral_filter import Limits

MIN_FILTERED_ROWS, MAX_FILTERED_ROWS = 4, 128  # rows whose rounds a GPU goes through in one launch


class EarlyRounds(NamedTuple):
    """Rounds that were gone through before anybody asked for them, and what was known then."""

    request: RoundsAhead
    limits: Limits
    rounds: FilterRounds


class FewDeviceRows(GramAccumulator):
    """Accumulates on the host, and keeps the Gram matrix on the device while that is the same."""

    there: Any = None
    early: EarlyRounds | None = None
    most_compared = MAX_FILTERED_ROWS  # their coins are not needed otherwise

    def __init__(self, n: int, seed: int, d: int = 0, ahead: RoundsAhead | None = None) -> None:
        """`ahead`: rounds that will be asked for, under equal weights, if a block of `d` columns is usual."""
        super().__init__(n, seed)
        self._d, self._ahead = d, ahead

    def _add_from(self, block: Block, pivot_rows: Pivot | None) -> bool:
        self.there = self.early = None
        if not takes(block):
            return super()._add_from(block, pivot_rows)
        from randeigen.backend.cuda import gram_on_device

        gram, exponent, precision = gram_on_device(block, pivot_rows, self.norms)
        exponents, is_first = np.zeros(self.n + 1, np.int64), self._is_empty
        exponents[-1] = UNSET if pivot_rows is None else exponent
        ahead = self._ahead if pivot_rows is None and block.shape[1] == self._d else None
        if ahead is None:
            measured = ScaledGram(to_host_float64(gram), exponents)
        else:
            measured = ScaledGram(self._with_rounds(gram, precision, ahead), exponents)
        if not self._add_measured(block, pivot_rows, measured, precision):
            self.norms = np.sqrt(measured.gram.diagonal()[:-1]) if pivot_rows is None else self.norms
            return False
        self.there = gram if is_first and self.total.gram is measured.gram else None
        return True

    def _with_rounds(self, gram: Any, precision: float, ahead: RoundsAhead) -> Array:
        """The matrix on the host, and with it the rounds that the device has gone through meanwhile."""
        from randeigen.backend.cuda.one_cloud import begin_rounds

        limits = _limits(precision, 0.0)
        begun = begin_rounds(gram, np.ones(self.n), *ahead, limits)
        both = to_host_float64(joined((gram.reshape(-1), begun.first_lines)))
        numbers = (self.n + 1) ** 2
        self.early = EarlyRounds(ahead, limits, begun.rounds(both[numbers:]))
        return both[:numbers].reshape(self.n + 1, -1)

    def geometry(self) -> GramGeometry:
        """The finished matrix. Lines of unusable rows are zero."""
        whole = super().geometry()
        if self.there is None or whole.scale != 1 or whole.beyond is not None or self.unusable.any():
            return whole
        return FilteredGram(
            whole.gram, whole.prior_weights, whole.directions,
            precision=whole.precision, floor=whole.floor, columns=whole.columns, there=self.there,
            early=self.early,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class FilteredGram(GramGeometry, DeviceCloud):
    """The exact Gram matrix, the same on a GPU, where rounds are gone through."""

    there: Any = None  # (n+1, n+1) on the device; the origin's line may be at another scale
    early: EarlyRounds | None = None

    def filtered_rounds(self, f: int, rule: SoftFilter) -> FilterRounds | None:
        if self.there is None:
            return None
        limits, request = _limits(self.precision, self.floor), RoundsAhead(f, rule)
        if self.early and self.early[:2] == (request, limits) and (self.prior_weights == 1).all():
            rounds = self.early.rounds
        else:
            from randeigen.backend.cuda.one_cloud import begin_rounds

            begun = begin_rounds(self.there, self.prior_weights, *request, limits)
            rounds = begun.rounds(to_host_float64(begun.first_lines))
        is_whole = rounds.stop and np.isfinite(rounds.weights[-1].sum())
        return rounds if is_whole else None  # else the host goes through them, with more care

    def pick_by_krum(self, apart: Array, f: int, count: int) -> Index | None:
        from randeigen.backend.cuda.krum_picks import krum_picks

        return None if self.there is None else krum_picks(apart, f, count, self.there.device)

    def _take(self, index: Index) -> FilteredGram:
        return _alone(super()._take(index))

    def combine_rows(self, matrix: Array) -> GramGeometry:
        return _alone(super().combine_rows(matrix))


def _limits(precision: float, floor: float) -> Limits:
    from randeigen.backend.cuda.spectral_filter import Limits

    return Limits(CENTRING_ROUNDING, ROUNDING, SMALLEST_MEAN_SQUARE, UNDERFLOW, precision, floor)


def _alone(other: GramGeometry) -> FilteredGram:
    """A matrix that was made of one on a GPU, without that."""
    assert isinstance(other, FilteredGram)
    return replace(other, there=None)
