"""The study grid: kinds of honest cloud × eps × attacks."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.random import Generator

from randeigen.attacks import Attack
from randeigen.lab.clouds import CLOUDS
from randeigen.rules.base import assumed_count
from randeigen.types import Array

FRACTIONS = (0.05, 0.1, 0.2)
ROWS = 100


@dataclass(frozen=True)
class Setting:
    """One cell of the grid, ready to be judged: rows moved so that the honest mean is 0; liars come last."""

    cloud: str
    eps: float
    attack: str
    seed: int
    rows: Array
    h: int

    @property
    def f(self) -> int:
        """How many liars the rule is told to fear, whether or not they came."""
        return byzantine_count(len(self.rows), self.eps)

    def coins(self) -> Generator:
        """The rule's own, which no attack has seen; the same whenever this cell is judged."""
        return np.random.default_rng([crc32(f"{self.cloud}/{self.eps}/{self.attack}".encode()), self.seed])


def byzantine_count(n: int, eps: float) -> int:
    """f = ceil(eps·n), forgiving the last bit of eps·n."""
    return assumed_count(n, eps, None)


def setting(cloud: str, eps: float, name: str, attack: Attack | None, seed: int, n: int = ROWS) -> Setting:
    """Draw the honest rows and let the attack answer them; `None` means all n rows are honest."""
    rng = np.random.default_rng([seed, list(CLOUDS).index(cloud), round(1000 * eps)])
    m = byzantine_count(n, eps) if attack else 0
    honest = CLOUDS[cloud](n - m, rng)
    rows = np.vstack([honest, attack(honest, m, rng)]) if attack else honest
    return Setting(cloud, eps, name, seed, rows - honest.mean(axis=0), n - m)


def variance(table: Array, w: Array) -> float:
    """The top eigenvalue of the w-weighted covariance (w sums to 1)."""
    used = np.flatnonzero(w)
    w, table = w[used], table[np.ix_(used, used)]
    to_mean = table @ w
    centred = table - to_mean[:, None] - to_mean + w @ to_mean
    half = np.sqrt(w)
    return max(float(np.linalg.eigvalsh(half[:, None] * centred * half)[-1]), 0.0)
