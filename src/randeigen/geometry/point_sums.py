"""Sums over n points in k columns, made in float64 some rows at a time, whatever the points are stored in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.chunking import FLOAT64_PIECE_NUMBERS
from randeigen.types import Array

Points: TypeAlias = NDArray[Any]  # (n, k) float32 or float64


def rows_as_float64(points: Points) -> Iterator[tuple[slice, Array]]:
    """The points as float64, some rows at a time."""
    step = max(1, FLOAT64_PIECE_NUMBERS // points.shape[1])
    for i in range(0, points.shape[0], step):
        rows = slice(i, i + step)
        yield rows, points[rows].astype(np.float64, copy=False)


def projections_on(points: Points, direction: Array) -> Array:
    """(n,) the rows' inner products with a direction."""
    if points.dtype == np.float64:
        return np.asarray(points @ direction)
    return np.concatenate([some @ direction for _, some in rows_as_float64(points)])


def weighted_sum(points: Points, weights: Array) -> Array:
    """(k,) Σ wᵢ·xᵢ; the weights may be negative."""
    if points.dtype == np.float64:
        return np.asarray(weights @ points)
    total = np.zeros(points.shape[1])
    for rows, some in rows_as_float64(points):
        total += weights[rows] @ some
    return total


def squared_distances_to(points: Points, origin: Points | float = 0.0) -> Array:
    """(n,) squared distances from a point."""
    squares = []
    for _, some in rows_as_float64(points):
        difference = some - origin
        squares.append(np.einsum("ij,ij->i", difference, difference))
    return squares[0] if len(squares) == 1 else np.concatenate([np.zeros(0), *squares])


def inner_products(points: Points) -> Array:
    """(n, n) inner products."""
    if points.dtype == np.float64:
        return np.asarray(points @ points.T)
    inner = np.zeros((points.shape[0], points.shape[0]))
    for columns in _columns(points):
        exact = points[:, columns].astype(np.float64)
        inner += exact @ exact.T
    return inner


def combinations(points: Points, origin: Points, matrix: Array) -> Points:
    """(m, k) combinations of the rows and, last, the origin, stored as the points are."""
    out = np.empty((matrix.shape[0], points.shape[1]), points.dtype)
    for columns in _columns(points):
        exact = points[:, columns].astype(np.float64, copy=False)
        out[:, columns] = matrix[:, :-1] @ exact + matrix[:, -1:] * origin[columns]
    return out


def covariance(points: Points, w: Array, mean: Array) -> Array:
    """(k, k) that of the weighted rows, for few columns."""
    total = np.zeros((mean.size, mean.size))
    for rows, some in rows_as_float64(points):
        centred = some - mean
        total += (centred.T * w[rows]) @ centred
    return total


def _columns(points: Points) -> Iterator[slice]:
    step = max(1, 8 * FLOAT64_PIECE_NUMBERS // max(points.shape[0], 1))
    return (slice(i, i + step) for i in range(0, points.shape[1], step))
