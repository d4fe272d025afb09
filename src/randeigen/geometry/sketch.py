"""The sketched geometry: n points in k columns, and the other measurement its certificate rests on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import as_host, largest_magnitudes, median, working_size
from randeigen.backend.chunking import MAX_FLOAT64_POINT_NUMBERS, pieces
from randeigen.backend.device_blocks import as_matrix
from randeigen.backend.random_streams import Stream
from randeigen.geometry.eigen import MAX_DENSE_ROWS, Operator, top_dense
from randeigen.geometry.gram import (
    DIFFERENT_SUMS,
    START_DIRECTIONS,
    GramGeometry,
    Index,
    MeasuredGeometry,
    of_plain_size,
    top_direction_of,
)
from randeigen.geometry.lanczos import top_of_operator
from randeigen.geometry.pivot import centre, sampled
from randeigen.geometry.point_sums import (
    combinations,
    covariance,
    projections_on,
    squared_distances_to,
    weighted_sum,
)
from randeigen.geometry.point_sums import inner_products as inner_products_of
from randeigen.geometry.power import top_direction_by_power
from randeigen.geometry.products import scale_exponent
from randeigen.geometry.projection import EPS_JL, GaussianProjection, SparseProjection, distortion
from randeigen.types import Array, Block, Mask, TopDirection


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
        """By Lanczos, or by the k×k covariance where there are few columns; no n×n matrix is formed."""
        if self.points.shape[1] <= MAX_DENSE_ROWS:
            return self._top_direction_of_few_columns(weights)
        apply, project = self._operators(weights)
        top, w = top_of_operator(apply, self.start), weights / weights.sum()
        row_variances = self._row_variances(w, weighted_sum(self.points, w))
        return top_direction_of(top, project(top.vector), weights, row_variances)

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

    def _top_direction_of_few_columns(self, weights: Array) -> TopDirection:
        w = weights / weights.sum()
        mean = weighted_sum(self.points, w)
        start = self.start.reshape(-1, 1)[np.arange(mean.size) % self.start.size]
        top = top_dense(covariance(self.points, w, mean), start)
        projections, row_variances = projections_on(self.points, top.vector), self._row_variances(w, mean)
        projections -= mean.dot(top.vector)
        if np.count_nonzero(w) < w.size:
            projections, row_variances = np.where(w > 0, projections, 0.0), row_variances[w > 0]
        return TopDirection(top.value, projections, median(row_variances), top.allowance)

    def _row_variances(self, w: Array, mean: Array) -> Array:
        """(n,) wᵢ‖xᵢ − μ_w‖², each row's weight times its squared distance from the mean."""
        return np.asarray(w * (self._squares - 2.0 * projections_on(self.points, mean) + mean.dot(mean)))


class UnitLimits(NamedTuple):
    """When points are stored in larger units, so that none overflows."""

    typical: float  # a typical magnitude above this asks for larger units
    largest: float  # larger magnitudes are clipped, and their rows are `beyond`
    step: int  # the unit grows by 2**step


LARGEST_POINT = 2.0**450  # points are no larger, so that their squares fit a float64
SMALLEST_POINT = 2.0**-560  # so that the ratio of the two is above every unit
FAINT_POINT = 2.0**-450  # of smaller points little or nothing is left when they are squared
UNIT_LIMITS = {4: UnitLimits(2.0**120, 2.0**127, 16), 8: UnitLimits(2.0**900, 2.0**1000, 200)}  # by item size
POINT_ROUNDING = {4: 2.0**-21, 8: 2.0**-46}  # of a difference from the pivot and its square, by item size


class Accumulator(Protocol):
    """What is filled block by block and then becomes a geometry."""

    def add(self, columns: slice, block: Block) -> None:
        """One block of columns."""

    def geometry(self) -> GramGeometry | SketchGeometry:
        """The geometry of all columns added so far."""


class SketchAccumulator:
    """Accumulates n points in k columns, by a random projection or, for short rows, the rows themselves.

    Rows themselves are kept in their own precision where there are many; projections are summed in float64.
    """

    block_multiple = 1
    copies_parts = False

    def __init__(
        self,
        n: int,
        k: int,
        seed: int,
        projection: GaussianProjection | SparseProjection | None,
        check: Accumulator | None = None,
        stream: Stream = Stream.MEASUREMENT,
    ) -> None:
        self.rng = np.random.default_rng([seed, stream])
        self.projection, self.check = projection, check
        self.shape = n + 1, k  # the origin is the last
        self.points: NDArray[Any] = np.zeros(self.shape)  # takes no memory until it is written to
        self.order = self.rng.permutation(n)
        self.unusable, self.beyond = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        self.exponent = 0  # points are in units of 2**exponent
        self.precision = self.floor = 0.0

    def add(self, columns: slice, block: Block) -> None:
        """One block of columns."""
        if self.projection is None and self.precision == 0 and working_size(block) == 4:
            is_large = self.points.size > MAX_FLOAT64_POINT_NUMBERS
            self.points = np.zeros(self.shape, np.float32 if is_large else np.float64)
        self.precision = max(self.precision, POINT_ROUNDING[working_size(block)])
        at = columns.start
        for piece in pieces(block):
            self._add(slice(at, at + piece.shape[1]), piece)
            at += piece.shape[1]
        if self.check:
            self.check.add(columns, block)

    def _add(self, columns: slice, block: Block) -> None:
        block = as_matrix(block)
        magnitudes = largest_magnitudes(block)
        self.unusable |= ~np.isfinite(magnitudes)
        usable = np.flatnonzero(~self.unusable)
        if usable.size == 0:
            return
        limits = self.unit_limits()
        if median(magnitudes[usable]) * 2.0**-self.exponent > limits.typical:  # most rows are that large
            self._enlarge(limits.step)
        about_pivot = centre(block, magnitudes, usable, sampled(self.order, usable), 2.0**-self.exponent)
        centred, origin, largest = about_pivot.block, -about_pivot.pivot[None], limits.largest
        over = about_pivot.magnitudes > largest
        if over[usable].any():
            self.beyond |= over
            centred = centred.clip(-largest, largest)
        if largest_magnitudes(origin)[0] > largest:
            origin = origin.clip(-largest, largest)
        self._store(columns, centred, origin)

    def unit_limits(self) -> UnitLimits:
        """Those of the dtype that the points are stored in."""
        return UNIT_LIMITS[self.points.itemsize]

    def _enlarge(self, step: int) -> None:
        self.points *= 2.0**-step
        self.exponent += step

    def _store(self, columns: slice, centred: Block, origin: Block) -> None:
        if self.projection is None:
            self.points[:-1, columns], self.points[-1:, columns] = as_host(centred), as_host(origin)
        else:
            self.projection.add(self.points[:-1], columns, centred)
            self.projection.add(self.points[-1:], columns, origin)

    def geometry(self) -> SketchGeometry:
        """The finished points. Those of unusable rows are zero, those of rows too far out shortened."""
        n, points = self.shape[0] - 1, self.points
        points[:-1][self.unusable] = 0.0
        if points.itemsize == 8:
            magnitudes, enlarged = largest_magnitudes(points), self.exponent > 0
            exponent = min(self.exponent + scale_exponent(magnitudes[:-1][~self.unusable]), 1000)
            unit, self.exponent = 2.0 ** (self.exponent - exponent), exponent
            limit = LARGEST_POINT / np.maximum(magnitudes, SMALLEST_POINT)
            if unit != 1 or (limit < 1).any():
                points *= np.minimum(unit, limit)[:, None]
            self.beyond |= limit[:-1] < unit
            faint = (magnitudes[:-1] > 0) & (magnitudes[:-1] * unit < FAINT_POINT)
            # In larger units small numbers may have become 0 before they were stored.
            self.floor = points.shape[1] * FAINT_POINT**2 if enlarged or faint.any() else 0.0
        start = self.rng.standard_normal((n, START_DIRECTIONS))
        check = self._checked()
        return SketchGeometry(
            points[:-1],
            points[-1],
            np.ones(n),
            start,
            2.0**self.exponent,
            self.precision,
            self._distortion(check),
            self._usable_beyond(),
            check,
            self.floor,
        )

    def _distortion(self, check: GramGeometry | SketchGeometry | None) -> float:
        if self.projection is None:
            return 0.0
        if isinstance(self.projection, SparseProjection) and not check:
            return distortion(self.projection.k, self.projection.hashes)
        return EPS_JL

    def _usable_beyond(self) -> Mask | None:
        beyond = self.beyond & ~self.unusable
        return beyond if beyond.any() else None

    def _checked(self) -> GramGeometry | SketchGeometry | None:
        """The other measurement. Rows whose squares it could not hold are `beyond` here too."""
        if self.check is None:
            return None
        exact = self.check.geometry()
        if exact.beyond is not None:
            self.beyond |= exact.beyond
        return exact
