"""The sketched geometry: n points in k columns, filled block by block, and what its certificate is measured on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import as_host, median
from randeigen.backend.chunking import pieces
from randeigen.geometry.base import (
    START_DIRECTIONS,
    squared_distances_of,
    top_direction_by_power,
    top_direction_of,
)
from randeigen.geometry.eigen import MAX_DENSE_ROWS, top_dense
from randeigen.geometry.gram import GramGeometry
from randeigen.geometry.lanczos import Operator, top_of_operator
from randeigen.geometry.pivot import centre, magnitudes, sampled
from randeigen.geometry.products import scale_exponent
from randeigen.geometry.projection import EPS_JL, GaussianProjection, SparseProjection, distortion
from randeigen.geometry.strips import along, combined, covariance, mixed, products, squares
from randeigen.types import Array, Block, Mask, Spread


@dataclass(frozen=True, eq=False)
class SketchGeometry:
    """n rows in k columns: a sketch, or the rows themselves when they are short.

    Points may be float32, to take no more room than the rows did; all sums over them are made in float64.
    """

    points: NDArray[Any]  # (n, k), measured from the pivot
    origin: NDArray[Any]  # (k,) the caller's origin among them
    prior_weights: Array  # (n,)
    start: Array  # (n, p)
    unit: float = 1.0
    precision: float = 0.0
    distortion: float = 0.0
    beyond: Mask | None = None  # (n,) rows further out than their points say; None: there are none
    check: GramGeometry | SketchGeometry | None = (
        None  # of a sketch: another measurement of the rows, for the certificate alone
    )
    floor: float = 0.0  # squared lengths below this may have vanished
    partial: ClassVar[bool] = False

    @property
    def n(self) -> int:
        """How many rows."""
        return self.prior_weights.size

    def top_direction(self, weights: Array) -> Spread:
        """The widest direction of the weighted cloud; no n×n table is formed."""
        if self.points.shape[1] <= MAX_DENSE_ROWS:
            return self._widest_of_few_columns(weights)
        apply, project = self._operators(weights)
        top = top_of_operator(apply, self.start)
        return top_direction_of(top, project(top.vector), weights, self._alone(weights))

    def top_direction_by_power_iteration(
        self, weights: Array, steps: int, rng: np.random.Generator
    ) -> Spread:
        """The paper's power iteration on Cov(Y), from a Gaussian start in its k dimensions."""
        apply, project = self._operators(weights)
        half = np.sqrt(weights / weights.sum())
        seen = along(self.points, rng.standard_normal((self.points.shape[1],)))
        return top_direction_by_power(apply, project, half * (seen - half**2 @ seen), steps, weights)

    def squared_distances(self) -> Array:
        """(n, n) squared distances."""
        return squared_distances_of(self.squared_norms_from_pivot(), products(self.points))

    def squared_distances_from(self, row: int) -> Array:
        """(n,) squared distances from one row."""
        return np.asarray(self.squared_distances()[row])

    def squared_norms(self) -> Array:
        """(n,) squared distances from the caller's origin."""
        return squares(self.points, self.origin)

    def squared_norms_from_pivot(self) -> Array:
        """(n,) squared distances from the pivot: how far out each row is, to a factor."""
        return squares(self.points)

    def distance_between(self, weights_a: Array, weights_b: Array) -> float:
        """Length of Σ (aᵢ − bᵢ)·xᵢ, the rows measured from the caller's origin; no sum need be 1."""
        apart = weights_a - weights_b
        return float(np.linalg.norm(apart @ self.points - apart.sum() * self.origin))

    def rounding_error(self, weights: Array) -> float:
        """How much of the widest variance the points' own rounding can hide."""
        mean_square = float(weights @ self.squared_norms_from_pivot()) / float(weights.sum())
        return self.precision * mean_square + self.floor

    def take(self, index: NDArray[np.intp]) -> SketchGeometry:
        """The same cloud with only these rows."""
        if np.array_equal(index, np.arange(self.n)):  # the ordinary case: no copy
            return self
        return replace(
            self,
            points=self.points[index],
            prior_weights=self.prior_weights[index],
            start=self.start[index],
            beyond=None if self.beyond is None else self.beyond[index],
            check=self.check and self.check.take(index),
        )

    def combine_rows(self, matrix: Array) -> SketchGeometry:
        """The cloud of m combinations of the rows and, last, the origin."""
        m = matrix.shape[0]
        return replace(
            self,
            points=mixed(self.points, self.origin, matrix),
            prior_weights=np.ones(m),
            start=self.start[:m],
            beyond=None if self.beyond is None else np.asarray(matrix[:, :-1][:, self.beyond].any(axis=1)),
            check=self.check and self.check.combine_rows(matrix),
        )

    def with_prior_weights(self, prior: Array) -> SketchGeometry:
        """The same cloud with other masses."""
        return replace(self, prior_weights=prior)

    def _operators(self, weights: Array) -> tuple[Operator, Operator]:
        w = weights / weights.sum()
        half, mean = np.sqrt(w), combined(self.points, w)

        def project(vector: Array) -> Array:
            seen = half * vector
            direction = combined(self.points, seen) - seen.sum() * mean
            return np.asarray(along(self.points, direction) - mean @ direction)

        return lambda vector: half * project(vector), project

    def _widest_of_few_columns(self, weights: Array) -> Spread:
        w = weights / weights.sum()
        mean = combined(self.points, w)
        top = top_dense(covariance(self.points, w, mean), np.resize(self.start, (mean.size, 1)))
        places = along(self.points, top.vector) - mean @ top.vector
        alone = self._alone(weights)[weights > 0]
        return Spread(top.value, np.where(weights > 0, places, 0.0), median(alone), top.allowance)

    def _alone(self, weights: Array) -> Array:
        """(n,) each row's weight times its squared distance from the mean."""
        w = weights / weights.sum()
        mean = combined(self.points, w)
        return np.asarray(w * (self.squared_norms_from_pivot() - 2 * along(self.points, mean) + mean @ mean))


LARGEST_POINT = 2.0**450  # points are no larger, so that their squares fit a float64
SMALLEST_POINT = 2.0**-560  # so that the ratio of the two is above every unit
FAINT_POINT = 2.0**-450  # of smaller points little or nothing is left when they are squared
# By item size of the points: a typical magnitude that asks for larger units, the largest one, and the step.
ROOM = {4: (2.0**120, 2.0**127, 16), 8: (2.0**900, 2.0**1000, 200)}
POINT_ROUNDING = {
    4: 2.0**-21,
    8: 2.0**-46,
}  # rounding of a difference from the pivot and its square, by item size
MAX_FLOAT64_NUMBERS = 2**22  # numbers that may as well be kept in float64


class Accumulator(Protocol):
    """What is filled block by block and then becomes a geometry."""

    def add(self, columns: slice, block: Block) -> None:
        """One block of columns."""

    def geometry(self) -> GramGeometry | SketchGeometry:
        """What came of them."""


class SketchAccumulator:
    """Fills n points in k columns, by a random projection or, for short rows, by the rows themselves.

    Rows themselves are kept in their own precision where there are many; projections are summed in float64.
    """

    def __init__(
        self,
        n: int,
        k: int,
        seed: int,
        projection: GaussianProjection | SparseProjection | None,
        check: Accumulator | None = None,
        purpose: int = 3,
    ) -> None:
        self.rng = np.random.default_rng([seed, purpose])
        self.projection, self.check = projection, check
        self.shape = n + 1, k  # the origin is the last
        self.points: NDArray[Any] = np.zeros(self.shape)  # takes no memory until it is written to
        self.order = self.rng.permutation(n)
        self.dead, self.beyond = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        self.exponent = 0  # points are in units of 2**exponent
        self.precision = self.floor = 0.0

    def add(self, columns: slice, block: Block) -> None:
        """One block of columns."""
        if self.projection is None and self.precision == 0 and block.dtype.itemsize == 4:
            self.points = np.zeros(
                self.shape, np.float32 if self.points.size > MAX_FLOAT64_NUMBERS else np.float64
            )
        self.precision = max(self.precision, POINT_ROUNDING[block.dtype.itemsize])
        at = columns.start
        for piece in pieces(block):
            self._add(slice(at, at + piece.shape[1]), piece)
            at += piece.shape[1]
        if self.check:
            self.check.add(columns, block)

    def _add(self, columns: slice, block: Block) -> None:
        reach = magnitudes(block)
        self.dead |= ~np.isfinite(reach)
        alive = np.flatnonzero(~self.dead)
        if alive.size == 0:
            return
        room, roof, step = self.room()
        if median(reach[alive]) * 2.0**-self.exponent > room:  # most rows are that large: all in larger units
            self._enlarge(step)
        found = centre(block, reach, alive, sampled(self.order, alive), 2.0**-self.exponent)
        apart, origin = found.block, -found.pivot[None]
        over = found.squared_norms_from_pivot > roof
        if over[alive].any():
            self.beyond |= over
            apart = apart.clip(-roof, roof)
        if magnitudes(origin)[0] > roof:
            origin = origin.clip(-roof, roof)
        self._store(columns, apart, origin)

    def room(self) -> tuple[float, float, int]:
        """A typical magnitude that asks for larger units, the largest one there may be, and the step."""
        return ROOM[self.points.itemsize]

    def _enlarge(self, step: int) -> None:
        self.points *= 2.0**-step
        self.exponent += step

    def _store(self, columns: slice, apart: Block, origin: Block) -> None:
        if self.projection is None:
            self.points[:-1, columns], self.points[-1:, columns] = as_host(apart), as_host(origin)
        else:
            self.projection.add(self.points[:-1], columns, apart)
            self.projection.add(self.points[-1:], columns, origin)

    def geometry(self) -> SketchGeometry:
        """The finished points. Those of dead rows are zero, those of rows too far out shortened."""
        n, points = self.shape[0] - 1, self.points
        points[:-1][self.dead] = 0.0
        if points.itemsize == 8:
            reach = magnitudes(points)
            total = min(self.exponent + scale_exponent(reach[:-1][~self.dead]), 1000)
            unit, self.exponent = 2.0 ** (self.exponent - total), total
            longest = LARGEST_POINT / np.maximum(reach, SMALLEST_POINT)
            if unit != 1 or (longest < 1).any():
                points *= np.minimum(unit, longest)[:, None]
            self.beyond |= longest[:-1] < unit
            faint = (reach[:-1] > 0) & (reach[:-1] * unit < FAINT_POINT)
            self.floor = points.shape[1] * FAINT_POINT**2 if faint.any() else 0.0
        start = self.rng.standard_normal((n, START_DIRECTIONS))
        check, lost = self._checked(), 0.0
        if isinstance(self.projection, SparseProjection) and not check:
            lost = distortion(self.projection.k, self.projection.hashes)
        elif self.projection:
            lost = EPS_JL
        beyond = self.beyond & ~self.dead
        return SketchGeometry(
            points[:-1],
            points[-1],
            np.ones(n),
            start,
            2.0**self.exponent,
            self.precision,
            lost,
            beyond if beyond.any() else None,
            check,
            self.floor,
        )

    def _checked(self) -> GramGeometry | SketchGeometry | None:
        """The other measurement. Rows whose squares it could not hold are beyond measure here too."""
        if self.check is None:
            return None
        found = self.check.geometry()
        over = ~np.isfinite(found.squared_norms_from_pivot())
        if isinstance(found, GramGeometry) and over.any():
            lines = np.append(over, False)
            self.beyond |= over
            found = replace(found, table=np.where(lines | lines[:, None], 0.0, found.table))
        return found
