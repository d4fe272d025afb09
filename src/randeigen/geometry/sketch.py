"""The sketched geometry: n points in k columns, and the other measurement its certificate rests on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import median
from randeigen.backend.chunking import single_threaded_blas
from randeigen.geometry.eigen import MAX_DENSE_ROWS, Operator, top_dense
from randeigen.geometry.gram import DIFFERENT_SUMS, GramGeometry, Index, MeasuredGeometry, of_plain_size
from randeigen.geometry.lanczos import top_of_operator
from randeigen.geometry.point_sums import (
    combinations,
    covariance,
    covariance_times,
    projections_on,
    squared_distances_to,
    weighted_sum,
)
from randeigen.geometry.point_sums import inner_products as inner_products_of
from randeigen.geometry.power import top_direction_by_power
from randeigen.geometry.subspace import GrowingSubspace
from randeigen.types import Array, Mask, TopDirection

MAX_DENSE_COLUMNS = 160  # columns up to which the covariance is made, and LAPACK has its top at once
MAX_GRAM_ROWS = 2048  # rows up to which their inner products are looked at where columns are more
MIN_KEPT_NUMBERS = 2**19  # numbers of points from which directions are kept from round to round
MAX_PLAIN_SQUARE = 2.0**120  # float32 holds products of numbers whose squares are within 2^±this
LARGEST_POINT = 2.0**450  # points are no larger, so that their squares fit a float64


@dataclass(frozen=True, eq=False)
class SketchGeometry(MeasuredGeometry):
    """n rows in k columns: a sketch, or the rows themselves when they are short.

    Points may be float32, to take no more room than the rows did; all sums over them are made in float64.
    """

    points: NDArray[Any]  # (n, k), measured from the pivot
    origin: NDArray[Any]  # (k,) the caller's origin among them
    prior_weights: Array  # (n,)
    start: Array  # (n, p) secret directions from which the search for the top direction starts
    scale: float = 1.0
    precision: float = 0.0
    distortion: float = 0.0
    beyond: Mask | None = None  # (n,) rows further out than their points say; None: there are none
    # Of a sketch: another measurement of the rows, for the certificate alone.
    check: GramGeometry | SketchGeometry | None = None
    floor: float = 0.0

    @property
    def coordinates(self) -> NDArray[Any]:
        """(n, k) the rows, or their sketch, from the pivot."""
        return self.points

    def top_direction(self, weights: Array, settled: float = 0.0) -> TopDirection:
        """Among the columns or, where these are more, by the rows' inner products.

        Where points are many, directions are kept for the weights to come, and one that stands out is rough.
        """
        if self._among_rows:
            return self._among_rows.top_direction(weights, settled)
        with single_threaded_blas(0):  # threads of BLAS would wait for busy cores, in every product
            return self._top_among_columns(weights, settled)

    def _top_among_columns(self, weights: Array, settled: float) -> TopDirection:
        w = weights / weights.sum()
        mean, weighted = weighted_sum(self.points, w), w > 0
        typical = median(self._row_variances(w, mean)[weighted])
        if settled and self._keeps_directions(weighted):
            variance, projections, residual = self._subspace.top(w)
            if variance > max(settled * typical, self.rounding_error(weights)):
                return TopDirection(variance, np.where(weighted, projections, 0.0), typical, 2 * residual)
        if mean.size <= MAX_DENSE_COLUMNS:
            top = top_dense(covariance(self.points, w, mean), self._start_among_columns)
        else:
            top = top_of_operator(partial(covariance_times, self.points, w, mean), self._start_among_columns)
        if not 0 < top.value < math.inf:
            return TopDirection(top.value, np.zeros(w.size), allowance=top.allowance)
        projections = projections_on(self.points, top.vector) - mean.dot(top.vector)
        return TopDirection(top.value, np.where(weighted, projections, 0.0), typical, top.allowance)

    def top_direction_by_power_iteration(
        self, weights: Array, steps: int, rng: np.random.Generator
    ) -> TopDirection:
        """The paper's power iteration on Cov(Y), from a Gaussian start in its k dimensions."""
        apply, project = self._operators(weights)
        root_weights = np.sqrt(weights / weights.sum())
        projected = projections_on(self.points, rng.standard_normal((self.points.shape[1],)))
        start = root_weights * (projected - root_weights**2 @ projected)
        return top_direction_by_power(apply, project, start, steps, weights)

    def inner_products(self) -> Array:
        return inner_products_of(self.points)

    def squared_norms(self) -> Array:
        return squared_distances_to(self.points, self.origin)

    def squared_norms_from_pivot(self) -> Array:
        return squared_distances_to(self.points)

    def squared_distances_from(self, row: int) -> Array:
        return squared_distances_to(self.points, self.points[row].astype(np.float64))

    def squared_distances_from_mean(self, weights: Array) -> Array:
        return squared_distances_to(self.points, weighted_sum(self.points, weights / weights.sum()))

    def distance_between(self, weights_a: Array, weights_b: Array) -> float:
        difference, peak = of_plain_size(weights_a - weights_b)
        if float(abs(self.origin).max()) >= LARGEST_POINT / 2 and abs(difference.sum()) > DIFFERENT_SUMS:
            return math.inf  # the origin is further away than its point says
        return peak * float(np.linalg.norm(difference @ self.points - difference.sum() * self.origin))

    def _take(self, index: Index) -> SketchGeometry:
        return replace(
            self,
            points=self.points[index],
            prior_weights=self.prior_weights[index],
            start=self.start[index],
            beyond=self._beyond_among(index),
            check=self.check and self.check.take(index),
        )

    def combine_rows(self, matrix: Array) -> SketchGeometry:
        m = matrix.shape[0]
        return replace(
            self,
            points=combinations(self.points, self.origin, matrix),
            prior_weights=np.ones(m),
            start=self.start[:m],
            beyond=self._beyond_in(matrix),
            check=self.check and self.check.combine_rows(matrix),
        )

    def with_prior_weights(self, prior: Array) -> SketchGeometry:
        return replace(self, prior_weights=prior)

    def _operators(self, weights: Array) -> tuple[Operator, Operator]:
        """The weighted covariance as the rows see it, and the rows' projections on a combination of rows."""
        w = weights / weights.sum()
        root_weights, mean = np.sqrt(w), weighted_sum(self.points, w)

        def project(vector: Array) -> Array:
            shares = root_weights * vector
            direction = weighted_sum(self.points, shares) - shares.sum() * mean
            return np.asarray(projections_on(self.points, direction) - mean @ direction)

        return lambda vector: root_weights * project(vector), project

    @cached_property
    def _among_rows(self) -> GramGeometry | None:
        """The points' inner products, where they are fewer than the points' numbers."""
        n, k = self.points.shape
        if k <= MAX_DENSE_ROWS or n > min(k, MAX_GRAM_ROWS):
            return None
        gram = np.pad(self.inner_products(), (0, 1))  # nobody asks these for the origin
        return GramGeometry(gram, self.prior_weights, self.start, precision=self.precision, floor=self.floor)

    @cached_property
    def _start_among_columns(self) -> Array:
        return self.start.reshape(-1, 1)[np.arange(self.points.shape[1]) % self.start.size]

    @cached_property
    def _subspace(self) -> GrowingSubspace:
        return GrowingSubspace(self.points, self._start_among_columns[:, 0])

    def _keeps_directions(self, weighted: Mask) -> bool:
        """Whether products with the points take long, and may be made in float32."""
        if self.points.size < MIN_KEPT_NUMBERS or self.points.shape[1] <= MAX_DENSE_COLUMNS:
            return False
        squares = self._squares[weighted]
        plain = median(squares) > 1 / MAX_PLAIN_SQUARE and squares.max() < MAX_PLAIN_SQUARE
        return bool(plain and self._largest_square < MAX_PLAIN_SQUARE**2)

    def _row_variances(self, w: Array, mean: Array) -> Array:
        """(n,) wᵢ‖xᵢ − μ_w‖², each row's weight times its squared distance from the mean."""
        return np.asarray(w * (self._squares - 2.0 * projections_on(self.points, mean) + mean.dot(mean)))
