"""Rules on the study grid, by their weights alone: distributions of honest rows × eps × attacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.random import Generator

from randeigen.attacks import AdaptiveAttack, RowsFunction
from randeigen.certificate import corruptible
from randeigen.geometry import measure
from randeigen.lab.clouds import CLOUDS
from randeigen.lab.study_grid import (
    FRACTIONS,
    GRID_ATTACKS,
    Setting,
    StudyStream,
    byzantine_count,
    setting,
    variance,
)
from randeigen.rows import as_rows
from randeigen.types import Array, Geometry, Stop, Verdict

Weigh: TypeAlias = Callable[[Geometry, int, Generator], Verdict]  # a rule's `weigh`
Contestant: TypeAlias = Callable[[Array, float, Generator], Verdict]  # (n, d) rows, eps, random numbers

# The names that reasons have in records, where they have other ones now.
RECORDED_STOPS = {
    Stop.MAX_ROUNDS: "ROUNDS",
    Stop.IDENTICAL_ROWS: "AGREE",
    Stop.ISOTROPIC: "ROUND",
    Stop.TOO_FEW_ROWS: "LONE",
    Stop.BELOW_THRESHOLD: "NARROW",
}


def on_gram(weigh_for: Callable[[float], Weigh]) -> Contestant:
    """A contestant that gets the exact Gram matrix of the rows; `weigh_for(eps)` is the rule's `weigh`."""

    def enter(rows: Array, eps: float, rng: Generator) -> Verdict:
        return weigh_for(eps)(gram_of(rows, rng), byzantine_count(len(rows), eps), rng)

    return enter


def gram_of(rows: Array, rng: Generator) -> Geometry:
    """The exact geometry, measured as `randeigen.aggregate` measures it."""
    geometry, unusable = measure(as_rows(rows), "gram", int(rng.integers(2**63)))
    assert not unusable, "attacks of the grid send finite rows"
    return geometry


def settings(seeds: Iterable[int], attacks: Mapping[str, RowsFunction] = GRID_ATTACKS) -> Iterator[Setting]:
    """Every distribution × eps × seed, unattacked and under each attack."""
    for seed in seeds:
        for cloud in CLOUDS:
            for eps in FRACTIONS:
                yield setting(cloud, eps, "none", None, seed)
                for name, attack in attacks.items():
                    yield setting(cloud, eps, name, attack, seed)


def hidden_settings(seeds: Iterable[int], contestant: Contestant) -> Iterator[Setting]:
    """Every distribution × eps × seed under the adaptive attacker, who knows this very rule.

    The label "hidden" seeds the cells and is the key of stored results.
    """
    for seed in seeds:
        rehearsal = np.random.default_rng(
            [seed, StudyStream.REHEARSAL]
        )  # not the random numbers of the final run
        for cloud in CLOUDS:
            for eps in FRACTIONS:
                yield setting(cloud, eps, "hidden", adapted(contestant, eps, rehearsal), seed)


def adapted(contestant: Contestant, eps: float, rng: Generator) -> AdaptiveAttack:
    """The attacker who can run this rule as often as needed, with random numbers of its own."""
    return AdaptiveAttack(lambda rows: contestant(rows, eps, rng).weights)


@dataclass(frozen=True)
class WeightsRecord:
    """One rule's weights in one setting. Distances are in units of sqrt(||Sigma_S||) unless stated."""

    cloud: str
    eps: float
    attack: str
    seed: int
    bias: float  # from the mean of the honest rows to the weighted mean of all rows
    relative_bias: float  # the same in units of sqrt(eps/(1-eps)·||Sigma_S||)
    certificate: float  # sqrt(a/(1-a)·lambda), a the f largest weights' share, lambda the top variance
    certified: float  # the distance that it bounds: from the honest rows' weighted mean to that of all rows
    violated: bool
    kept: float  # effective number of rows, 1/(the largest weight); 0 if the rule removed all rows
    byzantine_weight: float  # the Byzantine rows' share of the weight
    rounds: int
    stop: str  # why it ended, by the name that records have
    empty: bool  # the rule removed all rows: the bias is that of the last rows it had


def judge(contestant: Contestant, cell: Setting) -> WeightsRecord:
    """Run the rule on one setting and measure its weights."""
    verdict = contestant(cell.rows, cell.eps, cell.rng())
    gram, w = cell.rows @ cell.rows.T, verdict.weights
    honest = np.arange(len(w)) < cell.h
    scale = math.sqrt(variance(gram, honest / cell.h))
    clean = np.where(honest, w, 0) / w[honest].sum() if w[honest].sum() > 0 else honest / cell.h
    bound, actual = certificate(gram, w, cell.f), norm(gram, w - clean)
    bias = norm(gram, w - honest / cell.h)
    empty = verdict.stop is Stop.EMPTY
    return WeightsRecord(
        cloud=cell.cloud,
        eps=cell.eps,
        attack=cell.attack,
        seed=cell.seed,
        bias=bias / scale,
        relative_bias=bias / scale / math.sqrt(cell.f / (len(w) - cell.f)),
        certificate=bound / scale,
        certified=actual / scale,
        violated=not actual <= bound * (1 + 1e-6) + 1e-6 * scale,
        kept=0.0 if empty else float(1 / w.max()),
        byzantine_weight=float(w[~honest].sum()),
        rounds=verdict.rounds,
        stop=RECORDED_STOPS.get(verdict.stop, verdict.stop.name),
        empty=empty,
    )


def norm(gram: Array, combination: Array) -> float:
    """The norm of a combination of rows, from their inner products."""
    used = np.flatnonzero(combination)
    square = float(combination[used] @ gram[np.ix_(used, used)] @ combination[used])
    return math.nan if math.isnan(square) else math.sqrt(max(square, 0.0))


def certificate(gram: Array, w: Array, f: int) -> float:
    """sqrt(a/(1-a)·lambda) from scratch, so that it checks the package's own; infinite if a is 1."""
    held, rest = corruptible(w, f)
    return math.sqrt(held / rest * variance(gram, w)) if rest > 1e-12 else math.inf


@dataclass(frozen=True)
class Summary:
    """A rule's records in one line. NaN in any record is NaN here."""

    worst: float  # relative bias
    worst_at: str
    mean: float  # bias
    kept: float  # without attack, on average
    least_kept: float
    empty: int  # settings in which all rows were removed
    violations: int
    rounds: float  # on average
    most_rounds: int
    settings: int

    @staticmethod
    def of(records: Iterable[WeightsRecord]) -> Summary:
        """Over all records given, of which there must be some."""
        records = list(records)
        kept = np.array([r.kept for r in records if r.attack == "none"] or [math.nan])
        at = records[int(np.argmax([r.relative_bias for r in records]))]  # the first NaN, if there is one
        return Summary(
            worst=at.relative_bias,
            worst_at=f"{at.cloud}, eps {at.eps:g}, {at.attack}, seed {at.seed}",
            mean=float(np.mean([r.bias for r in records])),
            kept=float(kept.mean()),
            least_kept=float(kept.min()),
            empty=sum(r.empty for r in records),
            violations=sum(r.violated for r in records),
            rounds=float(np.mean([r.rounds for r in records])),
            most_rounds=max(r.rounds for r in records),
            settings=len(records),
        )
