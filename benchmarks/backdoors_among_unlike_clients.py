"""What moves a backdoor among unlike clients? DBA on digits, dealt out by Dirichlet(0.1), five seeds.

    python -m benchmarks.backdoors_among_unlike_clients [--seeds 0 1 2 3 4] [--out results/unlike.json]

The less alike honest clients are, the wider their cloud, and the more hides in it. Varied are the rule, the
eps it assumes, and the cloud itself: smaller local steps, more images for each client. A last attacker
answers smaller steps with smaller ones of its own. Takes about a quarter of an hour on one core.
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
from randeigen.rows.write import replacing
from studies.documents import redraw
from studies.provenance import made_with

PAGE = Path(__file__).resolve().parents[1] / "docs" / "laboratory.md"
SLOWER = {"rate": 0.05, "rounds": 60}  # a quarter of the task's rate, twice the rounds
CASES: dict[str, dict[str, Any]] = {
    "mean": {"rule": "mean"},
    "`randeigen`": {},
    "`randeigen`, assumes 0.4": {"feared": 0.4},
    "`nnm+randeigen`": {"rule": "nnm+randeigen"},
    "`arc+randeigen`": {"rule": "arc+randeigen"},
    "mean, 20 clients": {"rule": "mean", "clients": 20},
    "`randeigen`, 20 clients": {"clients": 20},
    "mean, a quarter of the learning rate": {"rule": "mean", **SLOWER},
    "`randeigen`, a quarter of the learning rate": SLOWER,
    "`randeigen`, and a quarter of the attackers' too": {"attack": "dba:rate=0.0125", **SLOWER},
}
# What cases are called in records made under older names.
RENAMED = {
    "`randeigen`, fears 0.4": "`randeigen`, assumes 0.4",
    "mean, a quarter of the rate": "mean, a quarter of the learning rate",
    "`randeigen`, a quarter of the rate": "`randeigen`, a quarter of the learning rate",
    "`randeigen`, and a quarter of the liars' rate": "`randeigen`, and a quarter of the attackers' too",
}


def run_case(case: dict[str, Any], seed: int) -> dict[str, Any]:
    """One federation: how it ended, and the mean weight of its Byzantine clients."""
    settings = {"attack": "dba", "rule": "randeigen", "rounds": 30, "clients": 50, "feared": 0.2, **case}
    spec = FederatedConfig(
        task="digits", eps=0.2, partition="dirichlet", alpha=0.1, calm=5, seed=seed, **settings
    )
    record = run(spec)
    attacked = [metrics.weight_corrupt or 0.0 for metrics in record.history if metrics.liars]
    return {
        "spec": asdict(record.spec),
        "accuracy": record.accuracy,
        "asr": record.asr,
        "weight_corrupt": statistics.mean(attacked),
    }


def table(cases: dict[str, list[dict[str, Any]]]) -> str:
    """Means over the seeds, and the range of attack success, in percent."""
    lines = ["| | accuracy | attack success | Byzantine weight |", "|---|---:|---:|---:|"]
    for name, runs in cases.items():
        accuracy, weight = (100 * statistics.mean(r[k] for r in runs) for k in ("accuracy", "weight_corrupt"))
        rates = [100 * r["asr"] for r in runs]
        asr = f"{statistics.mean(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})"
        lines.append(f"| {RENAMED.get(name, name)} | {accuracy:.1f} | {asr} | {weight:.1f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=Path("results/unlike.json"))
    parser.add_argument("--redraw", action="store_true", help="the page's table alone, from the record")
    options = parser.parse_args()
    if options.redraw:
        found = json.loads(options.out.read_text())["cases"]
    else:
        found = {}
        for name, case in CASES.items():
            print(f"  {name}", file=sys.stderr, flush=True)
            found[name] = [run_case(case, seed) for seed in options.seeds]
        record = {"cases": found, "seeds": options.seeds, "made_with": made_with()}
        with replacing(options.out) as file:
            file.write((json.dumps(record, indent=1, allow_nan=False) + "\n").encode())
    redraw(PAGE, {"unlike": table(found)})
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
