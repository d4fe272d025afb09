"""What the exact and the sketched geometry share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import median
from randeigen.geometry.lanczos import Operator, Top, binary_exponent, power_iteration
from randeigen.types import Array, Mask, TopDirection

Index: TypeAlias = NDArray[np.intp]
Measured = TypeVar("Measured", bound="MeasuredGeometry")

OFFSET_RATIO = 8.0  # squared norms this many times the squared distances between rows ask for a pivot
ENTRY_ROUNDING = {4: 2.0**-21, 8: 2.0**-46}  # of a Gram entry, relative to its two rows' norms, by item size
START_DIRECTIONS = 8  # secret random directions from which the search for the top direction starts


class MeasuredGeometry(ABC):
    """A geometry of which everything was measured: `GramGeometry` or `SketchGeometry`, both dataclasses."""

    partial: ClassVar[bool] = False
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

    def squared_distances(self) -> Array:
        return squared_distances_of(self.squared_norms_from_pivot(), self.inner_products())

    def squared_distances_from(self, row: int) -> Array:
        return np.asarray(self.squared_distances()[row])

    def rounding_error(self, weights: Array) -> float:
        """How much of the top variance rounding can hide.

        An inner product is off by at most `precision` of its two rows' norms, so the weighted matrix of
        errors is no larger than `precision` times the weighted mean of the squared norms.
        """
        return self.precision * self._mean_square(weights) + self.floor

    def _mean_square(self, weights: Array) -> float:
        return float(weights @ self.squared_norms_from_pivot()) / float(weights.sum())

    def _beyond_among(self, index: Index) -> Mask | None:
        return None if self.beyond is None else self.beyond[index]

    def _beyond_in(self, matrix: Array) -> Mask | None:
        """Of m combinations of the rows and the origin, those that have such a row in them."""
        return None if self.beyond is None else np.asarray(matrix[:, :-1][:, self.beyond].any(axis=1))


def squared_distances_of(squared_norms: Array, inner: Array) -> Array:
    """(n, n) squared distances. Clamped: rounding can make the distance of equal rows negative."""
    between = np.maximum(squared_norms[:, None] + squared_norms - 2 * inner, 0.0)
    np.fill_diagonal(between, 0.0)
    return np.asarray(between)


def project_rows(covariance: Array, root_weights: Array, vector: Array) -> Array:
    """(n,) the rows' projections on the direction that an eigenvector of their covariance stands for."""
    return np.asarray(np.dot(covariance, vector) / np.where(root_weights > 0, root_weights, 1.0))


def top_direction_of(top: Top, projected: Array, weights: Array, row_variances: Array) -> TopDirection:
    """The direction of a top eigenpair; `row_variances` are wᵢ‖xᵢ − μ_w‖², what each row alone adds."""
    if not 0 < top.value < math.inf:
        return TopDirection(top.value, np.zeros(weights.size), allowance=top.allowance)
    weighted = weights > 0
    projections = np.where(weighted, projected / math.sqrt(top.value), 0.0)
    return TopDirection(top.value, projections, median(row_variances[weighted]), top.allowance)


def top_direction_by_power(
    apply: Operator, project: Operator, start: Array, steps: int, weights: Array
) -> TopDirection:
    """The direction that the paper's power iteration reaches from `start` in this many steps."""
    largest = float(abs(start).max())
    vector = power_iteration(apply, np.ldexp(start, -binary_exponent(largest)), steps)
    image = apply(vector)
    square = float(vector @ image)  # squared norm of the combination Σ vᵢ·xᵢ, whose direction this is
    if not 0 < square < math.inf:
        return TopDirection(max(square, 0.0), np.zeros(weights.size))
    projections = np.where(weights > 0, project(vector) / math.sqrt(square), 0.0)
    size = math.ldexp(0.5, math.frexp(square)[1])  # its squares may overflow
    return TopDirection(float((image / size) @ (image / size)) / (square / size) * size, projections)


def random_pairs(n: int, rng: np.random.Generator) -> tuple[Index, Index]:
    """Random pairs from a secret permutation: an adversary cannot choose which distances are sampled."""
    order = rng.permutation(n)
    return order, np.roll(order, 1)


def is_offset(squared_norms: Array, squared_distances: Array) -> bool:
    """Whether the rows are far from the origin beside their mutual distances.

    The median and the lower quartile are set by honest rows: fewer than half are corrupt, so fewer than
    three quarters of the pairs hold a corrupt row.
    """
    norms = squared_norms[np.isfinite(squared_norms)]
    distances = squared_distances[np.isfinite(squared_distances)]
    if norms.size == 0 or distances.size == 0:
        return False
    quartile = float(np.partition(distances, distances.size // 4)[distances.size // 4])
    return bool(np.median(norms) > OFFSET_RATIO * max(quartile, 0.0))
