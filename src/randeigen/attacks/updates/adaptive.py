"""The attacker who knows the rule and tries out what biases it most."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from randeigen.attacks.base import ALL_UPDATES_AND_RULE, AttackerView, RowsAttack, declare
from randeigen.attacks.directions import (
    copies,
    in_dtype_of,
    random_direction,
    top_deviation,
    top_directions,
    unit,
)
from randeigen.types import Array, Weights


@dataclass(frozen=True)
class AdaptiveAttack(RowsAttack):
    """mu + t·sqrt(lambda1)·v, v and t chosen to bias one given rule most: the adaptive attacker.

    Directions tried: the top honest one both ways, against the mean, and a random one; the Byzantine rows in
    one cluster, smeared along it, fanned out, or with decoys.
    """

    weigh: Callable[[Array], Weights] | None = None  # (n, d) rows, Byzantine last, to n weights; in a
    # federation it is the server's rule
    distances: tuple[float, ...] = tuple(0.5 * 1.25**i for i in range(16))
    refine: int = 2  # times the spacing around the best distance is halved
    sees = ("honest", "weigh")

    def informed(self, view: AttackerView) -> AdaptiveAttack:
        """Against the server's rule."""
        return replace(self, weigh=view.weigh)

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        assert self.weigh is not None, "give `weigh`, the rule that is attacked"
        weigh, mean, deviation = self.weigh, honest.mean(axis=0), top_deviation(honest)
        plans = self.plans(honest, m, rng)
        if m == 0:
            return copies(mean, 0, honest)

        def harm(plan: Array, t: float) -> float:
            rows = np.vstack([honest, mean + t * deviation * plan])
            weights = np.asarray(weigh(rows), dtype=float)
            return float(np.linalg.norm(weights @ rows / weights.sum() - mean))

        tried = [(harm(plan, t), t, i) for i, plan in enumerate(plans) for t in self.distances]
        best, t, i = max(tried)
        step = self.distances[1] / self.distances[0]
        for _ in range(self.refine):
            step = math.sqrt(step)
            best, t, i = max([(best, t, i), *((harm(plans[i], s), s, i) for s in (t / step, t * step))])
        return in_dtype_of(honest, mean + t * deviation * plans[i])

    @staticmethod
    def plans(honest: Array, m: int, rng: Generator) -> list[Array]:
        """Formations to try, each an (m, d) matrix of steps of norm about 1."""
        d, (_, axes) = honest.shape[1], top_directions(honest, 1)
        aims = [axes[0], -axes[0], -unit(honest.mean(axis=0)), random_direction(d, rng)]
        clusters = [np.tile(aim, (m, 1)) for aim in aims]
        apart = np.reshape([random_direction(d, rng) for _ in range(m)], (m, d))
        smear = np.linspace(0.5, 1.5, m)[:, None]  # distinct scores: a filter cannot remove all at once
        decoys = np.where(
            np.arange(m)[:, None] < m // 4, apart, clusters[2]
        )  # a few use up the filter's budget
        return [*clusters, smear * clusters[0], smear * clusters[2], clusters[2] + 0.3 * apart, decoys]


@declare(
    "adaptive",
    "update",
    "untargeted",
    knows=ALL_UPDATES_AND_RULE,
    does="tries out what biases this very rule most",
    paper="randeigen",
)
def adaptive_updates(tries: int = 8) -> AdaptiveAttack:
    """The adaptive attacker of a federation: `tries` distances for each formation in every round."""
    distances = tuple(float(t) for t in np.geomspace(0.5, 16, tries))
    return AdaptiveAttack(distances=distances, refine=1)
