"""The study grid: kinds of honest cloud × eps × attacks, and what a rule's weights are worth on each.

A rule takes part as itself: rows, eps and coins in, its verdict out. It is judged by the weights alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from zlib import crc32

import numpy as np
from numpy.random import Generator

from randeigen.attacks import CRAFTED, Attack, Hidden
from randeigen.certificate import corruptible
from randeigen.experiments.clouds import CLOUDS
from randeigen.measure import measure
from randeigen.rows import as_rows
from randeigen.rules.base import assumed
from randeigen.types import Array, Geometry, Stop, Verdict

Weigh: TypeAlias = Callable[[Geometry, int, Generator], Verdict]  # a rule's `weigh`
Contestant: TypeAlias = Callable[[Array, float, Generator], Verdict]  # (n, d) rows, eps, coins

FRACTIONS = (0.05, 0.1, 0.2)
ROWS = 100


def on_table(weigh_for: Callable[[float], Weigh]) -> Contestant:
    """A contestant that is shown the exact table of the rows; `weigh_for(eps)` is the rule's `weigh`."""

    def enter(rows: Array, eps: float, rng: Generator) -> Verdict:
        return weigh_for(eps)(table_of(rows, rng), liars_among(len(rows), eps), rng)

    return enter


def table_of(rows: Array, rng: Generator) -> Geometry:
    """The exact table, measured as `randeigen.aggregate` measures it."""
    geometry, unusable = measure(as_rows(rows), "gram", int(rng.integers(2**63)))
    assert not unusable, "attacks of the grid send finite rows"
    return geometry


@dataclass(frozen=True)
class Setting:
    """One cell of the grid, ready to be judged: rows moved so that the honest mean is 0; liars come last."""

    cloud: str
    eps: float
    attack: str
    seed: int
    rows: Array
    h: int

    @property
    def f(self) -> int:
        """How many liars the rule is told to fear, whether or not they came."""
        return liars_among(len(self.rows), self.eps)

    def coins(self) -> Generator:
        """The rule's own, which no attack has seen; the same whenever this cell is judged."""
        return np.random.default_rng([crc32(f"{self.cloud}/{self.eps}/{self.attack}".encode()), self.seed])


def liars_among(n: int, eps: float) -> int:
    """f = ceil(eps·n), forgiving the last bit of eps·n."""
    return assumed(n, eps, None)


def setting(cloud: str, eps: float, name: str, attack: Attack | None, seed: int, n: int = ROWS) -> Setting:
    """Draw the honest rows and let the attack answer them; `None` means all n rows are honest."""
    rng = np.random.default_rng([seed, list(CLOUDS).index(cloud), round(1000 * eps)])
    m = liars_among(n, eps) if attack else 0
    honest = CLOUDS[cloud](n - m, rng)
    rows = np.vstack([honest, attack(honest, m, rng)]) if attack else honest
    return Setting(cloud, eps, name, seed, rows - honest.mean(axis=0), n - m)


def settings(seeds: Iterable[int], attacks: Mapping[str, Attack] = CRAFTED) -> Iterator[Setting]:
    """Every cloud × eps × seed, unattacked and under each attack."""
    for seed in seeds:
        for cloud in CLOUDS:
            for eps in FRACTIONS:
                yield setting(cloud, eps, "none", None, seed)
                for name, attack in attacks.items():
                    yield setting(cloud, eps, name, attack, seed)


def hidden_settings(seeds: Iterable[int], contestant: Contestant) -> Iterator[Setting]:
    """Every cloud × eps × seed under the attacker who has read this very rule and searches against it."""
    for seed in seeds:
        rehearsal = np.random.default_rng([seed, 1])  # not the coins the rule will be judged with
        for cloud in CLOUDS:
            for eps in FRACTIONS:
                yield setting(cloud, eps, "hidden", adapted(contestant, eps, rehearsal), seed)


def adapted(contestant: Contestant, eps: float, rng: Generator) -> Hidden:
    """The attacker who can run this rule as often as it likes, with coins of its own."""
    return Hidden(lambda rows: contestant(rows, eps, rng).weights)


@dataclass(frozen=True)
class Record:
    """What one rule's weights did in one setting. Lengths are in units of sqrt(||Sigma_S||) unless said."""

    cloud: str
    eps: float
    attack: str
    seed: int
    bias: float  # from the mean of the honest rows to the weighted mean of all rows
    relative_bias: float  # the same in units of sqrt(eps/(1-eps)·||Sigma_S||)
    certificate: float  # sqrt(a/(1-a)·lambda), a the f largest weights' share, lambda the widest variance
    certified: float  # what it speaks of: from the weighted mean of the honest rows to that of all rows
    violated: bool
    kept: float  # rows' worth of weight, 1/(the largest weight); 0 if the rule removed everybody
    liars: float  # corrupt rows' share of the weight
    rounds: int
    stop: str  # the name of the reason
    empty: bool  # the rule removed everybody: its last rows stand in, and are what the bias is that of


def judge(contestant: Contestant, cell: Setting) -> Record:
    """Run the rule on one setting and measure its weights."""
    verdict = contestant(cell.rows, cell.eps, cell.coins())
    table, w = cell.rows @ cell.rows.T, verdict.weights
    honest = np.arange(len(w)) < cell.h
    scale = math.sqrt(variance(table, honest / cell.h))
    clean = np.where(honest, w, 0) / w[honest].sum() if w[honest].sum() > 0 else honest / cell.h
    bound, actual = certificate(table, w, cell.f), length(table, w - clean)
    bias = length(table, w - honest / cell.h)
    empty = verdict.stop is Stop.EMPTY
    return Record(
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
        liars=float(w[~honest].sum()),
        rounds=verdict.rounds,
        stop=verdict.stop.name,
        empty=empty,
    )


def length(table: Array, combination: Array) -> float:
    """The norm of a combination of rows, from their inner products."""
    used = np.flatnonzero(combination)
    square = float(combination[used] @ table[np.ix_(used, used)] @ combination[used])
    return math.nan if math.isnan(square) else math.sqrt(max(square, 0.0))


def variance(table: Array, w: Array) -> float:
    """The top eigenvalue of the w-weighted covariance (w sums to 1)."""
    used = np.flatnonzero(w)
    w, table = w[used], table[np.ix_(used, used)]
    to_mean = table @ w
    centred = table - to_mean[:, None] - to_mean + w @ to_mean
    half = np.sqrt(w)
    return max(float(np.linalg.eigvalsh(half[:, None] * centred * half)[-1]), 0.0)


def certificate(table: Array, w: Array, f: int) -> float:
    """sqrt(a/(1-a)·lambda) from scratch, so that it checks the package's own; infinite if a is 1."""
    held, rest = corruptible(w, f)
    return math.sqrt(held / rest * variance(table, w)) if rest > 1e-12 else math.inf


@dataclass(frozen=True)
class Summary:
    """A rule's records in one line. NaN in any record is NaN here."""

    worst: float  # relative bias
    worst_at: str
    mean: float  # bias
    kept: float  # without attack, on average
    least_kept: float
    empty: int  # settings in which everybody was removed
    violations: int
    rounds: float  # on average
    most_rounds: int
    settings: int

    @staticmethod
    def of(records: Iterable[Record]) -> Summary:
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
