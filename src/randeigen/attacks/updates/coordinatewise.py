"""Attacks on rules that look at one coordinate at a time."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.random import Generator

from randeigen.attacks.base import AttackerView, Tensor
from randeigen.attacks.directions import copies
from randeigen.types import Array


@dataclass(frozen=True)
class ALIE:
    """mu - z·std per coordinate; z = Phi⁻¹((n-m-s)/(n-m)), s = floor(n/2)+1-m (Baruch et al., 2019)."""

    z: float | None = None

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
        z = self.largest(len(honest), m) if self.z is None else self.z
        return copies(honest.mean(axis=0) - z * honest.std(axis=0), m, honest)

    @staticmethod
    def largest(h: int, m: int) -> float:
        """The deviation a majority of honest rows still exceeds."""
        supporters = (h + m) // 2 + 1 - m
        share = (h - supporters) / h
        return NormalDist().inv_cdf(share) if 0 < share < 1 else 0.0


@dataclass(frozen=True)
class TrimmedMeanAttack:
    """Just beyond every coordinate's honest range, against its direction (Fang et al., USENIX Sec. 2020)."""

    b: float = 1.5
    model: Array | None = None  # (d,) the weights the updates start from; zeros unless given

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
        start = np.zeros(honest.shape[1]) if self.model is None else self.model
        models = start - honest
        growing = honest.sum(axis=0) < 0
        edge = np.where(growing, models.min(axis=0), models.max(axis=0))
        shrink = growing == (edge > 0)  # beyond the edge means towards 0 here, away from it elsewhere
        factor = rng.uniform(1, self.b, honest.shape[1])
        return copies(start - np.where(shrink, edge / factor, edge * factor), m, honest)


@dataclass(frozen=True)
class TMA:
    """Beyond every coordinate's honest range of *weights*, against its direction (Fang et al., 2020).

    All send one vector, off by a share of the weight itself: a gross outlier (attacks.md 4.4).
    """

    b: float = 1.5
    sees = ("honest",)

    def craft(self, sight: AttackerView, rng: Generator) -> Tensor:
        """(m, d) corrupt rows."""
        rows, w = sight.honest, sight.weights
        growing = rows.sum(0) < 0
        # Honest models are w - u: the least of them belongs to the largest u.
        edge = (w - rows.amax(0)).where(growing, w - rows.amin(0))
        factor = rows.new_tensor(rng.uniform(1, self.b, len(w)))
        shrink = growing == (edge > 0)
        return (w - (edge / factor).where(shrink, edge * factor)).expand(sight.m, -1)
