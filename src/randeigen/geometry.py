"""What a rule sees: n rows as an exact n×n table of products, or as n points in a narrow space."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from randeigen.blocks import median
from randeigen.spectral import (
    DENSE,
    Operator,
    Top,
    power_iteration,
    top_dense,
    top_of_covariance,
    top_of_operator,
)
from randeigen.strips import along, combined, covariance, mixed, products, squares
from randeigen.types import Array, Mask, Spread

CENTRING = 2.0**-48  # of their squared lengths: what is left of equal rows when the mean is subtracted
USUAL = 2.0**-21  # rounding of a float32 entry whose numbers nobody arranged


@dataclass(frozen=True, eq=False)
class Gram:
    """The exact table. The caller's origin is its last line, so lengths survive a shift of all rows."""

    table: Array  # (n+1, n+1) inner products, measured from a pivot near the rows
    prior: Array  # (n,)
    start: Array  # (n, p) where the search for the widest direction begins; nobody can foresee it
    unit: float = 1.0
    precision: float = 0.0  # rounding of an entry, relative to the two rows' lengths
    distortion: float = 0.0
    floor: float = 0.0  # squared lengths below this may have vanished
    partial: ClassVar[bool] = False

    @property
    def n(self) -> int:
        """How many rows."""
        return self.prior.size

    def widest(self, weights: Array) -> Spread:
        """The widest direction of the weighted cloud, to working precision."""
        scaled, half = self._covariance(weights)
        whole = float(scaled.trace())
        if whole <= CENTRING * self._mean_square(weights):  # rounding is all there is
            return Spread(max(whole, 0.0), np.zeros(self.n))
        top = top_of_covariance(scaled, half, self.start)
        return _spread(top, _unscaled(scaled, half, top.vector), weights, scaled.diagonal())

    def widest_by_power(self, weights: Array, steps: int, rng: np.random.Generator) -> Spread:
        """The paper's power iteration, run where it has the same iterates: among the rows."""
        scaled, half = self._covariance(weights)
        # A Gaussian start g in d dimensions is seen by the rows as X·g, whose covariance is X·Xᵀ.
        start = scaled @ rng.standard_normal(self.n)
        project = partial(_unscaled, scaled, half)
        return _spread_by_power(scaled.__matmul__, project, start, steps, weights)

    def distances(self) -> Array:
        """(n, n) squared distances."""
        return _apart(self.reach(), self.table[:-1, :-1])

    def distances_from(self, row: int) -> Array:
        """(n,) squared distances from one row."""
        return np.asarray(self.distances()[row])

    def lengths(self) -> Array:
        """(n,) squared distances from the caller's origin."""
        squares = self.table.diagonal()
        return np.asarray(np.maximum(squares[:-1] + squares[-1] - 2 * self.table[:-1, -1], 0.0))

    def reach(self) -> Array:
        """(n,) squared distances from the pivot: how far out each row is, to a factor."""
        return np.array(self.table.diagonal()[:-1])

    def distance_between(self, weights_a: Array, weights_b: Array) -> float:
        """Length of Σ (aᵢ − bᵢ)·xᵢ, the rows measured from the caller's origin; no sum need be 1."""
        apart = weights_a - weights_b
        apart = np.append(apart, -apart.sum())
        return math.sqrt(max(float(apart @ self.table @ apart), 0.0))

    def rounding(self, weights: Array) -> float:
        """How much of the widest variance the table's own rounding can hide.

        An entry is off by at most `precision` of its two rows' lengths, so the weighted matrix of errors is
        no larger than `precision` times the weighted mean of the squared lengths.
        """
        return self.precision * self._mean_square(weights) + self.floor

    def _mean_square(self, weights: Array) -> float:
        return float(weights @ self.reach()) / float(weights.sum())

    def pick(self, index: NDArray[np.intp]) -> Gram:
        """The same cloud with only these rows."""
        lines = np.append(index, self.n)
        table = self.table[np.ix_(lines, lines)]
        return replace(self, table=table, prior=self.prior[index], start=self.start[index])

    def mix(self, matrix: Array) -> Gram:
        """The cloud of m combinations of the rows and, last, the origin.

        Rounding averages out among rows that are averaged, so no more of it is assumed than is usual.
        Certificates are made of the rows' own table.
        """
        lines = np.vstack((matrix, np.append(np.zeros(self.n), 1.0)))
        m, table = matrix.shape[0], lines @ self.table @ lines.T
        precision = min(self.precision, USUAL)
        return replace(self, table=table, prior=np.ones(m), start=self.start[:m], precision=precision)

    def with_prior(self, prior: Array) -> Gram:
        """The same cloud with other masses."""
        return replace(self, prior=prior)

    def _covariance(self, weights: Array) -> tuple[Array, Array]:
        """The weighted covariance seen by the rows, and the roots of the weights."""
        inner = self.table[:-1, :-1]
        w = weights / weights.sum()
        half, pair = np.sqrt(w), np.ones((2, self.n))
        np.matmul(inner, w, out=pair[0])
        pair[0] -= w @ pair[0] / 2
        scaled = pair.T @ pair[::-1]  # all sums of two: BLAS is faster at them than numpy line by line
        np.subtract(inner, scaled, out=scaled)
        scaled *= np.dot(half[:, None], half[None])
        return scaled, half


@dataclass(frozen=True, eq=False)
class Points:
    """n rows in k columns: a sketch, or the rows themselves when they are short.

    Points may be float32, to take no more room than the rows did; all sums over them are made in float64.
    """

    points: NDArray[Any]  # (n, k), measured from the pivot
    origin: NDArray[Any]  # (k,) the caller's origin among them
    prior: Array  # (n,)
    start: Array  # (n, p)
    unit: float = 1.0
    precision: float = 0.0
    distortion: float = 0.0
    beyond: Mask | None = None  # (n,) rows further out than their points say; None: there are none
    check: Gram | Points | None = (
        None  # of a sketch: another measurement of the rows, for the certificate alone
    )
    partial: ClassVar[bool] = False

    @property
    def n(self) -> int:
        """How many rows."""
        return self.prior.size

    def widest(self, weights: Array) -> Spread:
        """The widest direction of the weighted cloud; no n×n table is formed."""
        if self.points.shape[1] <= DENSE:
            return self._widest_of_few_columns(weights)
        apply, project = self._operators(weights)
        top = top_of_operator(apply, self.start)
        return _spread(top, project(top.vector), weights, self._alone(weights))

    def widest_by_power(self, weights: Array, steps: int, rng: np.random.Generator) -> Spread:
        """The paper's power iteration on Cov(Y), from a Gaussian start in its k dimensions."""
        apply, project = self._operators(weights)
        half = np.sqrt(weights / weights.sum())
        seen = along(self.points, rng.standard_normal((self.points.shape[1],)))
        return _spread_by_power(apply, project, half * (seen - half**2 @ seen), steps, weights)

    def distances(self) -> Array:
        """(n, n) squared distances."""
        return _apart(self.reach(), products(self.points))

    def distances_from(self, row: int) -> Array:
        """(n,) squared distances from one row."""
        return np.asarray(self.distances()[row])

    def lengths(self) -> Array:
        """(n,) squared distances from the caller's origin."""
        return squares(self.points, self.origin)

    def reach(self) -> Array:
        """(n,) squared distances from the pivot: how far out each row is, to a factor."""
        return squares(self.points)

    def distance_between(self, weights_a: Array, weights_b: Array) -> float:
        """Length of Σ (aᵢ − bᵢ)·xᵢ, the rows measured from the caller's origin; no sum need be 1."""
        apart = weights_a - weights_b
        return float(np.linalg.norm(apart @ self.points - apart.sum() * self.origin))

    def rounding(self, weights: Array) -> float:
        """How much of the widest variance the points' own rounding can hide."""
        return self.precision * float(weights @ self.reach()) / float(weights.sum())

    def pick(self, index: NDArray[np.intp]) -> Points:
        """The same cloud with only these rows."""
        if np.array_equal(index, np.arange(self.n)):  # the ordinary case: no copy
            return self
        return replace(
            self,
            points=self.points[index],
            prior=self.prior[index],
            start=self.start[index],
            beyond=None if self.beyond is None else self.beyond[index],
            check=self.check and self.check.pick(index),
        )

    def mix(self, matrix: Array) -> Points:
        """The cloud of m combinations of the rows and, last, the origin."""
        m = matrix.shape[0]
        return replace(
            self,
            points=mixed(self.points, self.origin, matrix),
            prior=np.ones(m),
            start=self.start[:m],
            beyond=None if self.beyond is None else np.asarray(matrix[:, :-1][:, self.beyond].any(axis=1)),
            check=self.check and self.check.mix(matrix),
        )

    def with_prior(self, prior: Array) -> Points:
        """The same cloud with other masses."""
        return replace(self, prior=prior)

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
        return np.asarray(w * (self.reach() - 2 * along(self.points, mean) + mean @ mean))


def _apart(squares: Array, inner: Array) -> Array:
    """Squared distances. Clamped: rounding can make the distance of twins negative."""
    between = np.maximum(squares[:, None] + squares - 2 * inner, 0.0)
    np.fill_diagonal(between, 0.0)
    return np.asarray(between)


def _unscaled(scaled: Array, half: Array, vector: Array) -> Array:
    """(n,) the rows' places along the direction that an eigenvector of their covariance stands for."""
    return np.asarray(np.dot(scaled, vector) / np.where(half > 0, half, 1.0))


def _spread(top: Top, projected: Array, weights: Array, alone: Array) -> Spread:
    if not 0 < top.value < math.inf:
        return Spread(top.value, np.zeros(weights.size), allowance=top.allowance)
    live = weights > 0
    places = np.where(live, projected / math.sqrt(top.value), 0.0)
    return Spread(top.value, places, median(alone[live]), top.allowance)


def _spread_by_power(apply: Operator, project: Operator, start: Array, steps: int, weights: Array) -> Spread:
    vector = power_iteration(apply, start, steps)
    image = apply(vector)
    length = float(vector @ image)  # of the direction the rows' combination `vector` points in, squared
    if not 0 < length < math.inf:
        return Spread(max(length, 0.0), np.zeros(weights.size))
    places = np.where(weights > 0, project(vector) / math.sqrt(length), 0.0)
    size = math.ldexp(0.5, math.frexp(length)[1])  # its squares may overflow
    return Spread(float((image / size) @ (image / size)) / (length / size) * size, places)
