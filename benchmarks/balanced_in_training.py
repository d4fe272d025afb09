"""Is the balanced rule one to train with? Backdoors on digits, dealt out by Dirichlet(0.3), three seeds.

    python benchmarks/balanced_in_training.py [--seeds 0 1 2] [--out results/balanced.json]
    python benchmarks/balanced_in_training.py --redraw    # only the table of the document, from the record

A rule that gives an honest minority its part gives it to a corrupt one that looks like it, round after round.
30 clients, 6 of them corrupt, 20 rounds; DBA and MRA without boost. Minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from randeigen import bench
from randeigen.cli.attacks import build as attack_named
from randeigen.cli.choose import build as rule_named
from randeigen.experiments.documents import redraw
from randeigen.learn import Spec, run
from randeigen.rows.save import replacing

PAGE = Path(__file__).resolve().parents[1] / "docs" / "departures.md"
ATTACKS = {"none": "no attack", "dba": "DBA", "mra:boost=1": "MRA, boost 1"}
RULES = ("mean", "randeigen", "balanced", "balanced:tolerance=0")
CLIENTS, ROUNDS, EPS = 30, 20, 0.2


def played(attack: str, rule: str, seed: int) -> dict[str, Any]:
    """One federation: how it ended, and the weight its corrupt clients had."""
    asked: dict[str, Any] = {"task": "digits", "partition": "dirichlet", "alpha": 0.3, "rounds": ROUNDS}
    spec = Spec(attack=attack, rule=rule, eps=EPS, clients=CLIENTS, feared=EPS, seed=seed, **asked)
    made = None if attack == "none" else attack_named(attack)
    record = run(spec, attack=made, rule=rule_named(rule, EPS, None))
    corrupt = [moment.weight_corrupt or 0.0 for moment in record.history if moment.liars]
    return {
        "seed": seed,
        "accuracy": record.accuracy,
        "asr": record.asr,
        "weight_corrupt": statistics.mean(corrupt) if corrupt else None,
    }


def tables(record: dict[str, Any]) -> dict[str, str]:
    """Means over the seeds in percent: accuracy, then attack success with its range."""
    lines = ["| | " + " | ".join(ATTACKS.values()) + " |", "|---" * (1 + len(ATTACKS)) + "|"]
    for rule in RULES:
        cells = [_cell(record["runs"][rule][attack]) for attack in ATTACKS]
        lines.append(f"| `{rule}` | " + " | ".join(cells) + " |")
    made = record["made_with"]
    seeds = ", ".join(map(str, record["seeds"]))
    lines += ["", f"Seeds {seeds}; made with randeigen {made['randeigen']} at {made['commit']}."]
    return {"balanced in training": "\n".join(lines)}


def _cell(runs: list[dict[str, Any]]) -> str:
    accuracy = f"{100 * statistics.mean(one['accuracy'] for one in runs):.1f}"
    rates = [100 * one["asr"] for one in runs if one["asr"] is not None]
    if not rates:
        return accuracy
    return f"{accuracy}, success {statistics.mean(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})"


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("results/balanced.json"))
    parser.add_argument("--redraw", action="store_true")
    options = parser.parse_args()
    if options.redraw:
        record = json.loads(options.out.read_text())
    else:
        runs: dict[str, dict[str, Any]] = {rule: {} for rule in RULES}
        for attack in ATTACKS:
            for rule in RULES:
                runs[rule][attack] = [played(attack, rule, seed) for seed in options.seeds]
                print(attack, rule, runs[rule][attack], file=sys.stderr, flush=True)
        record = {
            "task": "digits",
            "clients": CLIENTS,
            "rounds": ROUNDS,
            "eps": EPS,
            "partition": "dirichlet 0.3",
            "seeds": options.seeds,
            "runs": runs,
            "made_with": bench.versions(),
        }
        with replacing(options.out) as file:
            file.write((json.dumps(record, indent=1) + "\n").encode())
    redraw(PAGE, tables(record))
    print(tables(record)["balanced in training"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
