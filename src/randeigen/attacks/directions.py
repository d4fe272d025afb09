"""Directions and copies that crafted attacks are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.random import Generator

from randeigen.types import Array

Attack: TypeAlias = Callable[[Array, int, Generator], Array]


def unit(vector: Array) -> Array:
    """The vector at length 1; zeros stay zeros."""
    length = np.linalg.norm(vector)
    return vector / length if length > 0 else vector


def random_direction(d: int, rng: Generator) -> Array:
    """A unit vector, uniform on the sphere."""
    return unit(rng.standard_normal(d))


def directions(honest: Array, count: int) -> tuple[Array, Array]:
    """Standard deviations (k,) and unit vectors (k, d) of the widest honest directions; k <= count."""
    centred = honest - honest.mean(axis=0)
    values, vectors = np.linalg.eigh(centred @ centred.T / len(honest))
    axes = (centred.T @ vectors[:, ::-1][:, :count]).T
    return np.sqrt(np.maximum(values[::-1][:count], 0)), np.array([unit(axis) for axis in axes])


def top_deviation(honest: Array) -> float:
    """sqrt(lambda1), the attacker's unit of length; where they agree exactly, that of their mean, or 1."""
    return float(directions(honest, 1)[0][0] or np.linalg.norm(honest.mean(axis=0)) or 1.0)


def copies(row: Array, m: int, honest: Array) -> Array:
    """The same row from all m liars."""
    return sent(np.tile(row, (m, 1)), honest)


def sent(rows: Array, honest: Array) -> Array:
    """Corrupt rows in the dtype of the honest ones."""
    return np.asarray(rows, dtype=honest.dtype)
