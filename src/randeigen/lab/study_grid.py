"""The study grid: distributions of honest rows × eps × attacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from zlib import crc32

import numpy as np
from numpy.random import Generator

from randeigen import attacks
from randeigen.attacks import RowsFunction
from randeigen.lab.clouds import CLOUDS
from randeigen.rules.base import assumed_count
from randeigen.types import Array

FRACTIONS = (0.05, 0.1, 0.2)
ROWS = 100

# The attacks of the grid by their labels. A label seeds the random numbers of its cells and is the key of
# stored results, so that labels stay as they are where the registry has another name for the attack.
_NAMES = {
    "zero": "zero",
    "sign-flip": "sign-flip",
    "sign-flip-10": "sign-flip:q=10",
    "noise": "noise",
    "far": "far",
    "near": "far:c=3",
    "orthogonal": "orthogonal",
    "sqrt-d": "sqrt-d",
    "alie": "alie",
    "alie-1.5": "alie:z=1.5",
    "ipm": "ipm",
    "ipm-10": "ipm:q=10",
    "min-max": "min-max",
    "min-sum": "min-sum",
    "hidra": "hidra-whole",
    "hidra-0.5": "hidra-whole:F=0.5",
    "trimmed-mean": "tma",
    "krum": "krum-attack",
    "anti-dnc": "anti-dnc",
    "mimic": "mimic",
}
GRID_ATTACKS: Mapping[str, RowsFunction] = {label: attacks.build(name) for label, name in _NAMES.items()}


class StudyStream(IntEnum):
    """The random streams of a cell beyond its rows; the numbers are part of stored results."""

    REHEARSAL = 1  # the adaptive attacker's runs of the rule
    CENTRE = 2  # where the honest mean is


@dataclass(frozen=True)
class Setting:
    """One cell of the grid: rows shifted so that the honest mean is 0; the Byzantine rows come last."""

    cloud: str
    eps: float
    attack: str
    seed: int
    rows: Array
    h: int

    @property
    def f(self) -> int:
        """How many Byzantine rows the rule assumes, whether or not there are any."""
        return byzantine_count(len(self.rows), self.eps)

    def rng(self) -> Generator:
        """The rule's random numbers, which no attack knows; the same whenever this cell is run."""
        return np.random.default_rng([crc32(f"{self.cloud}/{self.eps}/{self.attack}".encode()), self.seed])


def byzantine_count(n: int, eps: float) -> int:
    """f = ceil(eps·n), tolerating rounding in the last bit of eps·n."""
    return assumed_count(n, eps, None)


def setting(
    cloud: str, eps: float, name: str, attack: RowsFunction | None, seed: int, n: int = ROWS
) -> Setting:
    """Draw the honest rows, then the Byzantine ones; without an attack all n rows are honest."""
    rng = np.random.default_rng([seed, list(CLOUDS).index(cloud), round(1000 * eps)])
    m = byzantine_count(n, eps) if attack else 0
    honest = CLOUDS[cloud](n - m, rng)
    rows = np.vstack([honest, attack(honest, m, rng)]) if attack else honest
    return Setting(cloud, eps, name, seed, rows - honest.mean(axis=0), n - m)


def variance(gram: Array, w: Array) -> float:
    """The top eigenvalue of the w-weighted covariance, from the Gram matrix of the rows (w sums to 1)."""
    used = np.flatnonzero(w)
    w, gram = w[used], gram[np.ix_(used, used)]
    to_mean = gram @ w
    centred = gram - to_mean[:, None] - to_mean + w @ to_mean
    half = np.sqrt(w)
    return max(float(np.linalg.eigvalsh(half[:, None] * centred * half)[-1]), 0.0)
