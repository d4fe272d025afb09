"""How far an attacker who searches moves each rule, beside what no rule can be below.

    python -m benchmarks.what_a_search_reaches [--seed 3] [--budget 120] [--rule NAME ...] [--out RECORD.json]
    python -m benchmarks.what_a_search_reaches --redraw    # only the table of the document, from the record

For every rule × kind of honest rows × eps, n = 40: the attacker knows the honest rows and the rule, and
CMA-ES looks for the corrupt rows that bias it most (`randeigen.attacks.search`); where honest rows come in
groups their sizes and positions are searched too, at twice the budget. Numbers are the bias in units of
sqrt(eps/(1−eps))·σ, σ the honest standard deviation along the top direction; no rule can be below
sqrt((1−eps)/(1−2·eps)) in all clouds. Rules that draw coins are judged by other coins than those searched
with. Rules that need a bound on the variance are given the honest one. About ten minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import randeigen
from randeigen.attacks.directions import top_deviation
from randeigen.attacks.updates.search import AXES, GENOME, Formations, maximise
from randeigen.lab.rule_study import PROMISES
from randeigen.registry import build_rule
from randeigen.types import Array
from studies.documents import redraw
from studies.provenance import made_with

ROWS, COLUMNS, FRACTIONS = 40, 20, (0.1, 0.2, 0.3)
NOISE = 0.3  # of the rows of a group about its centre
RULES = (
    *("randeigen", "balanced", "balanced:tolerance=0", "random", "caf", "dnc", "no-regret", "filtering"),
    *("converging", "published", "multi-krum", "krum", "geometric-median", "median"),
    *("trimmed-mean", "nnm+trimmed-mean", "nnm+randeigen", "mean"),
)
COINS = 5  # other draws that judge what was found


@dataclass(frozen=True)
class Cloud:
    """Honest rows, some of whose shape the search may choose."""

    groups: int = 0  # of honest rows, whose sizes and positions are searched; 0: drawn once, by `draw`
    draw: Callable[[np.random.Generator, tuple[int, int]], Array] | None = None

    @property
    def genes(self) -> int:
        """Numbers that describe the honest rows."""
        return 3 * self.groups

    def honest(self, genome: Array, noise: Array) -> Array:
        """(h, d): a share and a position in a plane for each group."""
        if not self.groups:
            return noise
        k, h = self.groups, len(noise)
        shares = np.exp(np.clip(genome[:k], -10, 10))
        ends = np.rint(np.cumsum(shares / shares.sum()) * h)
        group = np.minimum(np.searchsorted(ends, np.arange(h), side="right"), k - 1)
        rows = NOISE * noise
        rows[:, :2] += genome[k : 3 * k].reshape(k, 2)[group]
        return rows

    def guesses(self, h: int, f: int) -> list[Array]:
        """First genomes: f to 2f honest rows are apart, the corrupt ones at one point on either side."""
        corrupt = Formations.guesses()
        if not self.groups:
            return corrupt
        found = []
        for size in (f, 1.5 * f, 2 * f - 1):
            for t in (0.3, 0.6, 1.5):
                for side in (1.0, -1.0):
                    genome = np.zeros(self.genes + GENOME)
                    genome[: self.groups] = math.log((h - size) / (self.groups - 1))
                    genome[self.groups - 1] = math.log(size)
                    genome[self.genes - 2] = 4.0  # the last group is apart, the others together
                    genome[self.genes] = genome[self.genes + AXES] = side * t
                    found.append(genome)
        return found


CLOUDS = {
    "Gaussian": Cloud(draw=lambda rng, shape: rng.standard_normal(shape)),
    "heavy tails": Cloud(draw=lambda rng, shape: rng.standard_t(3, shape)),
    "three clusters": Cloud(groups=3),
    "five clusters": Cloud(groups=5),
    "honest minority": Cloud(groups=2),
}


def bound(eps: float) -> float:
    """What no rule can be below, in units of sqrt(eps/(1−eps))·σ."""
    return math.sqrt((1 - eps) / (1 - 2 * eps))


def reached(rule: str, cloud: Cloud, eps: float, seed: int, budget: int) -> float:
    """The worst relative bias found."""
    f = round(eps * ROWS)
    rng = np.random.default_rng([seed, round(100 * eps)])
    shape = (ROWS - f, COLUMNS)
    noise = cloud.draw(rng, shape) if cloud.draw else rng.standard_normal(shape)
    scatter = int(rng.integers(2**63))

    def rows_of(genome: Array) -> tuple[Array, Array]:
        honest = cloud.honest(genome, noise)
        formations = Formations.against(honest, f, np.random.default_rng(scatter))
        return honest, np.vstack([honest, formations.rows(genome[cloud.genes :])])

    def harm(genome: Array, coins: int = 0) -> float:
        honest, rows = rows_of(genome)
        sigma = top_deviation(honest)
        last = rule.split("+")[-1]
        name = f"{rule}:{PROMISES[last]}={sigma**2!r}" if last in PROMISES else rule
        answer = randeigen.aggregate(rows, rule=build_rule(name, None, f), seed=coins).mean
        bias = float(np.linalg.norm(answer - honest.mean(axis=0)))
        return math.inf if math.isnan(bias) else bias / sigma / math.sqrt(f / (ROWS - f))

    budget *= 2 if cloud.groups else 1
    best = maximise(harm, cloud.guesses(ROWS - f, f)[: budget // 4], budget, rng)
    return float(np.mean([harm(best.genome, coins) for coins in range(1, COINS + 1)]))


def measured(rules: list[str], seed: int, budget: int, report: Callable[[str], None]) -> dict[str, Any]:
    """The whole study as a record."""
    began, found = time.perf_counter(), dict[str, dict[str, dict[str, float]]]()
    for rule in rules:
        found[rule] = {
            name: {f"{eps:g}": reached(rule, cloud, eps, seed, budget) for eps in FRACTIONS}
            for name, cloud in CLOUDS.items()
        }
        report(f"{rule}: {found[rule]}")
    return {
        "seed": seed,
        "budget": budget,
        "n": ROWS,
        "d": COLUMNS,
        "bound": {f"{eps:g}": bound(eps) for eps in FRACTIONS},
        "reached": found,
        "seconds": round(time.perf_counter() - began),
        "made_with": made_with(),
    }


def tables(record: dict[str, Any]) -> dict[str, str]:
    """The record as the tables of the document."""
    made, eps = record["made_with"], list(record["bound"])
    lines = [
        ("rule", *CLOUDS),
        ("---",) * (1 + len(CLOUDS)),
        ("*no rule can be below*", *(_cells(record["bound"], eps) for _ in CLOUDS)),
        *(
            (
                f"**`{rule}`**" if rule in ("randeigen", "balanced") else f"`{rule}`",
                *(_cells(by_cloud[name], eps) for name in CLOUDS),
            )
            for rule, by_cloud in record["reached"].items()
        ),
    ]
    return {
        "search made": f"n = {record['n']}, eps = {', '.join(eps)}; seed {record['seed']}, "
        f"{record['budget']:,} evaluations ({2 * record['budget']:,} where the groups are searched too); "
        f"made with randeigen {made['randeigen']} at {made['commit']}, numpy {made['numpy']}, "
        f"Python {made['python']}.",
        "search": "\n".join(f"| {' | '.join(line)} |" for line in lines),
        "search in words": "An attacker who searches reached, from the least eps to the largest: "
        + "; ".join(
            f"against `{rule}` {_said(record['reached'][rule])}" for rule in ("randeigen", "balanced")
        )
        + ".",
    }


def _said(by_cloud: dict[str, dict[str, float]]) -> str:
    ends = {name: list(by_eps.values()) for name, by_eps in by_cloud.items()}
    return ", ".join(f"{min(found):.2f} to {max(found):.2f} ({name})" for name, found in ends.items())


def _cells(by_eps: dict[str, float], eps: list[str]) -> str:
    return " / ".join(f"{by_eps[e]:.2f}" if by_eps[e] < 10 else f"{by_eps[e]:,.0f}" for e in eps)


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--budget", type=int, default=120)
    parser.add_argument("--rule", nargs="+", default=list(RULES))
    parser.add_argument("--out", type=Path, default=Path("results/search.json"))
    parser.add_argument("--docs", type=Path, default=Path("docs/departures.md"))
    parser.add_argument("--redraw", action="store_true")
    options = parser.parse_args()
    if options.redraw:
        record = json.loads(options.out.read_text())
    else:
        record = measured(
            options.rule, options.seed, options.budget, lambda text: print(text, file=sys.stderr, flush=True)
        )
        options.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    if options.docs.exists():
        redraw(options.docs, tables(record))
    for name, drawn in tables(record).items():
        print(f"\n{name}\n{drawn}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
