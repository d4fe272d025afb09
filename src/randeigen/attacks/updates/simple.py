"""Attacks on updates that need no search: zeros, sign flips, noise, far and orthogonal rows, IPM, mimic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from randeigen.attacks.directions import copies, directions, random_direction, sent, top_deviation
from randeigen.types import Array


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
        step = self.c * top_deviation(honest) * random_direction(honest.shape[1], rng)
        return copies(honest.mean(axis=0) + step, m, honest)


@dataclass(frozen=True)
class Orthogonal:
    """mu + c·sqrt(lambda1)·v_i, each liar along its own random v_i: no one direction shows them all."""

    c: float = 50.0

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
        steps = [random_direction(honest.shape[1], rng) for _ in range(m)]
        rows = honest.mean(axis=0) + self.c * top_deviation(honest) * np.reshape(steps, (m, honest.shape[1]))
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
