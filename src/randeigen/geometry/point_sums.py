"""Sums over a table of points, made in float64 some rows at a time, whatever the points are stored in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from randeigen.types import Array

Table: TypeAlias = NDArray[Any]  # (n, k) float32 or float64

STRIP_NUMBERS = 2**17  # numbers that are made float64 at a time: they stay in a core's own memory


def strips(points: Table) -> Iterator[tuple[slice, Array]]:
    """The points as float64, some rows at a time."""
    step = max(1, STRIP_NUMBERS // points.shape[1])
    for i in range(0, points.shape[0], step):
        rows = slice(i, i + step)
        yield rows, points[rows].astype(np.float64, copy=False)


def along(points: Table, direction: Array) -> Array:
    """(n,) the rows' places along a direction."""
    if points.dtype == np.float64:
        return np.asarray(points @ direction)
    return np.concatenate([strip @ direction for _, strip in strips(points)])


def combined(points: Table, shares: Array) -> Array:
    """(k,) the sum of the rows, each times its share."""
    if points.dtype == np.float64:
        return np.asarray(shares @ points)
    total = np.zeros(points.shape[1])
    for rows, strip in strips(points):
        total += shares[rows] @ strip
    return total


def squares(points: Table, origin: Table | float = 0.0) -> Array:
    """(n,) squared distances from a point."""
    found = [np.zeros(0)]
    for _, strip in strips(points):
        apart = strip - origin
        found.append(np.einsum("ij,ij->i", apart, apart))
    return np.concatenate(found)


def products(points: Table) -> Array:
    """(n, n) inner products."""
    if points.dtype == np.float64:
        return np.asarray(points @ points.T)
    inner = np.zeros((points.shape[0], points.shape[0]))
    for part in _columns(points):
        exact = points[:, part].astype(np.float64)
        inner += exact @ exact.T
    return inner


def mixed(points: Table, origin: Table, matrix: Array) -> Table:
    """(m, k) combinations of the rows and, last, the origin, stored as the points are."""
    out = np.empty((matrix.shape[0], points.shape[1]), points.dtype)
    for part in _columns(points):
        exact = points[:, part].astype(np.float64, copy=False)
        out[:, part] = matrix[:, :-1] @ exact + matrix[:, -1:] * origin[part]
    return out


def covariance(points: Table, w: Array, mean: Array) -> Array:
    """(k, k) that of the weighted rows, for few columns."""
    total = np.zeros((mean.size, mean.size))
    for rows, strip in strips(points):
        centred = strip - mean
        total += (centred.T * w[rows]) @ centred
    return total


def _columns(points: Table) -> Iterator[slice]:
    step = max(1, 8 * STRIP_NUMBERS // max(points.shape[0], 1))
    return (slice(i, i + step) for i in range(0, points.shape[1], step))
