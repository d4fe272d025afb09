"""What the balanced rule costs where nobody searches: on the grid of docs/departures.md, and in training.

    python -m benchmarks.balanced_rule [--parts grid training] [--out results/balanced.json]
    python -m benchmarks.balanced_rule --redraw    # only the tables of the document, from the record

Grid: kinds of cloud × eps × attacks, n = 100, one seed. Training: a rule that gives an honest minority its
part gives it to a corrupt one that looks like it, round after round; backdoors on digits, dealt out by
Dirichlet(0.3), 30 clients, 6 of them corrupt, 20 rounds, two seeds; DBA and MRA without boost. A few minutes
on one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from randeigen.lab import FederatedConfig, run
from randeigen.registry import build_rule as rule_named
from randeigen.rows.write import replacing
from studies.departures import Summary, judge, on_gram, settings
from studies.documents import redraw
from studies.provenance import made_with

PAGE = Path(__file__).resolve().parents[1] / "docs" / "departures.md"
ATTACKS = {"dba": "DBA", "mra:boost=1": "MRA, boost 1"}
RULES = ("randeigen", "balanced", "balanced:tolerance=0")
CLIENTS, ROUNDS, EPS, SEEDS = 30, 20, 0.2, (0, 1)
GRID = 3  # seed: the default's constants were chosen on 0, 1 and 2


def run_case(attack: str, rule: str, seed: int) -> dict[str, Any]:
    """One federation: how it ended, and the weight its corrupt clients had."""
    given: dict[str, Any] = {"task": "digits", "partition": "dirichlet", "alpha": 0.3, "rounds": ROUNDS}
    spec = FederatedConfig(attack=attack, rule=rule, eps=EPS, clients=CLIENTS, feared=EPS, seed=seed, **given)
    record = run(spec)
    corrupt = [metrics.weight_corrupt or 0.0 for metrics in record.history if metrics.liars]
    return {
        "seed": seed,
        "accuracy": record.accuracy,
        "asr": record.asr,
        "weight_corrupt": statistics.mean(corrupt) if corrupt else None,
    }


def training() -> dict[str, Any]:
    """Every rule under every attack."""
    runs: dict[str, dict[str, Any]] = {rule: {} for rule in RULES}
    for attack in ATTACKS:
        for rule in RULES:
            runs[rule][attack] = [run_case(attack, rule, seed) for seed in SEEDS]
            print(attack, rule, runs[rule][attack], file=sys.stderr, flush=True)
    setting = {
        "task": "digits",
        "clients": CLIENTS,
        "rounds": ROUNDS,
        "eps": EPS,
        "partition": "dirichlet 0.3",
    }
    return {**setting, "seeds": list(SEEDS), "runs": runs, "made_with": made_with()}


def grid() -> dict[str, Any]:
    """Every rule on the grid."""
    enter = {
        rule: on_gram(lambda eps, rule=rule: rule_named(rule, eps, None).weigh)  # type: ignore[misc]
        for rule in RULES
    }
    found: dict[str, list[Any]] = {rule: [] for rule in enter}
    for cell in settings([GRID]):
        for rule, contestant in enter.items():
            found[rule].append(judge(contestant, cell))
    rules = {rule: asdict(Summary.of(records)) for rule, records in found.items()}
    return {"seeds": [GRID], "rules": rules, "made_with": made_with()}


PARTS = {"grid": grid, "training": training}


def tables(record: dict[str, Any]) -> dict[str, str]:
    """Of the grid as on the rest of the page; of training means over the seeds, and the range, in percent."""
    lines = ["| rule | worst | mean | kept (least) | certificate broken |", "|---" * 5 + "|"]
    for rule, one in record["grid"]["rules"].items():
        kept = f"{one['kept']:.1f} ({one['least_kept']:.0f})"
        lines.append(f"| `{rule}` | {one['worst']:.2f} | {one['mean']:.3f} | {kept} | {one['violations']} |")
    lines += ["", _made(record["grid"])]
    rows = ["| | " + " | ".join(ATTACKS.values()) + " |", "|---" * (1 + len(ATTACKS)) + "|"]
    for rule in RULES:
        cells = [_cell(record["training"]["runs"][rule][attack]) for attack in ATTACKS]
        rows.append(f"| `{rule}` | " + " | ".join(cells) + " |")
    rows += ["", _made(record["training"])]
    return {"balanced on the grid": "\n".join(lines), "balanced in training": "\n".join(rows)}


def _made(part: dict[str, Any]) -> str:
    made, seeds = part["made_with"], ", ".join(map(str, part["seeds"]))
    seeds = f"Seeds {seeds}" if len(part["seeds"]) > 1 else f"Seed {seeds}"
    return f"{seeds}; made with randeigen {made['randeigen']} at {made['commit']}."


def _cell(runs: list[dict[str, Any]]) -> str:
    accuracy = f"{100 * statistics.mean(one['accuracy'] for one in runs):.1f}"
    rates = [100 * one["asr"] for one in runs if one["asr"] is not None]
    if not rates:
        return accuracy
    return f"{accuracy}, success {statistics.mean(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})"


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--out", type=Path, default=Path("results/balanced.json"))
    parser.add_argument("--redraw", action="store_true")
    options = parser.parse_args()
    record = json.loads(options.out.read_text()) if options.out.exists() else {}
    if not options.redraw:
        record |= {part: PARTS[part]() for part in options.parts}
        with replacing(options.out) as file:
            file.write((json.dumps(record, indent=1) + "\n").encode())
    if set(record) >= set(PARTS):
        redraw(PAGE, tables(record))
        print("\n\n".join(tables(record).values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
