"""Directions of the honest rows, and helpers that Byzantine rows are built with."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from randeigen.types import Array


def unit(vector: Array) -> Array:
    """The vector scaled to norm 1; zeros stay zeros."""
    norm = np.linalg.norm(vector)
    return vector / norm if norm > 0 else vector


def random_direction(d: int, rng: Generator) -> Array:
    """A unit vector, uniform on the sphere."""
    return unit(rng.standard_normal(d))


def top_directions(honest: Array, count: int) -> tuple[Array, Array]:
    """Standard deviations (k,) along the top principal directions (k, d) of the honest rows; k <= count."""
    centred = honest - honest.mean(axis=0)
    values, vectors = np.linalg.eigh(centred @ centred.T / len(honest))
    axes = (centred.T @ vectors[:, ::-1][:, :count]).T
    return np.sqrt(np.maximum(values[::-1][:count], 0)), np.array([unit(axis) for axis in axes])


def top_deviation(honest: Array) -> float:
    """sqrt(lambda1), the attacker's unit of distance; for identical rows the norm of their mean, or 1."""
    return float(top_directions(honest, 1)[0][0] or np.linalg.norm(honest.mean(axis=0)) or 1.0)


def copies(row: Array, m: int, honest: Array) -> Array:
    """(m, d) the same row from every Byzantine client."""
    return in_dtype_of(honest, np.tile(row, (m, 1)))


def in_dtype_of(honest: Array, rows: Array) -> Array:
    """Byzantine rows in the dtype of the honest ones."""
    return np.asarray(rows, dtype=honest.dtype)
