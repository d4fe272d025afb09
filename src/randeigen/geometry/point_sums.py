"""Sums over n points in k columns, made in float64 some rows at a time, whatever the points are stored in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.chunking import FLOAT64_PIECE_NUMBERS, POINT_PARTS, parallel_map
from randeigen.types import Array

Points: TypeAlias = NDArray[Any]  # (n, k) float32 or float64

MIN_SHARED_NUMBERS = 2**23  # numbers of points from which sharing a product costs less than waking a thread


def rows_as_float64(points: Points, within: slice = slice(None)) -> Iterator[tuple[slice, Array]]:
    """The points as float64, some rows at a time; those of a slice, if one is given."""
    start, stop, _ = within.indices(points.shape[0])
    step = max(1, FLOAT64_PIECE_NUMBERS // points.shape[1])
    for i in range(start, stop, step):
        rows = slice(i, min(i + step, stop))
        yield rows, points[rows].astype(np.float64, copy=False)


def _sum_of_parts(points: Points, shape: tuple[int, ...], work: Callable[[slice, Array], Array]) -> Array:
    """The sum of what `work` makes of some rows and their points, in an order of its own."""

    def of_part(part: slice) -> Array:
        total = np.zeros(shape)
        for rows, some in rows_as_float64(points, part):
            total += work(rows, some)
        return total

    first, *others = parallel_map(of_part, _parts(points))
    return np.asarray(sum(others, first))


def _parts(points: Points) -> list[slice]:
    n = points.shape[0]
    step = -(-n // POINT_PARTS) if points.size > MIN_SHARED_NUMBERS else n
    return [slice(i, i + step) for i in range(0, n, step)] or [slice(0)]


def projections_on(points: Points, direction: Array) -> Array:
    """(n,) the rows' inner products with a direction."""

    def of_part(part: slice) -> Array:
        return np.concatenate([np.zeros(0), *(some @ direction for _, some in rows_as_float64(points, part))])

    return np.concatenate(parallel_map(of_part, _parts(points)))


def weighted_sum(points: Points, weights: Array) -> Array:
    """(k,) Σ wᵢ·xᵢ; the weights may be negative."""
    return _sum_of_parts(points, points.shape[1:], lambda rows, some: np.asarray(weights[rows] @ some))


def covariance_times(points: Points, w: Array, mean: Array, direction: Array) -> Array:
    """(k,) the covariance of the weighted rows times a direction: the points are read once."""
    shift = mean @ direction
    shares = np.empty(w.size)

    def work(rows: slice, some: Array) -> Array:
        shares[rows] = w[rows] * (some @ direction - shift)
        return np.asarray(shares[rows] @ some)

    total = _sum_of_parts(points, points.shape[1:], work)
    return np.asarray(total - shares.sum() * mean)


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
    root_weights = np.sqrt(w)[:, None]

    def work(rows: slice, some: Array) -> Array:
        centred = some - mean
        centred *= root_weights[rows]
        return np.asarray(centred.T @ centred)

    return _sum_of_parts(points, (mean.size, mean.size), work)


def _columns(points: Points) -> Iterator[slice]:
    step = max(1, 8 * FLOAT64_PIECE_NUMBERS // max(points.shape[0], 1))
    return (slice(i, i + step) for i in range(0, points.shape[1], step))
