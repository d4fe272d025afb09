"""Attacks on rules that look for the widest direction."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from randeigen.attacks.craft import copies, reach, unit
from randeigen.types import Array

PUBLISHED_HIDRA = math.sqrt(20) - 1  # the variance that a test at sqrt(20)·sigma leaves to the attacker
SHIPPED_HIDRA = 0.5  # what the RandEigen artefact runs instead, 2.6 times weaker


@dataclass(frozen=True)
class HIDRA:
    """mu - sqrt(F·lambda1/(eps² + (1-eps)²·eps))·mu/|mu|, whole vector (Choudhary et al., S&P 2024)."""

    F: float = PUBLISHED_HIDRA

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
        mean, eps = honest.mean(axis=0), m / (m + len(honest))
        c = math.sqrt(self.F / (eps**2 + (1 - eps) ** 2 * eps)) * reach(honest) if m else 0.0
        return copies(mean - c * unit(mean), m, honest)


@dataclass(frozen=True)
class AntiDnC:
    """A decoy at mu + 2000·a·r takes the eye, the rest hide at mu + 40·a·r', r' ⟂ r (HiDRA, appendix).

    With these published lengths the rest still tilt the widest direction by enough to be dropped by a DnC
    that drops m rows: they stand rest²/decoy·a·(m-1)/n further out along it. A smaller `rest` hides better.
    """

    decoy: float = 2000.0
    rest: float = 40.0

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
        mean = honest.mean(axis=0)
        a = np.linalg.norm(honest - mean, axis=1).mean() or reach(honest)
        mask = rng.integers(2, size=honest.shape[1])
        rows = copies(mean + self.rest * a * unit(np.asarray(1.0 - mask)), m, honest)
        rows[:1] = mean + self.decoy * a * unit(np.asarray(1.0 * mask))
        return rows
