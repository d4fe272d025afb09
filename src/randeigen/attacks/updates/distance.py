"""Attacks on rules that look at the distances between rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.random import Generator

from randeigen.attacks.directions import copies, unit
from randeigen.types import Array

Bearing: TypeAlias = Literal["std", "sign", "unit"]


def bearing(honest: Array, kind: Bearing) -> Array:
    """The direction Min-Max and Min-Sum push along: -std, -sign(mu) or -mu/|mu|."""
    mean = honest.mean(axis=0)
    return -np.asarray({"std": honest.std(axis=0), "sign": np.sign(mean), "unit": unit(mean)}[kind])


@dataclass(frozen=True)
class MinMax:
    """mu + gamma·p, no farther from an honest row than two are apart (Shejwalkar, Houmansadr, 2021)."""

    along: Bearing = "std"

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
        mean, p = honest.mean(axis=0), bearing(honest, self.along)
        centred = honest - mean
        inner = centred @ centred.T
        own = np.diag(inner)
        widest = (own[:, None] + own - 2 * inner).max()
        # |gamma·p - x|² <= widest is a quadratic in gamma for each honest x; the tightest one rules.
        square, half = p @ p, centred @ p
        room = np.maximum(half**2 + square * (widest - own), 0)
        gamma = ((half + np.sqrt(room)) / square).min() if square > 0 else 0.0
        return copies(mean + gamma * p, m, honest)


@dataclass(frozen=True)
class MinSum:
    """mu + gamma·p, sum of squared distances as an honest row's (Shejwalkar, Houmansadr, 2021)."""

    along: Bearing = "std"
    strict: bool = False  # compare with the least honest sum, as the authors' code does, not the largest

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
        mean, p = honest.mean(axis=0), bearing(honest, self.along)
        own = ((honest - mean) ** 2).sum(axis=1)
        # Sums from a point at distance r of the mean: total + h·r². So r² may reach the extreme own square.
        allowed, square = own.min() if self.strict else own.max(), p @ p
        gamma = math.sqrt(allowed / square) if square > 0 else 0.0
        return copies(mean + gamma * p, m, honest)


@dataclass(frozen=True)
class KrumAttack:
    """-lambda·sign(sum u), lambda halved until Krum picks a liar (Fang et al., USENIX Sec. 2020)."""

    halvings: int = 40

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
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
    """Krum's choice (f = m) among honest rows and m copies of `row`; h or more is a liar. Liars win ties."""
    cloud = np.vstack([np.tile(row, (m, 1)), honest])
    own = (cloud**2).sum(axis=1)
    squares = np.maximum(own[:, None] + own - 2 * cloud @ cloud.T, 0)
    near = max(len(cloud) - m - 2, 1)
    np.fill_diagonal(squares, 0)
    sums = np.sort(squares, axis=1)[:, 1 : near + 1].sum(axis=1)
    return (int(sums.argmin()) - m) % len(cloud)
