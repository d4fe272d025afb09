"""Every rule on the study grid, by its answer: how far off, how sure, how much kept.

`grid.judge` looks at weights; here rules are called as a user calls them, on rows, so that those without
weights (column by column, chunk by chunk) are judged by the same yardstick: the distance from their answer to
the honest rows' mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

import randeigen
from randeigen.attacks import CRAFTED
from randeigen.attacks.directions import random_direction
from randeigen.errors import RandEigenError
from randeigen.lab.clouds import CLOUDS
from randeigen.lab.study_grid import FRACTIONS, ROWS, Setting, setting, variance
from randeigen.rules import RULES, Rule, rule_class
from randeigen.types import Aggregate, Array, Stop

DEFAULT = "randeigen"
HELD_OUT = 3  # the default's constants were chosen on seeds 0, 1 and 2
OFFSET = 0.2  # of a typical row's length: how far the honest mean is from the origin
MANY, FEW = ROWS, 20  # rows of the standard grid, and for the rules that search among subsets
CHUNK = 100  # columns: the grid's rows are too short for the published 1,000 to make any difference
BETTER = 0.95  # of the default's bias: less than that is better

# What a rule must be given that nobody knows in earnest: here it is the truth.
PROMISES = {name: told for name in RULES if (told := rule_class(name).known_variance)}
TRUSTS = tuple(name for name in RULES if rule_class(name).trusts_a_row)
SMALL = {name: reason for name in RULES if (reason := rule_class(name).only_small)}
BESIDE_SMALL = (DEFAULT, "mean", "caf", "multi-krum", "geometric-median", "trimmed-mean")
COMPOSED = (
    "nnm+randeigen",
    "nnm+krum",
    "nnm+trimmed-mean",
    "nnm+geometric-median",
    "bucketing+krum",
    "bucketing+randeigen",
    "arc+randeigen",
    "arc+nnm+trimmed-mean",
)

Build = Callable[[str, float], Rule]  # (a name as --rule takes it, eps) -> the rule


class Where(NamedTuple):
    """Which cell it was; its rows are not kept."""

    cloud: str
    eps: float
    attack: str
    seed: int


@dataclass(frozen=True)
class Outcome:
    """One rule in one cell. Lengths are in units of sqrt(||Sigma_S||) unless said."""

    cell: Where
    n: int
    bias: float
    relative: float  # in units of sqrt(eps/(1-eps)·||Sigma_S||)
    certificate: float
    violated: bool
    kept: float | None  # rows' worth of weight, where the answer is a weighted mean


@dataclass(frozen=True)
class Standing:
    """One rule over the grid: a line of the table."""

    rule: str
    n: int
    settings: int
    refused: int  # settings it would not take
    reason: str  # the first time
    worst: float  # relative bias
    worst_at: str
    mean: float  # bias
    mean_relative: float
    certificate: float  # the median over settings
    unsure: float  # share of settings in which it is infinite
    violations: int
    kept: float | None  # without attack, on average
    better: float  # share of settings in which its bias is clearly below the default's
    by_attack: dict[str, float]  # worst relative bias
    by_cloud: dict[str, float]
    by_eps: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """What a record holds; JSON has no infinity."""
        return {k: v if v != math.inf else "inf" for k, v in asdict(self).items()}


def told_to(name: str) -> str:
    """What this rule is told that nobody knows, in a few words; empty for most."""
    last = name.split("+")[-1].partition(":")[0]
    if last in PROMISES:
        return f"{PROMISES[last]}: true variance"
    return "an honest row" if last in TRUSTS else ""


def standard(names: Iterable[str]) -> list[str]:
    """Those that can take the standard grid, the default always among them, then mixed ones."""
    return [name for name in names if name not in SMALL] + list(COMPOSED)


def cells(seeds: Iterable[int], n: int = ROWS, clouds: Iterable[str] = CLOUDS) -> Iterator[Setting]:
    """Every cloud × eps × seed, unattacked and under each attack, as `grid.settings` for n rows."""
    for seed in seeds:
        for cloud in clouds:
            for eps in FRACTIONS:
                yield setting(cloud, eps, "none", None, seed, n)
                for name, attack in CRAFTED.items():
                    yield setting(cloud, eps, name, attack, seed, n)


def cells_in(seeds: int) -> int:
    """How many there are."""
    return seeds * len(CLOUDS) * len(FRACTIONS) * (1 + len(CRAFTED))


def measure(
    names: Sequence[str],
    build: Build,
    grid: Iterable[Setting],
    tell: Callable[[int], None] = lambda done: None,
) -> list[Standing]:
    """Every rule in every cell. The default is measured too, whether or not it is named."""
    asked = dict.fromkeys((DEFAULT, *names))
    outcomes: dict[str, list[Outcome | None]] = {name: [] for name in asked}
    reasons: dict[str, str] = {}
    for done, cell in enumerate(grid):
        rows, centre, spread = placed(cell)
        for name in asked:
            try:
                rule = build(spelled(name, cell), cell.eps)
                result = randeigen.aggregate(rows, rule=rule, seed=int(cell.coins().integers(2**63)))
                outcomes[name].append(judged(result, cell, rows, centre, spread))
            except (RandEigenError, np.linalg.LinAlgError) as error:  # the others need not suffer for it
                outcomes[name].append(None)
                reasons.setdefault(name, str(error))
        tell(done + 1)
    beside = outcomes[DEFAULT]
    return [stand(name, outcomes[name], beside, reasons.get(name, "")) for name in dict.fromkeys(names)]


def placed(cell: Setting) -> tuple[Array, Array, float]:
    """The rows with their honest mean off the origin, that mean, and sqrt(||Sigma_S||).

    In a cell the honest mean is 0. Rules that clip towards the origin would be handed the answer.
    """
    rng = np.random.default_rng([cell.seed, 2])
    typical = float(np.linalg.norm(cell.rows[: cell.h], axis=1).mean())
    centre = OFFSET * typical * random_direction(cell.rows.shape[1], rng)
    return cell.rows + centre, centre, math.sqrt(honest_variance(cell.rows[: cell.h]))


def honest_variance(honest: Array) -> float:
    """The largest variance these rows have along any direction."""
    return variance(honest @ honest.T, np.full(len(honest), 1 / len(honest)))


def spelled(name: str, cell: Setting) -> str:
    """The name with the truth that this rule must be told about this cell."""
    *mixers, last = name.split("+")
    base = last.partition(":")[0]
    if base not in PROMISES:
        return name
    honest, width = cell.rows[: cell.h], CHUNK if base.startswith("chunked") else cell.rows.shape[1]
    chunks = [honest[:, at : at + width] for at in range(0, honest.shape[1], width)]
    promise = f"{PROMISES[base]}={max(map(honest_variance, chunks))!r}"
    promise += f",chunk={CHUNK}" if base.startswith("chunked") else ""
    return "+".join((*mixers, f"{last}{',' if ':' in last else ':'}{promise}"))


def judged(result: Aggregate, cell: Setting, rows: Array, centre: Array, spread: float) -> Outcome:
    """How far the answer is from the honest mean, and whether its certificate held."""
    honest, w = np.arange(len(rows)) < cell.h, result.weights
    share = np.where(honest, w, 0.0)
    # Nobody honest has weight: then the f heaviest rows hold it all, and the certificate is infinite.
    clean = result.verdict.scale * (share @ rows / share.sum()) if share.any() else centre
    bias = float(np.linalg.norm(result.mean - centre))
    certified = float(np.linalg.norm(result.mean - clean))
    kept = 0.0 if result.verdict.stop is Stop.EMPTY else float(1 / w.max())
    return Outcome(
        cell=Where(cell.cloud, cell.eps, cell.attack, cell.seed),
        n=len(rows),
        bias=bias / spread,
        relative=bias / spread / math.sqrt(cell.f / (len(rows) - cell.f)),
        certificate=result.bias_bound / spread,
        violated=not certified <= result.bias_bound * (1 + 1e-6) + 1e-6 * spread,
        kept=kept if result.is_weighted_mean else None,
    )


def stand(
    name: str, found: Sequence[Outcome | None], default: Sequence[Outcome | None], reason: str
) -> Standing:
    """A rule's outcomes in one line. NaN in any of them is NaN here."""
    seen = [one for one in found if one is not None]
    if not seen:
        raise RandEigenError(f"{name} took none of the settings: {reason}")
    at = seen[int(np.argmax([one.relative for one in seen]))]
    bounds = np.array([one.certificate for one in seen])
    kept = [one.kept for one in seen if one.cell.attack == "none" and one.kept is not None]
    pairs = [(a.bias, b.bias) for a, b in zip(found, default, strict=True) if a and b]
    return Standing(
        rule=name,
        n=seen[0].n,
        settings=len(seen),
        refused=len(found) - len(seen),
        reason=reason,
        worst=at.relative,
        worst_at=f"{at.cell.cloud}, eps {at.cell.eps:g}, {at.cell.attack}, seed {at.cell.seed}",
        mean=float(np.mean([one.bias for one in seen])),
        mean_relative=float(np.mean([one.relative for one in seen])),
        certificate=float(np.median(bounds)),
        unsure=float(np.isinf(bounds).mean()),
        violations=sum(one.violated for one in seen),
        kept=float(np.mean(kept)) if kept else None,
        better=float(np.mean([a < BETTER * b for a, b in pairs])),
        by_attack=_worst(seen, lambda cell: cell.attack),
        by_cloud=_worst(seen, lambda cell: cell.cloud),
        by_eps=_worst(seen, lambda cell: f"{cell.eps:g}"),
    )


def _worst(seen: Iterable[Outcome], group: Callable[[Where], str]) -> dict[str, float]:
    worst: dict[str, float] = {}
    for one in seen:
        key = group(one.cell)
        worst[key] = float(np.fmax(worst.get(key, 0.0), one.relative))
    return worst
