"""Attacks that need no search: zeros, sign flips, noise, far and orthogonal rows, IPM, mimic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from randeigen.attacks.base import ALL_UPDATES, MODEL_ALONE, OWN_UPDATES, RowsAttack, declare
from randeigen.attacks.directions import copies, in_dtype_of, random_direction, top_deviation, top_directions
from randeigen.types import Array


@declare(
    "zero",
    "update",
    "untargeted",
    knows=MODEL_ALONE,
    does="sends zeros: holds training back",
    paper="folklore",
)
@dataclass(frozen=True)
class ZeroUpdate(RowsAttack):
    """0 from everyone: what the artefact's model replacement attack really sends."""

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        return np.zeros((m, honest.shape[1]), honest.dtype)


@declare(
    "sign-flip",
    "update",
    "untargeted",
    knows=OWN_UPDATES,
    does="minus q times an honest update",
    paper="Li et al., AAAI 2019",
)
@dataclass(frozen=True)
class SignFlip(RowsAttack):
    """-q·u for an honest u drawn for each Byzantine client (folklore; Li et al., RSA, AAAI 2019)."""

    q: float = 1.0
    sees = ("own",)

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        return in_dtype_of(honest, -self.q * honest[rng.integers(len(honest), size=m)])


@declare(
    "noise",
    "update",
    "untargeted",
    knows=ALL_UPDATES,
    does="Gaussian noise about the mean",
    paper="Blanchard et al., NeurIPS 2017",
)
@dataclass(frozen=True)
class Noise(RowsAttack):
    """N(mu, (scale·std)²) per coordinate, one draw for each Byzantine row (Blanchard et al., 2017)."""

    scale: float = 10.0

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        noise = rng.standard_normal((m, honest.shape[1]))
        return in_dtype_of(honest, honest.mean(axis=0) + self.scale * honest.std(axis=0) * noise)


@declare(
    "far",
    "update",
    "untargeted",
    knows=ALL_UPDATES,
    does="c top standard deviations off in one random direction",
    paper="folklore",
)
@dataclass(frozen=True)
class Far(RowsAttack):
    """mu + c·sqrt(lambda1)·v, one random v for all: a tight cluster of gross outliers."""

    c: float = 50.0

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        step = self.c * top_deviation(honest) * random_direction(honest.shape[1], rng)
        return copies(honest.mean(axis=0) + step, m, honest)


@declare(
    "orthogonal",
    "update",
    "untargeted",
    knows=ALL_UPDATES,
    does="c top standard deviations off, each in a random direction of its own",
    paper="folklore",
)
@dataclass(frozen=True)
class Orthogonal(RowsAttack):
    """mu + c·sqrt(lambda1)·v_i, a random v_i for each Byzantine row: no one direction shows them all."""

    c: float = 50.0

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        steps = [random_direction(honest.shape[1], rng) for _ in range(m)]
        rows = honest.mean(axis=0) + self.c * top_deviation(honest) * np.reshape(steps, (m, honest.shape[1]))
        return in_dtype_of(honest, rows)


@declare(
    "sqrt-d",
    "update",
    "untargeted",
    knows=ALL_UPDATES,
    does="c times as far from the mean as an honest update, all in one random direction",
    paper="folklore",
)
@dataclass(frozen=True)
class SqrtD(RowsAttack):
    """mu + c·sqrt(d)·sigma·v, sigma the rms deviation of a coordinate: honest norms, all along one v."""

    c: float = 1.0

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        distance = self.c * np.linalg.norm(honest.std(axis=0))
        return copies(honest.mean(axis=0) + distance * random_direction(honest.shape[1], rng), m, honest)


@declare(
    "ipm",
    "update",
    "untargeted",
    knows=ALL_UPDATES,
    does="minus q times the mean",
    paper="Xie et al., UAI 2019",
)
@dataclass(frozen=True)
class IPM(RowsAttack):
    """-q·mu: inner product manipulation (Xie, Koyejo, Gupta, Fall of Empires, UAI 2019)."""

    q: float = 1.0

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        return copies(-self.q * honest.mean(axis=0), m, honest)


@declare(
    "mimic",
    "update",
    "untargeted",
    knows=ALL_UPDATES,
    does="repeats the honest update farthest out along their top direction",
    paper="Karimireddy et al., ICLR 2022",
)
@dataclass(frozen=True)
class Mimic(RowsAttack):
    """Every Byzantine row repeats the honest row farthest out along the top direction (ICLR 2022)."""

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        _, axes = top_directions(honest, 1)
        projections = (honest - honest.mean(axis=0)) @ axes[0]
        return copies(honest[np.abs(projections).argmax()], m, honest)
