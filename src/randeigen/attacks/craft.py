"""Crafted rows: what f liars send when they know every honest row. Here the simple ones, and the tools.

An attack is a frozen value called as `attack(honest, m, rng)`: (h, d) honest rows in, (m, d) corrupt rows
out, in the dtype of the honest ones. Rows are updates `w - w_i`, so "against the mean" is uphill.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


def reach(honest: Array) -> float:
    """sqrt(lambda1), the attacker's unit of length; where they agree exactly, that of their mean, or 1."""
    return float(directions(honest, 1)[0][0] or np.linalg.norm(honest.mean(axis=0)) or 1.0)


def copies(row: Array, m: int, honest: Array) -> Array:
    """The same row from all m liars."""
    return sent(np.tile(row, (m, 1)), honest)


def sent(rows: Array, honest: Array) -> Array:
    """Corrupt rows in the dtype of the honest ones."""
    return np.asarray(rows, dtype=honest.dtype)


@dataclass(frozen=True)
class ZeroUpdate:
    """0 from everyone: what the artefact's model replacement attack really sends."""

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
        return np.zeros((m, honest.shape[1]), honest.dtype)


@dataclass(frozen=True)
class SignFlip:
    """-q·u for an honest u drawn per liar (folklore; Li et al., RSA, AAAI 2019)."""

    q: float = 1.0

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
        return sent(-self.q * honest[rng.integers(len(honest), size=m)], honest)


@dataclass(frozen=True)
class Noise:
    """N(mu, (scale·std)²) per coordinate, drawn per liar (folklore; Blanchard et al., NeurIPS 2017)."""

    scale: float = 10.0

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
        drawn = rng.standard_normal((m, honest.shape[1]))
        return sent(honest.mean(axis=0) + self.scale * honest.std(axis=0) * drawn, honest)


@dataclass(frozen=True)
class Far:
    """mu + c·sqrt(lambda1)·v, one random v for all: a gross outlier in a body."""

    c: float = 50.0

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
        step = self.c * reach(honest) * random_direction(honest.shape[1], rng)
        return copies(honest.mean(axis=0) + step, m, honest)


@dataclass(frozen=True)
class Orthogonal:
    """mu + c·sqrt(lambda1)·v_i, each liar along its own random v_i: no one direction shows them all."""

    c: float = 50.0

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
        steps = [random_direction(honest.shape[1], rng) for _ in range(m)]
        rows = honest.mean(axis=0) + self.c * reach(honest) * np.reshape(steps, (m, honest.shape[1]))
        return sent(rows, honest)


@dataclass(frozen=True)
class SqrtD:
    """mu + c·sqrt(d)·sigma·v, sigma the rms deviation of a coordinate: honest length, all along one v."""

    c: float = 1.0

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
        length = self.c * np.linalg.norm(honest.std(axis=0))
        return copies(honest.mean(axis=0) + length * random_direction(honest.shape[1], rng), m, honest)


@dataclass(frozen=True)
class IPM:
    """-q·mu: inner product manipulation (Xie, Koyejo, Gupta, Fall of Empires, UAI 2019)."""

    q: float = 1.0

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
        return copies(-self.q * honest.mean(axis=0), m, honest)


@dataclass(frozen=True)
class Mimic:
    """All liars repeat the honest row farthest out along the widest axis (Karimireddy et al., ICLR 2022)."""

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
        _, axes = directions(honest, 1)
        along = (honest - honest.mean(axis=0)) @ axes[0]
        return copies(honest[np.abs(along).argmax()], m, honest)
