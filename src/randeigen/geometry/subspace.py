"""Top directions of thousands of points: each product reads all of them, so as few are made as will do.

Products are made in float32, some points at a time on every core; what is small is kept in float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend import native
from randeigen.backend.chunking import POINT_PARTS, parallel_map
from randeigen.geometry.eigen import decomposed
from randeigen.types import Array

Points = NDArray[np.float32]  # (n, k)

MIN_SHARED_NUMBERS = 2**20  # numbers of points from which a product is shared among the cores
MAX_RESIDUAL = 0.1  # of the eigenvalue, at which a round's direction is good enough
MAX_BASIS = 40  # directions kept from round to round; beyond that only the best
KEPT_DIRECTIONS = 16
MAX_PRODUCTS = 60  # for one set of weights


def projections_on(points: Points, direction: Array) -> Array:
    """(n,) inner products of the points with a direction."""
    narrow = direction.astype(np.float32)
    times = native.projections if native.take(points) else np.matmul
    if points.size < MIN_SHARED_NUMBERS:
        return np.asarray(times(points, narrow), np.float64)
    parts = over_points(lambda rows: times(points[rows], narrow), len(points))
    return np.asarray(np.concatenate(parts), np.float64)


def weighted_sum(points: Points, weights: Array) -> Array:
    """(k,) Σ wᵢ·yᵢ; the weights may be negative."""
    narrow = weights.astype(np.float32)
    add_up = native.weighted_sum if native.take(points) else lambda points, weights: weights @ points
    if points.size < MIN_SHARED_NUMBERS:
        return np.asarray(add_up(points, narrow), np.float64)
    return total_of(over_points(lambda rows: add_up(points[rows], narrow[rows]), len(points)))


def over_points(work: Any, n: int, multiple: int = 1, parts: int = POINT_PARTS) -> list[Any]:
    """`work` on so many slices of n points, each but the last of a multiple of so many."""
    step = multiple * -(-n // (parts * multiple))
    return parallel_map(work, [slice(i, min(i + step, n)) for i in range(0, n, step)])


def total_of(parts: list[Any]) -> Array:
    """Their sum in float64, in order."""
    total = parts[0].astype(np.float64)
    for part in parts[1:]:
        total += part
    return np.asarray(total)


class GrowingSubspace:
    """Directions that are kept while weights change, since the points do not: a round adds a few at most.

    A Rayleigh-Ritz step within them gives the top direction under any weights; where its residual is too
    large, the residual becomes one more direction. The first is secret and belongs to no row, so that
    permuted rows have the same answers.
    """

    def __init__(self, points: Points, start: Array) -> None:
        self.points = points
        self._basis = np.zeros((0, points.shape[1]))  # (q, k) orthonormal
        self._projections = np.zeros((len(points), 0))  # (n, q)
        self._start = start

    def top(self, w: Array) -> tuple[float, Array, float]:
        """Variance along the top direction under weights that sum to 1, projections, and the residual."""
        if len(self._basis) == 0:
            self._extend(self._start)
        for _ in range(MAX_PRODUCTS):
            centred = self._projections - w @ self._projections
            values, vectors = decomposed((centred.T * w) @ centred)
            value, projections = float(values[-1]), centred @ vectors[:, -1]
            if not 0 < value < math.inf:
                return max(value, 0.0), np.zeros(len(w)), 0.0
            image = weighted_sum(self.points, w * projections)
            residual = image - value * (vectors[:, -1] @ self._basis)
            off = math.sqrt(residual @ residual)
            if off <= MAX_RESIDUAL * value:
                break
            if len(self._basis) >= MAX_BASIS:
                self._keep(vectors[:, -KEPT_DIRECTIONS:])
            if not self._extend(residual):
                break
        return value, projections, off

    def _extend(self, direction: Array) -> bool:
        """One more direction, if it is one."""
        size = math.sqrt(direction @ direction)
        for _ in range(2):  # rounding lets old directions back in
            direction = direction - (self._basis @ direction) @ self._basis
        norm = math.sqrt(direction @ direction)
        if not norm > 1e-5 * size:
            return False
        self._basis = np.vstack((self._basis, direction / norm))
        projected = projections_on(self.points, self._basis[-1])
        self._projections = np.column_stack((self._projections, projected))
        return True

    def _keep(self, vectors: Array) -> None:
        self._basis, self._projections = vectors.T @ self._basis, self._projections @ vectors
