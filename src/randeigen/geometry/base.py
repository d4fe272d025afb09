"""What the exact and the sketched geometry share."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import median
from randeigen.geometry.lanczos import Operator, Top, binary_exponent, power_iteration
from randeigen.types import Array, Spread


def squared_distances_of(squares: Array, inner: Array) -> Array:
    """Squared distances. Clamped: rounding can make the distance of twins negative."""
    between = np.maximum(squares[:, None] + squares - 2 * inner, 0.0)
    np.fill_diagonal(between, 0.0)
    return np.asarray(between)


def project_rows(scaled: Array, half: Array, vector: Array) -> Array:
    """(n,) the rows' places along the direction that an eigenvector of their covariance stands for."""
    return np.asarray(np.dot(scaled, vector) / np.where(half > 0, half, 1.0))


def top_direction_of(top: Top, projected: Array, weights: Array, alone: Array) -> Spread:
    if not 0 < top.value < math.inf:
        return Spread(top.value, np.zeros(weights.size), allowance=top.allowance)
    live = weights > 0
    places = np.where(live, projected / math.sqrt(top.value), 0.0)
    return Spread(top.value, places, median(alone[live]), top.allowance)


def top_direction_by_power(
    apply: Operator, project: Operator, start: Array, steps: int, weights: Array
) -> Spread:
    peak = float(abs(start).max())
    vector = power_iteration(apply, np.ldexp(start, -binary_exponent(peak)), steps)
    image = apply(vector)
    length = float(vector @ image)  # of the direction the rows' combination `vector` points in, squared
    if not 0 < length < math.inf:
        return Spread(max(length, 0.0), np.zeros(weights.size))
    places = np.where(weights > 0, project(vector) / math.sqrt(length), 0.0)
    size = math.ldexp(0.5, math.frexp(length)[1])  # its squares may overflow
    return Spread(float((image / size) @ (image / size)) / (length / size) * size, places)


Index: TypeAlias = NDArray[np.intp]
OFFSET_RATIO = 8.0  # squared lengths this many times the squared distances between rows ask for a pivot
ENTRY_ROUNDING = {4: 2.0**-21, 8: 2.0**-46}  # of a table entry, relative to its rows' lengths, by item size


def random_pairs(n: int, rng: np.random.Generator) -> tuple[Index, Index]:
    """Every row with a partner nobody could foresee."""
    order = rng.permutation(n)
    return order, np.roll(order, 1)


def is_offset(squares: Array, apart: Array) -> bool:
    """Whether the rows stand far from the origin beside their mutual distances.

    The median and the lower quartile are set by honest rows: fewer than half are corrupt, so fewer than
    three quarters of the pairs hold a corrupt row.
    """
    squares, apart = squares[np.isfinite(squares)], apart[np.isfinite(apart)]
    if squares.size == 0 or apart.size == 0:
        return False
    quartile = float(np.partition(apart, apart.size // 4)[apart.size // 4])
    return bool(np.median(squares) > OFFSET_RATIO * max(quartile, 0.0))


START_DIRECTIONS = 8  # secret directions to begin the search for the widest one with
