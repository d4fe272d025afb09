"""The omniscient attacker: knows all honest rows and the rule, and searches for what biases it most."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from randeigen.attacks.directions import directions, sent, top_deviation, unit
from randeigen.types import Array, Weights

GROUPS = 2  # bodies that the corrupt rows form
AXES = 3  # the two widest honest directions, and one at right angles to both
GENOME = GROUPS * (AXES + 1) + 2  # numbers that describe a formation: see `Formations.rows`
DISTANCES = (0.3, 0.6, 1.0, 1.5, 2.2, 3.2, 5.0, 8.0)  # in honest standard deviations: the first guesses
SEED = 0


class Found(NamedTuple):
    """The worst that a search came upon."""

    bias: float  # from the honest rows' mean to the answer, in the units of the rows
    rows: Array  # (m, d) the corrupt rows that do it
    evaluations: int  # how often the rule was run


def search(
    rule: Callable[[Array], Any], honest: Array, m: int, *, budget: int = 400, seed: int = SEED
) -> Found:
    """The m corrupt rows that move the answer of `rule` furthest from the mean of `honest`, as far as found.

    `rule` maps (h + m, d) rows, corrupt ones last, to their (d,) answer: every rule of this package does. The
    corrupt rows stand in two bodies in the plane of the two widest honest directions and a third one, smeared
    and scattered; sizes, places and shapes are searched by CMA-ES from the best of some first guesses. The
    rule is run at most `budget` times. Deterministic given the seed, unless the rule draws coins of its own.
    What is found is a lower bound on what can be done.
    """
    rng = np.random.default_rng(seed)
    honest = np.asarray(honest)
    formations = Formations.against(honest, m, rng)
    mean = honest.mean(axis=0)

    def harm(genome: Array) -> float:
        rows = np.vstack([honest, sent(formations.rows(genome), honest)])
        bias = float(np.linalg.norm(np.asarray(rule(rows), dtype=float) - mean))
        return math.inf if math.isnan(bias) else bias

    if m == 0:
        return Found(0.0, sent(np.zeros((0, honest.shape[1])), honest), 0)
    guesses = formations.guesses()[: max(budget // 4, 1)]
    best = maximise(harm, guesses, budget, rng)
    return Found(best.value, sent(formations.rows(best.genome), honest), best.evaluations)


@dataclass(frozen=True)
class Search:
    """What `search` finds against one rule, as an attack on rows; `weigh` maps rows (n, d) to n weights."""

    weigh: Callable[[Array], Weights]
    budget: int = 200

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""

        def answer(rows: Array) -> Array:
            weights = np.asarray(self.weigh(rows), dtype=float)
            return np.asarray(weights @ rows / weights.sum())

        return search(answer, honest, m, budget=self.budget, seed=int(rng.integers(2**63))).rows


@dataclass(frozen=True, eq=False)
class Formations:
    """What the corrupt rows can look like: a genome of a few numbers stands for m rows."""

    m: int
    mean: Array  # (d,) of the honest rows
    axes: Array  # (AXES, d) directions, as long as the honest rows are wide along the widest
    scatter: Array  # (m, d) a direction for each corrupt row alone, as long as an honest row is far out

    @staticmethod
    def against(honest: Array, m: int, rng: Generator) -> Formations:
        """Those that suit these honest rows."""
        rows = np.asarray(honest, dtype=float)
        d, mean, length = rows.shape[1], rows.mean(axis=0), top_deviation(rows)
        axes = np.zeros((AXES, d))
        found = directions(rows, AXES - 1)[1]
        axes[: len(found)] = found
        other = rng.standard_normal(d)
        axes[-1] = unit(other - axes[:-1].T @ (axes[:-1] @ other))  # zero where d leaves no room for it
        alone = rng.standard_normal((m, d))
        alone *= float(np.linalg.norm(rows - mean, axis=1).mean()) / np.linalg.norm(alone, axis=1)[:, None]
        return Formations(m, mean, length * axes, alone)

    def rows(self, genome: Array) -> Array:
        """(m, d): places of both bodies along the axes, their smears, how many are in the first, scatter."""
        genome = np.asarray(genome, dtype=float)
        places = genome[: GROUPS * AXES].reshape(GROUPS, AXES)
        smears = genome[GROUPS * AXES : GROUPS * (AXES + 1)]
        first = round(self.m / (1 + math.exp(-float(np.clip(genome[-2], -30, 30)))))
        body = (np.arange(self.m) >= first).astype(int)
        rank = np.where(body == 0, np.arange(self.m) / max(first, 1), 0.0)
        rank = np.where(body == 1, (np.arange(self.m) - first) / max(self.m - first, 1), rank)
        along = places[body] * (1 + smears[body] * (rank - 0.5))[:, None]
        return np.asarray(self.mean + along @ self.axes + float(np.tanh(genome[-1])) * self.scatter)

    @staticmethod
    def guesses() -> list[Array]:
        """All in one body along each axis both ways; and most of them opposite a few far ones."""
        found = []
        for t in DISTANCES:
            for axis in range(AXES):
                for side in (1.0, -1.0):
                    genome = np.zeros(GENOME)
                    genome[axis] = genome[AXES + axis] = side * t
                    found.append(genome)
                    if axis == 0:
                        apart = genome.copy()
                        apart[AXES], apart[-2] = -2 * side * t, 1.5
                        found.append(apart)
        return found


class Best(NamedTuple):
    """The best genome that a maximiser came upon."""

    value: float
    genome: Array
    evaluations: int


def maximise(
    harm: Callable[[Array], float],
    guesses: Sequence[Array],
    budget: int,
    rng: Generator,
    step: float = 0.4,
) -> Best:
    """The most harm within `budget` evaluations: the best guess, then CMA-ES (Hansen 2016) from there.

    Where the search has shrunk to a point it begins again from the best so far, twice as wide.
    """
    tried = [(harm(guess), i) for i, guess in enumerate(guesses[:budget])]
    value, at = max(tried)
    best = Best(value, np.asarray(guesses[at], dtype=float), len(tried))
    while best.evaluations < budget:
        best = _evolve(harm, best, budget, rng, step)
        step *= 2
    return best


def _evolve(harm: Callable[[Array], float], best: Best, budget: int, rng: Generator, step: float) -> Best:
    """One run of CMA-ES from the best so far, until the budget is spent or the steps vanish."""
    dim = best.genome.size
    offspring = 4 + int(3 * math.log(dim))
    parents = offspring // 2
    ranks = math.log(parents + 0.5) - np.log(np.arange(1, parents + 1))
    ranks /= ranks.sum()
    mass = 1 / float(ranks @ ranks)
    c_path, c_sigma = 4 / (dim + 4), (mass + 2) / (dim + mass + 5)
    c_one = 2 / ((dim + 1.3) ** 2 + mass)
    c_mu = min(1 - c_one, 2 * (mass - 2 + 1 / mass) / ((dim + 2) ** 2 + mass))
    damping = 1 + c_sigma + 2 * max(0.0, math.sqrt((mass - 1) / (dim + 1)) - 1)
    usual = math.sqrt(dim) * (1 - 1 / (4 * dim) + 1 / (21 * dim**2))  # length of a Gaussian vector
    centre, sigma, first = best.genome, step, step
    covariance, path, path_sigma = np.eye(dim), np.zeros(dim), np.zeros(dim)
    while best.evaluations < budget and 1e-3 * first < sigma < 1e3 * first:
        values, basis = np.linalg.eigh(covariance)
        roots = np.sqrt(np.maximum(values, 1e-20))
        drawn = rng.standard_normal((offspring, dim)) * roots @ basis.T
        drawn = drawn[: budget - best.evaluations]
        harms = np.array([harm(centre + sigma * move) for move in drawn])
        order = np.argsort(-harms, kind="stable")
        spent = best.evaluations + len(drawn)
        better = harms[order[0]] > best.value
        genome = centre + sigma * drawn[order[0]] if better else best.genome
        best = Best(float(max(best.value, harms[order[0]])), genome, spent)
        if len(drawn) < offspring:
            break
        chosen = drawn[order[:parents]]
        move = ranks @ chosen
        centre = centre + sigma * move
        whitened = basis @ ((basis.T @ move) / roots)
        path_sigma = (1 - c_sigma) * path_sigma + math.sqrt(c_sigma * (2 - c_sigma) * mass) * whitened
        path = (1 - c_path) * path + math.sqrt(c_path * (2 - c_path) * mass) * move
        covariance = (1 - c_one - c_mu) * covariance + c_one * np.outer(path, path)
        covariance += c_mu * (chosen.T * ranks) @ chosen
        sigma *= math.exp(c_sigma / damping * (float(np.linalg.norm(path_sigma)) / usual - 1))
    return best
