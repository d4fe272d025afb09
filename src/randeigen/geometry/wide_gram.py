"""The exact Gram matrix of thousands of rows: in place, without copies of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from randeigen.backend.arrays import largest_magnitudes, to_host_float64
from randeigen.backend.chunking import GRAM_LINES_AT_ONCE
from randeigen.geometry.eigen import Operator
from randeigen.geometry.gram import START_DIRECTIONS, GramGeometry, top_direction_of
from randeigen.geometry.lanczos import product, top_of_operator
from randeigen.geometry.power import top_direction_by_power
from randeigen.geometry.products import scale_exponent
from randeigen.geometry.sketch import LARGEST_POINT
from randeigen.geometry.sketch_accumulator import SketchAccumulator, UnitLimits
from randeigen.types import Array, Block, TopDirection


class WideGramAccumulator(SketchAccumulator):
    """Accumulates the exact Gram matrix in float64 and in place: no other n×n array is held beside it."""

    def __init__(self, n: int, seed: int) -> None:
        super().__init__(n, 0, seed, None)
        self.gram = np.zeros((n + 1, n + 1))
        self.has_unit, self.columns = False, 0

    def unit_limits(self) -> UnitLimits:
        """As for points, but they are squared."""
        return UnitLimits(2.0**400, LARGEST_POINT, 600)

    def _enlarge(self, step: int) -> None:
        np.ldexp(self.gram, -2 * step, out=self.gram)
        self.exponent += step

    def _add(self, columns: slice, block: Block) -> None:
        if not self.has_unit:  # small rows would underflow when squared
            magnitudes = largest_magnitudes(block)
            self.exponent = scale_exponent(magnitudes[np.isfinite(magnitudes)])
            self.has_unit = bool(magnitudes.any())
        self.columns += block.shape[1]
        super()._add(columns, block)

    def _store(self, columns: slice, centred: Block, origin: Block) -> None:
        exact = np.vstack((to_host_float64(centred), to_host_float64(origin)))
        exact[:-1][self.unusable] = 0.0
        for i in range(0, exact.shape[0], GRAM_LINES_AT_ONCE):
            lines = slice(i, min(i + GRAM_LINES_AT_ONCE, exact.shape[0]))
            self.gram[lines, : lines.stop] += exact[lines] @ exact[: lines.stop].T

    def geometry(self) -> WideGramGeometry:  # type: ignore[override]
        """The finished matrix. Lines of unusable rows are zero."""
        n = self.unusable.size
        for i in range(0, n + 1, GRAM_LINES_AT_ONCE):  # only its lower half was filled
            lines = slice(i, min(i + GRAM_LINES_AT_ONCE, n + 1))
            self.gram[: lines.start, lines] = self.gram[lines, : lines.start].T
        unusable = np.flatnonzero(self.unusable)
        self.gram[unusable] = self.gram[:, unusable] = 0.0
        start = self.rng.standard_normal((n, START_DIRECTIONS))
        return WideGramGeometry(
            self.gram,
            np.ones(n),
            start,
            2.0**self.exponent,
            self.precision,
            beyond=self._usable_beyond(),
            columns=self.columns,
        )


@dataclass(frozen=True, eq=False)
class WideGramGeometry(GramGeometry):
    """The exact Gram matrix, whose weighted covariance is applied to vectors but never formed."""

    def top_direction(self, weights: Array, settled: float = 0.0) -> TopDirection:
        apply, project, row_variances = self._operators(weights)
        top = top_of_operator(apply, self.start)
        return top_direction_of(top, project(top.vector), weights, row_variances)

    def top_variance(self, weights: Array) -> TopDirection:
        return self.top_direction(weights)

    def top_direction_by_power_iteration(
        self, weights: Array, steps: int, rng: np.random.Generator
    ) -> TopDirection:
        apply, project, _ = self._operators(weights)
        return top_direction_by_power(apply, project, apply(rng.standard_normal(self.n)), steps, weights)

    def _operators(self, weights: Array) -> tuple[Operator, Operator, Array]:
        """The weighted covariance, the rows' projections, and the variance each row alone contributes."""
        w = weights / weights.sum()
        root_weights, with_mean = np.sqrt(w), self._product(w)
        mean_square = float(w @ with_mean)

        def project(vector: Array) -> Array:
            shares = root_weights * vector
            projections = self._product(shares) - shares.sum() * with_mean
            return np.asarray(projections - w @ projections)

        row_variances = w * (self.squared_norms_from_pivot() - 2 * with_mean + mean_square)
        return lambda vector: root_weights * project(vector), project, row_variances

    def _product(self, vector: Array) -> Array:
        """(n,) the inner products of each row with a combination of the rows."""
        return product(self.inner_products(), vector)
