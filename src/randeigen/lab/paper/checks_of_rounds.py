"""The paper's statements about the rounds of Algorithms 3 and 4 as checks: how many, how they end."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.random import Generator

import randeigen
from randeigen import rules
from randeigen.lab.clouds import CLOUDS
from randeigen.lab.paper.checks_of_removal import (
    COINS,
    FRACTIONS,
    ROWS,
    Check,
    first_round,
    in_the_regime,
)
from randeigen.lab.study_grid import GRID_ATTACKS, setting
from randeigen.rules import Rule
from randeigen.rules.published import CONVERGENCE_TOLERANCE, PublishedRandEigen
from randeigen.types import Array, Verdict

SCALE = 10.0  # between the distances of outliers that go one by one
MORE = 4  # outliers beyond those that 2·n·eps rounds can take
SEEDS = 3


def allowed(eps: float) -> int:
    """Whole rounds in 2·n·eps."""
    return math.floor(2 * ROWS * eps)


def of_many_scales(outliers: int, rng: Generator) -> Array:
    """Rows whose outliers, each in a direction of its own, are each ten times as far as the one before."""
    honest = CLOUDS["decaying"](ROWS - outliers, rng)
    honest -= honest.mean(axis=0)
    far = np.zeros((outliers, honest.shape[1]))
    distances = np.linalg.norm(honest, axis=1).max() * SCALE ** np.arange(1.0, outliers + 1)
    far[np.arange(outliers), np.arange(outliers)] = distances
    return np.vstack([far, honest])


def rounds(rng: Generator, quick: bool = False) -> Check:
    """The third condition of the loop invariant, and the exit on it: no outlier is left by then."""
    most, left = dict.fromkeys(FRACTIONS, 0), 0
    for eps in FRACTIONS:
        for rows in (of_many_scales(allowed(eps) + MORE, rng), *_ordinary(eps, quick)):
            for verdict in verdicts(rows, eps):
                most[eps] = max(most[eps], rounds_of(verdict))
        outliers = allowed(eps)
        for verdict in verdicts(of_many_scales(outliers, rng), eps):
            left = max(left, int(np.count_nonzero(verdict.weights[:outliers])))
    said = ", ".join(f"{most[eps]} (eps {eps:.3g})" for eps in FRACTIONS)
    return Check(
        "rounds",
        f"at most {said}; {left} of 2·n·eps outliers left",
        "2·n·eps: " + ", ".join(f"{2 * ROWS * eps:.1f} (eps {eps:.3g})" for eps in FRACTIONS),
        left == 0 and all(most[eps] <= allowed(eps) for eps in FRACTIONS),
        f"Algorithms 3 and 4 under all attacks, and on rows whose outliers are each {SCALE:g} times as far "
        "out as the next: they go one by one, and this limit alone ends the loop. The max-bias theorem needs "
        "that no outlier is left then.",
        "none, it is reached" if all(most[eps] == allowed(eps) for eps in FRACTIONS) else "",
    )


def _ordinary(eps: float, quick: bool) -> Iterator[Array]:
    for cloud in ("decaying",) if quick else CLOUDS:
        for name, attack in GRID_ATTACKS.items():
            yield setting(cloud, eps, name, attack, 0, ROWS).rows


def verdicts(rows: Array, eps: float) -> Iterator[Verdict]:
    """Of Algorithms 4 and 3, with a few seeds. The sketch of 3 is drawn by its law, which is quicker."""
    both: tuple[Rule, ...] = (rules.Filtering.converging(eps), PublishedRandEigen(eps, law=True))
    for rule in both:
        for seed in range(SEEDS):
            yield randeigen.aggregate(rows, rule=rule, seed=seed).verdict


def rounds_of(verdict: Verdict) -> int:
    """The last round in which rows were removed."""
    dropped = verdict.dropped_in_round
    return 0 if dropped is None else int(dropped.max())


def endings(rng: Generator, quick: bool = False) -> list[Check]:
    """How Algorithm 4 ends: in the lemmas' regime, and on ordinary rows."""
    settled = runs = below = 0
    for eps in (0.05, 0.1):
        for cloud in ("decaying", "isotropic", "digits") if not quick else ("decaying",):
            for name in ("far", "alie", "hidra", "mimic"):
                now_settled, left = _end(cloud, eps, name)
                runs, settled = runs + 1, settled + now_settled
                below += left < 1 - 5 * eps
    eps = FRACTIONS[0]
    rows, m, _ = in_the_regime(eps, rng)
    first = first_round(rows)
    remaining = rng.random((COINS, ROWS)) >= first.probabilities
    few = int((remaining.sum(axis=1) < (1 - 5 * eps) * ROWS).sum())
    apart = max(_apart(rows, one, m) for one in remaining[:50]) / first.variance
    return [
        Check(
            "eigen-converges",
            f"‖Σ_X‖ − ‖Σ_S'‖ at most {apart:.2g} of λ₁ after a round; of ordinary rows settled in {settled} "
            f"of {runs} runs",
            "it goes to 0: the eigenvalue settles",
            bool(apart < CONVERGENCE_TOLERANCE),
            "On ordinary rows removing changes the top eigenvalue by far more than 1e-5, so the stop on "
            "convergence does not happen (docs/departures.md: 0 of 1,512 runs) and the floor ends the loop.",
            regime=True,
        ),
        Check(
            "invariant",
            f"fewer than (1−5·eps)·n rows left in {few} of {COINS} rounds; of ordinary rows in {below} of "
            f"{runs} runs",
            "exp(−Ω(n·eps))",
            few == 0,
            "On ordinary rows the loop goes on although no outlier is as far out as the lemma asks, and the "
            "floor is tested before a round that can jump below it. The limit on rounds has a line of its "
            "own.",
            regime=True,
        ),
    ]


def _apart(rows: Array, remaining: Array, m: int) -> float:
    """The variance of what is left over that of its inliers."""
    inliers = remaining.copy()
    inliers[:m] = False
    return abs(first_round(rows[remaining]).variance - first_round(rows[inliers]).variance)


def _end(cloud: str, eps: float, attack: str) -> tuple[bool, float]:
    """Whether the eigenvalue settled in a run of Algorithm 4, and the share of rows left."""
    one = setting(cloud, eps, attack, GRID_ATTACKS[attack], 0)
    rng, kept = one.rng(), np.arange(len(one.rows))
    last, n = math.inf, len(one.rows)
    for _ in range(int(2 * n * eps)):
        now = first_round(one.rows[kept])
        if abs(now.variance / last - 1) <= CONVERGENCE_TOLERANCE:
            return True, len(kept) / n
        if len(kept) <= (1 - 5 * eps) * n:
            break
        last = now.variance
        kept = kept[rng.random(len(kept)) >= now.probabilities]
        if len(kept) < 3:
            break
    return False, len(kept) / n
