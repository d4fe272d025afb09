"""Attacks on rules that look at the distances between rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.random import Generator

from randeigen.attacks.base import ALL_UPDATES, RowsAttack, declare
from randeigen.attacks.directions import copies, unit
from randeigen.errors import BadParameter
from randeigen.types import Array

Perturbation: TypeAlias = Literal["std", "sign", "unit"]


def perturbation(honest: Array, kind: Perturbation) -> Array:
    """The direction Min-Max and Min-Sum push along: -std, -sign(mu) or -mu/|mu|."""
    mean = honest.mean(axis=0)
    return -np.asarray({"std": honest.std(axis=0), "sign": np.sign(mean), "unit": unit(mean)}[kind])


def _check(kind: str) -> None:
    if kind not in get_args(Perturbation):
        raise BadParameter(f"along={kind!r}; choose one of {', '.join(get_args(Perturbation))}.")


@declare(
    "min-max",
    "update",
    "untargeted",
    knows=ALL_UPDATES,
    does="as far out as two honest updates are apart",
    paper="Shejwalkar, Houmansadr, NDSS 2021",
)
@dataclass(frozen=True)
class MinMax(RowsAttack):
    """mu + gamma·p, no farther from an honest row than two are apart (Shejwalkar, Houmansadr, 2021)."""

    along: Perturbation = "std"

    def __post_init__(self) -> None:
        _check(self.along)

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        mean, p = honest.mean(axis=0), perturbation(honest, self.along)
        centred = honest - mean
        gram = centred @ centred.T
        squared_norms = np.diag(gram)
        largest = (squared_norms[:, None] + squared_norms - 2 * gram).max()  # squared distance of two rows
        # |gamma·p - x|² <= largest is a quadratic in gamma for each honest x; the least root of all counts.
        square, half = p @ p, centred @ p
        discriminant = np.maximum(half**2 + square * (largest - squared_norms), 0)
        gamma = ((half + np.sqrt(discriminant)) / square).min() if square > 0 else 0.0
        return copies(mean + gamma * p, m, honest)


@declare(
    "min-sum",
    "update",
    "untargeted",
    knows=ALL_UPDATES,
    does="as far from all as an honest update is",
    paper="Shejwalkar, Houmansadr, NDSS 2021",
)
@dataclass(frozen=True)
class MinSum(RowsAttack):
    """mu + gamma·p, sum of squared distances as an honest row's (Shejwalkar, Houmansadr, 2021)."""

    along: Perturbation = "std"
    strict: bool = False  # compare with the least honest sum, as the authors' code does, not the largest

    def __post_init__(self) -> None:
        _check(self.along)

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        mean, p = honest.mean(axis=0), perturbation(honest, self.along)
        squares = ((honest - mean) ** 2).sum(axis=1)
        # Squared distances from a point at distance r of the mean sum to total + h·r²: r² may be as large as
        # the extreme honest row's.
        allowed, square = squares.min() if self.strict else squares.max(), p @ p
        gamma = math.sqrt(allowed / square) if square > 0 else 0.0
        return copies(mean + gamma * p, m, honest)


@declare(
    "krum-attack",
    "update",
    "untargeted",
    knows=ALL_UPDATES,
    does="against every sign, as far as Krum picks it",
    paper="Fang et al., USENIX Security 2020",
    aliases=("krum",),
)
@dataclass(frozen=True)
class KrumAttack(RowsAttack):
    """-lambda·sign(sum u), lambda halved until Krum picks a Byzantine row (Fang et al., USENIX Sec. 2020)."""

    halvings: int = 40

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        h, d = honest.shape
        against, mean = -np.sign(honest.sum(axis=0)), honest.mean(axis=0)
        # Never below Fang's bound: his mean distance to neighbours is at most twice the largest radius.
        start = 3 * np.linalg.norm(honest - mean, axis=1).max() / math.sqrt(d) + np.abs(mean).max()
        for halving in range(self.halvings if m else 0):
            row = 0.5**halving * start * against
            if krum_picks(honest, row, m) >= h:
                break
        else:
            row = 0 * against
        return copies(row, m, honest)


def krum_picks(honest: Array, row: Array, m: int) -> int:
    """Krum's choice (f = m) among h honest rows and m copies of `row`: h or more is one of the copies.

    The copies win ties.
    """
    rows = np.vstack([np.tile(row, (m, 1)), honest])
    squared_norms = (rows**2).sum(axis=1)
    squares = np.maximum(squared_norms[:, None] + squared_norms - 2 * rows @ rows.T, 0)
    neighbours = max(len(rows) - m - 2, 1)
    np.fill_diagonal(squares, 0)
    sums = np.sort(squares, axis=1)[:, 1 : neighbours + 1].sum(axis=1)
    return (int(sums.argmin()) - m) % len(rows)
