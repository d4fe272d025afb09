"""The command.

python -m fuzz [--inputs N] [--minutes M] [--jobs J] [--seed S] [--only SEED] [--device cpu|cuda] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: many small inputs, one process to a core

import numpy as np

from fuzz import forms  # noqa: F401  imports torch, where it is installed
from fuzz.inputs import case
from fuzz.properties import check
from fuzz.run import Tally, explain, run
from fuzz.world import Failure
from randeigen.provenance import versions
from studies.provenance import commit


def options() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description="Hostile inputs, and what must hold of every answer."
    )
    parser.add_argument("--inputs", type=int, default=20_000, metavar="N", help="how many (default 20,000)")
    parser.add_argument("--minutes", type=float, default=1e9, metavar="M", help="stop after so long")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="J", help="processes; 0: in this one"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="the first input's number; the rest follow"
    )
    parser.add_argument("--only", type=int, metavar="SEED", help="one input, with all that it says")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="where tensors lie")
    parser.add_argument("--out", metavar="FILE", help="write a record, .json")
    return parser.parse_args()


def only(seed: int, device: str) -> int:
    """One input: what it is, how it ends."""
    found = case(seed, device)
    print(found)
    try:
        print(check(found))
    except Failure as failure:
        print(f"FAILED: {failure.claim}\n  {failure.message}\n  {failure.where}")
        return 1
    return 0


def record(asked: argparse.Namespace, tally: Tally, seconds: float) -> dict[str, Any]:
    """The run as data."""
    failures = [
        {"class": name, "count": count, "examples": tally.examples[name]}
        for name, count in tally.failed.most_common()
    ]
    return {
        "commit": commit(),
        "changed": _changed(),
        "versions": {**versions(), "numpy": np.__version__},
        "device": asked.device,
        "first": asked.seed,
        "inputs": tally.inputs,
        "seconds": round(seconds, 1),
        "jobs": asked.jobs,
        "kinds": dict(tally.kinds.most_common()),
        "outcomes": dict(tally.outcomes.most_common()),
        "failed": sum(tally.failed.values()),
        "failures": failures,
    }


def _changed() -> bool | None:
    """Whether the code differs from the commit; None where that cannot be known."""
    asked = ["git", "-C", str(Path(__file__).parent), "status", "--porcelain", "--untracked-files=no"]
    try:
        return bool(
            subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
        )
    except (OSError, subprocess.SubprocessError):
        return None


def main() -> int:
    """Run, tell, and exit with 1 if anything failed."""
    asked = options()
    if asked.only is not None:
        return only(asked.only, asked.device)
    began = time.monotonic()
    tally = run(asked.seed, asked.inputs, asked.minutes, asked.jobs, asked.device)
    seconds = time.monotonic() - began
    explain(tally, asked.device)
    found = record(asked, tally, seconds)
    if asked.out:
        Path(asked.out).write_text(json.dumps(found, indent=1) + "\n")
    print(
        f"{tally.inputs:,} inputs in {seconds:.0f} s: "
        + ", ".join(f"{v:,} {k}" for k, v in tally.kinds.most_common())
    )
    print("They ended so: " + ", ".join(f"{count:,} {name}" for name, count in tally.outcomes.most_common()))
    for failure in found["failures"]:
        first = failure["examples"][0]
        print(f"\n{failure['count']:,} × {failure['class']}")
        print(f"  python -m fuzz --only {first['seed']}: {first['says'][:300]}")
        if small := first.get("smaller"):
            print(f"  smaller: {small['input']}: {small['says'][:200]}")
    print(f"\n{found['failed']:,} failures." if found["failed"] else "No failure.")
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
