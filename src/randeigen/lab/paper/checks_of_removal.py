"""The paper's statements about removing rows as numerical checks: the bias, and one round."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from randeigen import rules
from randeigen.lab.clouds import CLOUDS
from randeigen.lab.study_grid import GRID_ATTACKS, Setting, setting, variance
from randeigen.pipeline import answer
from randeigen.types import Array

ROWS = 96  # 1/12 of them is whole
FRACTIONS = (0.05, 1 / 12)
FAR = 6.0  # times the distance at which the lemmas on outliers begin to apply
COINS = 400  # repetitions of one round of removal
RARE_COINS = 20_000  # of a round in which something rare is counted


class Check(NamedTuple):
    """A statement of the paper beside what was measured."""

    id: str  # the paper's statement, as in theorems.csv
    measured: str
    bound: str
    holds: bool | None  # None where it says nothing that could fail, or is to be read with the note
    note: str = ""
    room: str = ""  # between what was measured and the bound
    regime: bool = False  # whether it speaks only of outliers farther out than an attacker needs


def times(factor: float) -> str:
    """A room between two numbers, as their ratio.

    >>> times(137.4), times(1.26)
    ('137 times', '1.3 times')
    """
    return f"{factor:,.0f} times" if factor >= 10 else f"{factor:.1f} times"


def stability_delta(honest_variance: float) -> float:
    """δ = sqrt(20·‖Σ_S‖)."""
    return math.sqrt(20 * honest_variance)


def bias_of_algorithm_4(eps: float, clouds: list[str] | None = None, seeds: int = 1) -> float:
    """The worst bias of Algorithm 4 over clouds and attacks, in units of sqrt(‖Σ_S‖)."""
    return max(_biases(eps, clouds or list(CLOUDS), seeds))


def _biases(eps: float, clouds: list[str], seeds: int) -> Iterator[float]:
    for cloud in clouds:
        for name, attack in [("none", None), *GRID_ATTACKS.items()]:
            for seed in range(seeds):
                one = setting(cloud, eps, name, attack, seed, ROWS)
                mean = answer(one.rows, rules.Filtering.converging(eps), int(one.rng().integers(2**31)))
                yield float(np.linalg.norm(mean)) / math.sqrt(_honest_variance(one))


def _honest_variance(one: Setting) -> float:
    gram = one.rows @ one.rows.T
    return variance(gram, np.r_[np.full(one.h, 1 / one.h), np.zeros(len(one.rows) - one.h)])


def bias(quick: bool = False) -> list[Check]:
    """The bias theorem and the one behind it."""
    clouds = ["decaying", "flat"] if quick else None
    worst = {eps: bias_of_algorithm_4(eps, clouds) for eps in FRACTIONS}
    beta = {eps: math.sqrt(20) * (2 / eps + 2) for eps in FRACTIONS}
    along = {eps: math.sqrt(20) * (2 / eps + 1) for eps in FRACTIONS}
    text = ", ".join(f"{worst[eps]:.2f} (eps {eps:.3g})" for eps in FRACTIONS)
    note = (
        "In units of sqrt(‖Σ_S‖). The room is a factor of more than a hundred: the bound grows as 1/eps, "
        "the bias of any rule shrinks with eps."
    )
    return [
        Check(name, text, _bounds(bound), all(worst[e] <= bound[e] for e in FRACTIONS), note, room)
        for name, bound, note in (
            ("bias", beta, note),
            ("max-bias", along, "Along the worst direction the means differ by all of their distance."),
        )
        for room in (times(min(bound[e] / worst[e] for e in FRACTIONS)),)
    ]


def _bounds(values: dict[float, float]) -> str:
    return ", ".join(f"{value:.1f} (eps {eps:.3g})" for eps, value in values.items())


def stability(rng: Generator) -> Check:
    """Assumption 1 holds of every finite set with eps ≤ 1/12; here on the least regular of sets."""
    points = np.r_[np.zeros(59), 1.0]  # one row has all of the variance
    sigma, mean = points.std(), points.mean()
    worst_mean = worst_square = 0.0
    for _ in range(COINS):
        kept = rng.permutation(60)[: math.ceil(60 * (1 - 5 / 12))]
        remaining = points[kept]
        worst_mean = max(worst_mean, abs(remaining.mean() - mean) / sigma)
        worst_square = max(worst_square, abs(((remaining - mean) ** 2).mean() / sigma**2 - 1))
    return Check(
        "stability",
        f"means move by {worst_mean:.2f}σ, mean squares by {worst_square:.2f}σ²",
        "δ = 4.47σ; δ²/(5·eps) = 48σ²",
        None,
        "Vacuous: dropping 5/12 of any rows moves their mean by at most sqrt(5/7)σ = 0.85σ and their mean "
        "square by at most σ², so the assumption is true of every finite set and needs no experiment.",
        times(math.sqrt(20) / math.sqrt(5 / 7)) + ", of any rows",
    )


def in_the_regime(eps: float, rng: Generator, n: int = ROWS) -> tuple[Array, int, float]:
    """Rows whose first m are outliers so far out that the lemmas apply; and the honest variance."""
    m = round(eps * n)
    honest = CLOUDS["decaying"](n - m, rng)
    honest -= honest.mean(axis=0)
    spread = float(np.linalg.eigvalsh(honest @ honest.T / len(honest))[-1])
    threshold = (2 / eps + 1) * stability_delta(spread)
    away = np.zeros(honest.shape[1])
    away[0] = FAR * threshold / eps
    return np.vstack([away + 0.01 * rng.standard_normal((m, honest.shape[1])), honest]), m, spread


class Round(NamedTuple):
    """One round of removal: projections on the top direction, and the probabilities."""

    variance: float
    projections: Array
    probabilities: Array


def first_round(rows: Array) -> Round:
    """Lines 3 to 12 of Algorithm 4."""
    centred = rows - rows.mean(axis=0)
    values, vectors = np.linalg.eigh(centred @ centred.T / len(rows))
    projections = vectors[:, -1] * math.sqrt(values[-1] * len(rows))
    distance = abs(projections)
    return Round(float(values[-1]), projections, distance / distance.max())


def unbalanced(eps: float, rng: Generator, n: int) -> float:
    """How often n·eps more inliers than outliers go, in the lemmas' regime: all outliers go in one round."""
    rows, m, _ = in_the_regime(eps, rng, n)
    removed = rng.random((RARE_COINS, n)) < first_round(rows).probabilities
    return float((removed[:, m:].sum(1) - removed[:, :m].sum(1) >= n * eps).mean())


def removal(rng: Generator) -> list[Check]:
    """The lemmas on one round, where outliers are as far out as they ask."""
    eps = 0.05
    rows, m, honest_variance = in_the_regime(eps, rng)
    now = first_round(rows)
    expected_out, expected_in = now.probabilities[:m].sum(), now.probabilities[m:].sum()
    remaining = rng.random((COINS, ROWS)) >= now.probabilities
    share = remaining[:, :m].sum(1) / np.maximum(remaining.sum(1), 1)
    after = [first_round(rows[one]).variance for one in remaining[:50] if one.sum() > 2]
    squares = now.projections**2
    helper = float((squares * now.probabilities).sum() / (now.variance * now.probabilities.sum()))
    w, top = (ROWS - m) / m, now.projections
    balance = abs(w * top[m:].mean() + top[:m].mean()) / abs(top[:m].mean())
    honest = first_round(rows[m:])
    beyond = int((abs(honest.projections) > 2 * stability_delta(honest_variance) / eps).sum())
    rare = {n: unbalanced(eps, rng, n) for n in (ROWS, 2 * ROWS, 4 * ROWS)}
    return [
        Check("balancing", f"{balance:.0e} relative", "0", bool(balance < 1e-9), "An identity, to rounding."),
        Check(
            "few-natural-outliers",
            f"{beyond} of {ROWS - m}",
            f"{eps * (ROWS - m):.1f}",
            None if beyond <= eps * (ROWS - m) else False,
            "Vacuous, since true of all rows: by Chebyshev no more than eps²/80 of any lie beyond 2δ/eps, "
            "the lemma gives eps for 3e-5.",
            times(80 / eps) + ", of any rows",
        ),
        Check(
            "removal-balance",
            f"{expected_in:.2f} inliers, {expected_out:.2f} outliers a round",
            "inliers ≤ outliers",
            bool(expected_in <= expected_out * (1 + 1e-9)),
            f"Outliers are {FAR:g}·δ'/eps = {FAR * (2 / eps + 1) / eps:,.0f}δ away: as many honest rows go "
            "as Byzantine ones. Closer outliers, which are all that an attacker needs, are not covered.",
            "none, they are equal",
            regime=True,
        ),
        Check(
            "removal-whp",
            "in " + ", ".join(f"{one:.2g} (n = {n})" for n, one in rare.items()) + " of rounds",
            "exp(−Ω(n·eps))",
            all(2 * rare[2 * n] <= rare[n] for n in (ROWS, 2 * ROWS)),
            "The constant in Ω is not given: held against half as often or less each time n doubles.",
            times(rare[ROWS] / max(rare[2 * ROWS], 1 / RARE_COINS)) + " less often at the first doubling",
            regime=True,
        ),
        Check(
            "supermartingale",
            f"{share.mean():.4f} from {m / ROWS:.4f}",
            "it does not grow",
            bool(share.mean() <= m / ROWS),
            "All outliers are at one place and go in the first round.",
            f"{m / ROWS - share.mean():.4f}",
            regime=True,
        ),
        Check(
            "eigen-falls",
            f"{np.mean(after) / now.variance:.2g} of it after one round",
            "it falls",
            bool(np.mean(after) < now.variance),
            "See eigen-converges for ordinary rows.",
            times(now.variance / float(np.mean(after))),
            regime=True,
        ),
        Check(
            "helper",
            f"ratio {helper:.2f}",
            "≤ 1 as stated, ≥ 1 as proved",
            bool(helper <= 1),
            "The inequality is printed the wrong way round: its proof shows ≥, and so do numbers. The "
            "lemma that uses it needs ≥, so only the statement is wrong.",
        ),
    ]
