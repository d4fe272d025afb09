"""Attacks on rules that look at one coordinate at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.random import Generator

from randeigen.attacks.base import ALL_UPDATES, AttackerView, RowsAttack, Tensor, declare
from randeigen.attacks.directions import copies
from randeigen.types import Array


@declare(
    "alie",
    "update",
    "untargeted",
    knows=ALL_UPDATES,
    does="z deviations off in every coordinate",
    paper="Baruch et al., NeurIPS 2019",
)
@dataclass(frozen=True)
class ALIE(RowsAttack):
    """mu - z·std per coordinate; z = Phi⁻¹((n-m-s)/(n-m)), s = floor(n/2)+1-m (Baruch et al., 2019)."""

    z: float | None = None

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        z = self.largest(len(honest), m) if self.z is None else self.z
        return copies(honest.mean(axis=0) - z * honest.std(axis=0), m, honest)

    @staticmethod
    def largest(h: int, m: int) -> float:
        """The deviation that a majority of honest rows still exceeds."""
        supporters = (h + m) // 2 + 1 - m
        share = (h - supporters) / h
        return NormalDist().inv_cdf(share) if 0 < share < 1 else 0.0


@declare(
    "tma",
    "update",
    "untargeted",
    knows=ALL_UPDATES,
    does="beyond every coordinate's honest range",
    paper="Fang et al., USENIX Security 2020",
    aliases=("trimmed-mean",),
    model=None,
)
@dataclass(frozen=True)
class TrimmedMeanAttack(RowsAttack):
    """Beyond the honest range of every *weight*, against its direction (Fang et al., USENIX Security 2020).

    All send one vector, off by a share of the weight itself: a gross outlier. In a federation the weights
    are those of the round; on rows alone they are `model`, or zeros.
    """

    b: float = 1.5
    model: Array | None = None  # (d,) the weights that the updates start from

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        start = np.zeros(honest.shape[1]) if self.model is None else self.model
        factor = rng.uniform(1, self.b, honest.shape[1])
        low, high = honest.min(axis=0), honest.max(axis=0)
        return copies(_beyond(start, low, high, honest.sum(axis=0), factor, np.where), m, honest)

    def craft(self, view: AttackerView, rng: Generator) -> Tensor:
        """(m, d) one row for all, computed on the rows' own device."""
        import torch

        rows, start = view.honest, view.weights
        factor = rows.new_tensor(rng.uniform(1, self.b, len(start)))
        row: Tensor = _beyond(start, rows.amin(0), rows.amax(0), rows.sum(0), factor, torch.where)
        return row.expand(view.m, -1)


def _beyond(start: Any, low: Any, high: Any, total: Any, factor: Any, where: Callable[..., Any]) -> Any:
    """(d,) the update whose model w - u is `factor` beyond the honest models; arrays or tensors.

    `low`, `high` and `total` are the least, the largest and the sum of the honest updates u per coordinate.
    """
    growing = total < 0  # honest models grow where updates w - w_i are negative
    # Honest models are w - u: the least of them belongs to the largest u.
    edge = where(growing, start - high, start - low)
    shrink = growing == (edge > 0)  # beyond the edge means towards 0 here, and away from 0 elsewhere
    return start - where(shrink, edge / factor, edge * factor)
