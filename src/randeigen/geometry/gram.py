"""The exact geometry: what the (n+1, n+1) Gram matrix of the rows and the origin says of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import median
from randeigen.geometry.block_eigen import top_by_blocks
from randeigen.geometry.eigen import (
    MAX_DENSE_ROWS,
    Start,
    Top,
    binary_exponent,
    bulk_of,
    project_rows,
    start_of,
    top_dense,
    top_eigenvalue,
)
from randeigen.geometry.lanczos import top_of_large_matrix
from randeigen.geometry.power import top_direction_by_power
from randeigen.types import Array, Mask, TopDirection

Index: TypeAlias = NDArray[np.intp]
Measured = TypeVar("Measured", bound="MeasuredGeometry")

# Rows up to which LAPACK is faster than Lanczos. Polynomials on a block of directions are faster than both
# where it matters only how large the top is; where its direction does, they need twice as long as LAPACK.
MAX_SOLVED_ROWS = 160
ENTRY_ROUNDING = {4: 2.0**-21, 8: 2.0**-46}  # of a Gram entry, relative to its two rows' norms, by item size
START_DIRECTIONS = 8  # secret random directions from which the search for the top direction starts
MAX_PLAIN_WEIGHT = 1e6  # larger ones are divided by the largest before they meet squared norms
CENTRING_ROUNDING = 2.0**-48  # of the mean square: what is left of equal rows when the mean is subtracted
# A weighted mean of squares below this may lack some that underflowed: together less than UNDERFLOW.
SMALLEST_MEAN_SQUARE, UNDERFLOW = 1e-280, 2.0**-1000
FAR_ORIGIN_SQUARE = 2.0**890  # of an origin that may have been brought nearer, since its square did not fit
DIFFERENT_SUMS = 1e-9  # weights whose sums differ by less differ by rounding
USUAL_ROUNDING = 2.0**-21  # rounding of a float32 entry whose numbers nobody arranged


class MeasuredGeometry(ABC):
    """A geometry of which everything was measured: `GramGeometry` or `SketchGeometry`, both dataclasses."""

    partial: ClassVar[bool] = False
    columns: int | None = None
    prior_weights: Array  # (n,)
    precision: float  # rounding of an inner product, relative to the two rows' norms
    floor: float  # squared norms below this may have underflowed
    beyond: Mask | None  # (n,) rows further out than is recorded here; None: there are none

    @property
    def n(self) -> int:
        return self.prior_weights.size

    @abstractmethod
    def squared_norms_from_pivot(self) -> Array:
        """(n,) squared distances from the pivot: how far out each row is, to a factor."""

    @abstractmethod
    def inner_products(self) -> Array:
        """(n, n) inner products of the rows less the pivot."""

    @abstractmethod
    def _take(self: Measured, index: Index) -> Measured: ...

    def take(self: Measured, index: Index) -> Measured:
        """The same rows without the others; no copy in the ordinary case, where every row is taken."""
        return self if np.array_equal(index, np.arange(self.n)) else self._take(index)

    @abstractmethod
    def top_direction(self, weights: Array, settled: float = 0.0) -> TopDirection: ...

    def top_variance(self, weights: Array) -> TopDirection:
        return self.top_direction(weights)

    def squared_distances(self) -> Array:
        return squared_distances_of(self.squared_norms_from_pivot(), self.inner_products())

    def squared_distances_from(self, row: int) -> Array:
        return np.asarray(self.squared_distances()[row])

    def squared_distances_from_mean(self, weights: Array) -> Array:
        w = weights / weights.sum()
        apart = self.squared_distances() @ w  # squared distances from the mean, plus the whole variance
        return np.asarray(np.maximum(apart - w @ apart / 2, 0.0))

    def rounding_error(self, weights: Array) -> float:
        """How much of the top variance rounding can hide.

        An inner product is off by at most `precision` of its two rows' norms, so the weighted matrix of
        errors is no larger than `precision` times the weighted mean of the squared norms. That mean may
        underflow where weights are next to nothing.
        """
        square = self._mean_square(weights)
        error = self.precision * square + self.floor
        if square < SMALLEST_MEAN_SQUARE and (self._squares[weights > 0] > 0).any():
            error += UNDERFLOW
        return error

    @cached_property
    def _squares(self) -> Array:
        """`squared_norms_from_pivot`, once for all rounds."""
        return self.squared_norms_from_pivot()

    @cached_property
    def _largest_square(self) -> float:
        return float(self._squares.max())

    @cached_property
    def _ones(self) -> Array:
        return np.ones(self.n)  # whose product with a few numbers is their sum, three times as fast

    def _mean_square(self, weights: Array) -> float:
        return float(weights.dot(self._squares)) / float(weights.dot(self._ones))

    def _is_rounding(self, trace: float, weights: Array) -> bool:
        """Whether rounding is all there is of a covariance: no mean of the squares is above the largest."""
        return not trace > CENTRING_ROUNDING * self._largest_square and (
            trace <= CENTRING_ROUNDING * self._mean_square(weights)
        )

    def _beyond_among(self, index: Index) -> Mask | None:
        return None if self.beyond is None else self.beyond[index]

    def _beyond_in(self, matrix: Array) -> Mask | None:
        """Of m combinations of the rows and the origin, those that have such a row in them."""
        return None if self.beyond is None else np.asarray(matrix[:, :-1][:, self.beyond].any(axis=1))


def of_plain_size(weights: Array) -> tuple[Array, float]:
    """Weights that can be multiplied with what is squared, and the factor: a rule may stretch by any size."""
    peak = float(abs(weights).max(initial=0.0))
    return (weights / peak, peak) if peak > MAX_PLAIN_WEIGHT else (weights, 1.0)


def squared_distances_of(squared_norms: Array, inner: Array) -> Array:
    """(n, n) squared distances. Clamped: rounding can make the distance of equal rows negative."""
    between = np.maximum(squared_norms[:, None] + squared_norms - 2 * inner, 0.0)
    np.fill_diagonal(between, 0.0)
    return np.asarray(between)


def top_direction_of(top: Top, projected: Array, weights: Array, row_variances: Array) -> TopDirection:
    """The direction of a top eigenpair; `row_variances` are wᵢ‖xᵢ − μ_w‖², what each row alone adds."""
    if not 0 < top.value < math.inf:
        return TopDirection(top.value, np.zeros(weights.size), allowance=top.allowance)
    projections = projected / math.sqrt(top.value)
    if np.count_nonzero(weights) < weights.size:
        weighted = weights > 0
        projections, row_variances = np.where(weighted, projections, 0.0), row_variances[weighted]
    return TopDirection(top.value, projections, median(row_variances), top.allowance)


@dataclass(frozen=True, eq=False)
class GramGeometry(MeasuredGeometry):
    """The exact Gram matrix. The caller's origin is its last line, so norms survive a shift of all rows."""

    gram: Array  # (n+1, n+1) inner products, measured from a pivot near the rows
    prior_weights: Array  # (n,)
    directions: Start  # (n, p) secret ones, from which the search for the top direction starts
    scale: float = 1.0
    precision: float = 0.0  # rounding of an entry, relative to the two rows' norms
    distortion: float = 0.0
    floor: float = 0.0  # squared norms below this may have underflowed
    beyond: Mask | None = None  # (n,) rows further out than the matrix says; None: there are none
    columns: int | None = None  # how many were measured, d; None where the products alone are known
    coordinates: ClassVar[None] = None  # inner products are all there is
    origin: ClassVar[None] = None
    check: ClassVar[None] = None  # it is exact: the certificate needs no other measurement

    @cached_property
    def start(self) -> Array:
        """(n, p) secret directions from which the search for the top direction starts."""
        return start_of(self.directions)

    def top_direction(self, weights: Array, settled: float = 0.0) -> TopDirection:
        return self._top(weights, settled)

    def top_variance(self, weights: Array) -> TopDirection:
        return self._top(weights, alone=True)

    def _top(self, weights: Array, settled: float = 0.0, alone: bool = False) -> TopDirection:
        covariance, root_weights = self._covariance(weights)
        row_variances = covariance.diagonal()
        trace = float(row_variances.dot(self._ones))
        if self._is_rounding(trace, weights):
            return TopDirection(max(trace, 0.0), np.zeros(self.n))
        value = top_eigenvalue(covariance, root_weights) if alone and self.n <= MAX_SOLVED_ROWS else None
        if value is not None:
            return top_direction_of(Top(value, weights), np.zeros(self.n), weights, row_variances)
        if settled and self.n > MAX_DENSE_ROWS:
            settled *= median(row_variances[weights > 0])
        top = top_of_covariance(covariance, root_weights, lambda: self.start, settled, trace)
        projected = project_rows(covariance, root_weights, top.vector)
        return top_direction_of(top, projected, weights, row_variances)

    def top_direction_by_power_iteration(
        self, weights: Array, steps: int, rng: np.random.Generator
    ) -> TopDirection:
        """The paper's power iteration, run where it has the same iterates: among the rows."""
        covariance, root_weights = self._covariance(weights)
        # A Gaussian start g in d dimensions appears to the rows as X·g, whose covariance is X·Xᵀ.
        start = covariance @ rng.standard_normal(self.n)
        project = partial(project_rows, covariance, root_weights)
        return top_direction_by_power(covariance.__matmul__, project, start, steps, weights)

    def inner_products(self) -> Array:
        return self.gram[:-1, :-1]

    def squared_norms(self) -> Array:
        squares = self.gram.diagonal()
        return np.asarray(np.maximum(squares[:-1] + squares[-1] - 2.0 * self.gram[:-1, -1], 0.0))

    def squared_norms_from_pivot(self) -> Array:
        return np.array(self.gram.diagonal()[:-1])

    def distance_between(self, weights_a: Array, weights_b: Array) -> float:
        difference = np.empty(self.n + 1)
        difference[:-1], peak = of_plain_size(weights_a - weights_b)
        difference[-1] = -difference[:-1].sum()
        if self.gram[-1, -1] > FAR_ORIGIN_SQUARE and abs(difference[-1]) > DIFFERENT_SUMS:
            return math.inf  # the origin is further away than the matrix says
        return peak * math.sqrt(max(float(difference.dot(self.gram).dot(difference)), 0.0))

    def _take(self, index: Index) -> GramGeometry:
        lines = np.append(index, self.n)
        return replace(
            self,
            gram=self.gram[np.ix_(lines, lines)],
            prior_weights=self.prior_weights[index],
            directions=lambda: self.start[index],
            beyond=self._beyond_among(index),
        )

    def combine_rows(self, matrix: Array) -> GramGeometry:
        """The Gram matrix of m combinations of the rows and, last, the origin.

        Rounding averages out among rows that are averaged, so no more of it is assumed than is usual.
        Certificates are made of the rows' own matrix.
        """
        lines = np.vstack((matrix, np.append(np.zeros(self.n), 1.0)))
        m = matrix.shape[0]
        return replace(
            self,
            gram=lines @ self.gram @ lines.T,
            prior_weights=np.ones(m),
            directions=lambda: self.start[:m],
            precision=min(self.precision, USUAL_ROUNDING),
            beyond=self._beyond_in(matrix),
        )

    def with_prior_weights(self, prior: Array) -> GramGeometry:
        return replace(self, prior_weights=prior)

    def _covariance(self, weights: Array) -> tuple[Array, Array]:
        """sqrt(wᵢwⱼ)·⟨xᵢ − μ_w, xⱼ − μ_w⟩, which has the eigenvalues of Σ_w; and the roots of the weights."""
        inner, w = self.gram[:-1, :-1], weights / weights.dot(self._ones)
        root_weights, shift = np.sqrt(w), inner.dot(w)
        shift -= w.dot(shift) / 2
        covariance = shift[:, None] + shift
        np.subtract(inner, covariance, covariance)
        covariance *= root_weights[:, None] * root_weights
        return covariance, root_weights


def top_of_covariance(
    matrix: Array, root_weights: Array, start: Start, settled: float = 0.0, trace: float | None = None
) -> Top:
    """Largest eigenvalue and its unit eigenvector of a weighted covariance in the space of the n rows.

    `root_weights`, the roots of the weights, is the direction in which it is 0. `start`, (n, p), holds secret
    random directions: nobody can arrange for these to be orthogonal to the answer. Where the eigenvalue is at
    most `settled`, its eigenvector may be rough.

    The allowance is 0 where LAPACK finds it, which is exact to rounding; the residual where it is settled;
    else, beyond n = MAX_SOLVED_ROWS, what `top_of_operator` claims. A matrix with a number that is not finite
    has an infinite eigenvalue.
    """
    n, size = matrix.shape[0], float(matrix.trace()) if trace is None else trace
    if not 0 < size < math.inf:  # rounding is all there is, or its sum overflows
        size = float(abs(matrix).max())
    exponent = binary_exponent(size)
    if exponent:  # by a power of two: no bit of an ordinary result depends on it
        matrix, settled = np.ldexp(matrix, -exponent), 0.0
    top: Top | None = None
    if settled and n > MAX_DENSE_ROWS:
        bulk = bulk_of(matrix, root_weights)
        if bulk is not None and bulk.high <= settled:
            top = top_by_blocks(matrix, root_weights, start_of(start), settled, bulk)
    if top is None and n > MAX_SOLVED_ROWS:
        top = top_of_large_matrix(matrix, start_of(start))
    top = top or top_dense(matrix, start, root_weights)
    return top.scaled(exponent) if exponent else top
