"""The omniscient attacker: knows all honest rows and the rule, and searches for what biases it most."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from randeigen.attacks.base import ALL_UPDATES_AND_RULE, AttackerView, RowsAttack, declare
from randeigen.attacks.directions import in_dtype_of, top_deviation, top_directions, unit
from randeigen.types import Array, Weights

GROUPS = 2  # clusters that the Byzantine rows form
AXES = 3  # the top two directions of the honest rows, and one orthogonal to both
GENOME = GROUPS * (AXES + 1) + 2  # numbers that describe a formation: see `Formations.rows`
DISTANCES = (0.3, 0.6, 1.0, 1.5, 2.2, 3.2, 5.0, 8.0)  # in honest standard deviations: the first guesses
SEED = 0


class SearchResult(NamedTuple):
    """The most harmful rows of a search."""

    bias: float  # from the honest rows' mean to the answer, in the units of the rows
    rows: Array  # (m, d) the corrupt rows that do it
    evaluations: int  # how often the rule was run


def search(
    rule: Callable[[Array], Any], honest: Array, m: int, *, budget: int = 400, seed: int = SEED
) -> SearchResult:
    """The m Byzantine rows, of those tried, that move the answer of `rule` furthest from the honest mean.

    The Byzantine rows form two clusters in the span of the top two directions of the honest rows and a third
    one, smeared and scattered; their sizes, positions and shapes are searched by CMA-ES from the best of some
    first guesses. The result is a lower bound on what an attacker can do.

    Parameters:
        rule: maps (h + m, d) rows, Byzantine ones last, to their (d,) answer, as every rule here does.
        honest: (h, d) the honest rows, all known to the attacker.
        m: how many Byzantine rows there are.
        budget: how often the rule is run, at most.
        seed: the result is deterministic given it, unless the rule draws random numbers of its own.

    Returns:
        The largest bias found, and the rows that cause it.

    Examples:
        >>> import numpy as np
        >>> from randeigen import RandEigen, attacks
        >>> honest = np.random.default_rng(0).standard_normal((16, 5))
        >>> attacks.search(RandEigen(f=4), honest, 4, budget=20).rows.shape
        (4, 5)
    """
    rng = np.random.default_rng(seed)
    honest = np.asarray(honest)
    formations = Formations.against(honest, m, rng)
    mean = honest.mean(axis=0)

    def harm(genome: Array) -> float:
        rows = np.vstack([honest, in_dtype_of(honest, formations.rows(genome))])
        bias = float(np.linalg.norm(np.asarray(rule(rows), dtype=float) - mean))
        return math.inf if math.isnan(bias) else bias

    if m == 0:
        return SearchResult(0.0, in_dtype_of(honest, np.zeros((0, honest.shape[1]))), 0)
    guesses = formations.guesses()[: max(budget // 4, 1)]
    best = maximise(harm, guesses, budget, rng)
    return SearchResult(best.value, in_dtype_of(honest, formations.rows(best.genome)), best.evaluations)


@declare(
    "search",
    "update",
    "untargeted",
    knows=ALL_UPDATES_AND_RULE,
    does="searches numerically for what biases this very rule most",
    paper="randeigen",
    weigh=None,
)
@dataclass(frozen=True)
class Search(RowsAttack):
    """The most harmful rows that `search` finds against one rule, within `budget` runs of the rule."""

    weigh: Callable[[Array], Weights] | None = None  # (n, d) rows to n weights; in a federation the server's
    budget: int = 200
    sees = ("honest", "weigh")

    def informed(self, view: AttackerView) -> Search:
        """Against the server's rule."""
        return replace(self, weigh=view.weigh)

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        assert self.weigh is not None, "give `weigh`, the rule that is attacked"
        weigh = self.weigh

        def answer(rows: Array) -> Array:
            weights = np.asarray(weigh(rows), dtype=float)
            return np.asarray(weights @ rows / weights.sum())

        return search(answer, honest, m, budget=self.budget, seed=int(rng.integers(2**63))).rows


@dataclass(frozen=True, eq=False)
class Formations:
    """The arrangements of Byzantine rows that are searched: a genome of a few numbers describes m rows."""

    m: int
    mean: Array  # (d,) of the honest rows
    axes: Array  # (AXES, d) directions, with the honest standard deviation along the top one as norm
    scatter: Array  # (m, d) one direction for each Byzantine row, with an honest row's distance as norm

    @staticmethod
    def against(honest: Array, m: int, rng: Generator) -> Formations:
        """Formations scaled to these honest rows."""
        rows = np.asarray(honest, dtype=float)
        d, mean, deviation = rows.shape[1], rows.mean(axis=0), top_deviation(rows)
        axes = np.zeros((AXES, d))
        top = top_directions(rows, AXES - 1)[1]
        axes[: len(top)] = top
        other = rng.standard_normal(d)
        axes[-1] = unit(other - axes[:-1].T @ (axes[:-1] @ other))  # zero where d leaves no room for it
        scatter = rng.standard_normal((m, d))
        typical = float(np.linalg.norm(rows - mean, axis=1).mean())
        scatter *= typical / np.linalg.norm(scatter, axis=1)[:, None]
        return Formations(m, mean, deviation * axes, scatter)

    def rows(self, genome: Array) -> Array:
        """(m, d) rows: positions of both clusters along the axes, smears, the first one's size, scatter."""
        genome = np.asarray(genome, dtype=float)
        positions = genome[: GROUPS * AXES].reshape(GROUPS, AXES)
        smears = genome[GROUPS * AXES : GROUPS * (AXES + 1)]
        first = round(self.m / (1 + math.exp(-float(np.clip(genome[-2], -30, 30)))))
        cluster = (np.arange(self.m) >= first).astype(int)
        rank = np.where(cluster == 0, np.arange(self.m) / max(first, 1), 0.0)
        rank = np.where(cluster == 1, (np.arange(self.m) - first) / max(self.m - first, 1), rank)
        along = positions[cluster] * (1 + smears[cluster] * (rank - 0.5))[:, None]
        return np.asarray(self.mean + along @ self.axes + float(np.tanh(genome[-1])) * self.scatter)

    @staticmethod
    def guesses() -> list[Array]:
        """One cluster along each axis both ways; and most rows opposite a few distant ones."""
        genomes = []
        for t in DISTANCES:
            for axis in range(AXES):
                for side in (1.0, -1.0):
                    genome = np.zeros(GENOME)
                    genome[axis] = genome[AXES + axis] = side * t
                    genomes.append(genome)
                    if axis == 0:
                        apart = genome.copy()
                        apart[AXES], apart[-2] = -2 * side * t, 1.5
                        genomes.append(apart)
        return genomes


class Best(NamedTuple):
    """The best genome so far."""

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
    effective_parents = 1 / float(ranks @ ranks)
    c_path, c_sigma = 4 / (dim + 4), (effective_parents + 2) / (dim + effective_parents + 5)
    c_one = 2 / ((dim + 1.3) ** 2 + effective_parents)
    c_mu = min(
        1 - c_one, 2 * (effective_parents - 2 + 1 / effective_parents) / ((dim + 2) ** 2 + effective_parents)
    )
    damping = 1 + c_sigma + 2 * max(0.0, math.sqrt((effective_parents - 1) / (dim + 1)) - 1)
    usual = math.sqrt(dim) * (1 - 1 / (4 * dim) + 1 / (21 * dim**2))  # length of a Gaussian vector
    centre, sigma, first = best.genome, step, step
    covariance, path, path_sigma = np.eye(dim), np.zeros(dim), np.zeros(dim)
    while best.evaluations < budget and 1e-3 * first < sigma < 1e3 * first:
        values, basis = np.linalg.eigh(covariance)
        roots = np.sqrt(np.maximum(values, 1e-20))
        moves = rng.standard_normal((offspring, dim)) * roots @ basis.T
        moves = moves[: budget - best.evaluations]
        harms = np.array([harm(centre + sigma * move) for move in moves])
        order = np.argsort(-harms, kind="stable")
        spent = best.evaluations + len(moves)
        better = harms[order[0]] > best.value
        genome = centre + sigma * moves[order[0]] if better else best.genome
        best = Best(float(max(best.value, harms[order[0]])), genome, spent)
        if len(moves) < offspring:
            break
        chosen = moves[order[:parents]]
        move = ranks @ chosen
        centre = centre + sigma * move
        whitened = basis @ ((basis.T @ move) / roots)
        path_sigma = (1 - c_sigma) * path_sigma + math.sqrt(
            c_sigma * (2 - c_sigma) * effective_parents
        ) * whitened
        path = (1 - c_path) * path + math.sqrt(c_path * (2 - c_path) * effective_parents) * move
        covariance = (1 - c_one - c_mu) * covariance + c_one * np.outer(path, path)
        covariance += c_mu * (chosen.T * ranks) @ chosen
        sigma *= math.exp(c_sigma / damping * (float(np.linalg.norm(path_sigma)) / usual - 1))
    return best
