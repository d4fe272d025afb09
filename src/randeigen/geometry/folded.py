"""What two folded sketches say of the rows: one chooses weights, the other certifies them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from randeigen.backend.arrays import median
from randeigen.backend.chunking import single_threaded_blas
from randeigen.backend.random_streams import Stream
from randeigen.geometry.covariance_bound import upper_bound
from randeigen.geometry.folds import Points
from randeigen.geometry.gram import Index
from randeigen.geometry.gram_subspace import upper_bound as upper_bound_from_gram
from randeigen.geometry.products import products
from randeigen.geometry.sketch import SketchGeometry
from randeigen.geometry.subspace import GrowingSubspace, projections_on, weighted_sum
from randeigen.types import Array, TopDirection

MAX_GRAM_ROWS = 512  # rows up to which a Gram matrix of the points takes less time than products with them
# Of few short rows, which are no sketch, the bound is this near: products with them take little time.
MAX_NEAR_NUMBERS, NEAR = 2**22, 0.0005
FAR_ABOVE_TYPICAL = 2.0  # times a typical row's variance: how much nearer to it the top one is nobody asks
NORM_ROUNDING = 1.001  # of squared norms in float32, with room to spare


@dataclass(frozen=True, eq=False)
class ManyRowsGeometry(SketchGeometry):
    """n points in k columns, float32; the search for top directions goes on where it ended last."""

    squares: Array = field(default_factory=lambda: np.zeros(0))  # (n,) squared norms of the points
    subspace: GrowingSubspace | None = None

    def top_direction(self, weights: Array, settled: float = 0.0) -> TopDirection:
        w = weights / weights.sum()
        assert self.subspace is not None
        with single_threaded_blas(0):
            variance, projections, residual = self.subspace.top(w)
        projections = np.where(weights > 0, projections, 0.0)
        typical = self._typical_row_variance(w, variance, settled or FAR_ABOVE_TYPICAL)
        return TopDirection(variance, projections, typical, 2 * residual)

    def _typical_row_variance(self, w: Array, variance: float, times: float) -> float:
        """median wᵢ‖yᵢ − μ‖²; 0 where an upper bound shows that the variance is so many times it, or more."""
        live, mean = w > 0, weighted_sum(self.points, w)
        most = w * (np.sqrt(self.squares) + math.sqrt(mean @ mean)) ** 2
        if variance > NORM_ROUNDING * times * median(most[live]):
            return 0.0
        return median((w * self._from(mean))[live])

    def squared_distances_from_mean(self, weights: Array) -> Array:
        return self._from(weighted_sum(self.points, weights / weights.sum()))

    def _from(self, point: Array) -> Array:
        away = self.squares - 2 * projections_on(self.points, point) + point @ point
        return np.asarray(np.maximum(away, 0.0))

    def squared_norms(self) -> Array:
        if not self.origin.any():  # there was no pivot in any tile
            return self.squares
        return self._from(self.origin.astype(np.float64))

    def squared_norms_from_pivot(self) -> Array:
        return self.squares

    def distance_between(self, weights_a: Array, weights_b: Array) -> float:
        difference = weights_a - weights_b
        between = weighted_sum(self.points, difference) - difference.sum() * self.origin
        return math.sqrt(between @ between)

    def _take(self, index: Index) -> ManyRowsGeometry:
        points = self.points[index]
        return replace(
            self,
            points=points,
            prior_weights=self.prior_weights[index],
            beyond=self._beyond_among(index),
            check=self.check and self.check.take(index),
            squares=self.squares[index],
            subspace=subspace_of(points, self.start),
        )

    def combine_rows(self, matrix: Array) -> SketchGeometry:
        return _plain(self, self.points).combine_rows(matrix)


@dataclass(frozen=True, eq=False)
class CheckGeometry(SketchGeometry):
    """The sketch that certificates are measured on. Rows are taken by giving the others no weight."""

    squares: Array = field(default_factory=lambda: np.zeros(0))  # (n,) of the rows taken
    index: Index = field(default_factory=lambda: np.zeros(0, np.intp))  # (n,) which of the points they are
    seed: int = 0

    def top_direction(self, weights: Array, settled: float = 0.0) -> TopDirection:
        """The variance and its allowance; nobody asks a check for projections."""
        rng = np.random.default_rng([self.seed, Stream.CHECK_MEASUREMENT])
        if self.n <= MAX_GRAM_ROWS:
            points = self.points if self.n == len(self.points) else self.points[self.index]
            inner, start = products(points)[:-1, :-1], rng.standard_normal(self.n)
            with single_threaded_blas(0), np.errstate(all="ignore"):  # of equal points nothing is left
                most = upper_bound_from_gram(inner, weights / weights.sum(), start)
            return TopDirection(most, np.zeros(self.n))
        w = np.zeros(len(self.points))
        w[self.index] = weights / weights.sum()
        with single_threaded_blas(0):
            top = upper_bound(self.points, w, rng, *self._near)
        return TopDirection(top.value, np.zeros(self.n), allowance=top.allowance)

    @property
    def _near(self) -> tuple[float, ...]:
        """How much too high the bound may be, where it is not what `upper_bound` allows."""
        return (NEAR,) if not self.distortion and self.points.size <= MAX_NEAR_NUMBERS else ()

    def squared_norms_from_pivot(self) -> Array:
        return self.squares

    def _take(self, index: Index) -> CheckGeometry:
        return replace(
            self,
            prior_weights=self.prior_weights[index],
            beyond=self._beyond_among(index),
            squares=self.squares[index],
            index=self.index[index],
        )

    def combine_rows(self, matrix: Array) -> SketchGeometry:
        return _plain(self, self.points[self.index]).combine_rows(matrix)


def _plain(geometry: SketchGeometry, points: Points) -> SketchGeometry:
    """The same points as a geometry that searches from the rows, each time anew."""
    start = projections_on(points, geometry.start[:, 0])[:, None]
    prior, scale, check = geometry.prior_weights, geometry.scale, geometry.check
    more = geometry.precision, geometry.distortion, geometry.beyond, check, geometry.floor
    return SketchGeometry(points, geometry.origin, prior, start, scale, *more)


def subspace_of(points: Points, start: Array) -> GrowingSubspace:
    """A fresh search for top directions, from a secret one."""
    return GrowingSubspace(points, start[:, 0])
