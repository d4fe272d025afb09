"""The attacker who has read the rule and searches for what hurts it most."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from randeigen.attacks.base import AttackerView, RowsAttack, Tensor
from randeigen.attacks.directions import copies, directions, random_direction, sent, top_deviation, unit
from randeigen.types import Array, Weights


@dataclass(frozen=True)
class AdaptiveAttack:
    """mu + t·sqrt(lambda1)·v, v and t searched to bias one given rule most: the adaptive attacker.

    `aggregate` maps all rows (n, d), liars last, to their n weights. Directions tried: the widest honest one
    both ways, against the mean, and a random one; liars in one body, smeared, fanned out, or with decoys.
    """

    aggregate: Callable[[Array], Weights]
    distances: tuple[float, ...] = tuple(0.5 * 1.25**i for i in range(16))
    refine: int = 2  # times the spacing around the best distance is halved

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
        mean, length = honest.mean(axis=0), top_deviation(honest)
        plans = self.plans(honest, m, rng)
        if m == 0:
            return copies(mean, 0, honest)

        def harm(plan: Array, t: float) -> float:
            rows = np.vstack([honest, mean + t * length * plan])
            weights = np.asarray(self.aggregate(rows), dtype=float)
            return float(np.linalg.norm(weights @ rows / weights.sum() - mean))

        tried = [(harm(plan, t), t, i) for i, plan in enumerate(plans) for t in self.distances]
        best, t, i = max(tried)
        step = self.distances[1] / self.distances[0]
        for _ in range(self.refine):
            step = math.sqrt(step)
            best, t, i = max([(best, t, i), *((harm(plans[i], s), s, i) for s in (t / step, t * step))])
        return sent(mean + t * length * plans[i], honest)

    @staticmethod
    def plans(honest: Array, m: int, rng: Generator) -> list[Array]:
        """Each an (m, d) matrix of steps of about unit length."""
        d, (_, axes) = honest.shape[1], directions(honest, 1)
        aims = [axes[0], -axes[0], -unit(honest.mean(axis=0)), random_direction(d, rng)]
        bodies = [np.tile(aim, (m, 1)) for aim in aims]
        apart = np.reshape([random_direction(d, rng) for _ in range(m)], (m, d))
        smear = np.linspace(0.5, 1.5, m)[:, None]  # no two share a score, so none falls with the first
        decoys = np.where(np.arange(m)[:, None] < m // 4, apart, bodies[2])  # a few keep the filter busy
        return [*bodies, smear * bodies[0], smear * bodies[2], bodies[2] + 0.3 * apart, decoys]


@dataclass(frozen=True)
class AdaptiveUpdates:
    """The attacker who has read the server's rule and tries out, each round, what biases it most."""

    tries: int = 8  # distances for each direction
    sees = ("honest", "weigh")

    def craft(self, sight: AttackerView, rng: Generator) -> Tensor:
        """(m, d) corrupt rows."""
        assert sight.weigh is not None
        distances = tuple(float(t) for t in np.geomspace(0.5, 16, self.tries))
        return RowsAttack(AdaptiveAttack(sight.weigh, distances, refine=1)).craft(sight, rng)
