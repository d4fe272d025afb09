"""Do the laboratory's claims hold on MNIST and Fashion-MNIST? Trains every cell of the study.

    python -m benchmarks.federations_under_attack --device cuda --partition iid --rounds 100 --cells NEW.jsonl
    python -m benchmarks.federations_under_attack --collect CELLS.jsonl... --out results/federations.json

Every finished cell becomes a line of the file at once, so a run that was stopped goes on where it was;
--seconds stops it by itself. Processes share a GPU better under NVIDIA's MPS (nvidia-cuda-mps-control -d).
--collect makes the record, puts its tables into docs/laboratory.md, and exits 1 if a claim fails, naming it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from randeigen.lab.results import versions
from randeigen.rows.write import replacing
from studies.documents import redraw
from studies.federations import (
    ATTACKED,
    BASES,
    PARTITIONS,
    RULES,
    Cell,
    cells,
    findings,
    longest,
    table,
    train_cell,
)
from studies.provenance import made_with

PAGE = Path(__file__).resolve().parents[1] / "docs" / "laboratory.md"
DATA = ["mnist", "fashion-mnist"]
ATTACKS = [*ATTACKED, *BASES]


def main() -> int:
    """Train, or collect."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", nargs="+", default=DATA, choices=DATA)
    parser.add_argument("--partition", nargs="+", default=["iid"], choices=list(PARTITIONS))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument(
        "--but", nargs="+", type=fewer, default=[], help="attacks and rules with fewer: dba=15"
    )
    parser.add_argument("--attack", nargs="*", choices=ATTACKS, default=ATTACKS, help="these alone")
    parser.add_argument("--timed", action="store_true", help="first the unattacked mean of MNIST, alone")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no round after this long")
    parser.add_argument("--workers", type=int, default=8, help="cells trained beside each other")
    parser.add_argument("--cells", type=Path, default=Path("federations.jsonl"))
    parser.add_argument("--collect", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/federations.json"))
    options = parser.parse_args()
    for path in options.collect or ():
        if not path.is_file():
            parser.error(f"there is no file {path} to collect cells from; --cells of an earlier run wrote it")
    return collect(options.collect, options.out) if options.collect else train(options)


def fewer(text: str) -> tuple[str, int]:
    """dba=15."""
    name, _, rounds = text.partition("=")
    if name not in (*ATTACKS, *RULES) or not rounds.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an attack or rule with its rounds, such as dba=15; known are "
            f"{', '.join((*ATTACKS, *RULES))}"
        )
    return name, int(rounds)


def train(options: argparse.Namespace) -> int:
    """Every cell that is not in the file yet."""
    done = {Cell(**run["cell"]) for run in read([options.cells])} if options.cells.exists() else set()
    if options.timed:
        alone = Cell("mnist", "none", "mean", "iid", options.rounds)
        keep(one(alone, options.device), options.cells)
        done.add(alone)
    todo = [
        cell
        for partition in options.partition
        for name in options.data
        for cell in cells(name, partition, options.rounds, dict(options.but))
        if cell not in done and cell.attack in options.attack
    ]
    # The slow ones first: FILTERING works on the host, and DBA takes many small steps.
    slow = {cell: -(cell.attack == "dba") - (cell.rule == "filtering") for cell in todo}
    todo.sort(key=lambda cell: (options.partition.index(cell.partition), slow[cell]))
    train_one = partial(one, device=options.device, until=time.time() + options.seconds)
    with get_context("spawn").Pool(options.workers) as pool:
        for found in pool.imap_unordered(train_one, todo):
            keep(found, options.cells)
    return 0


def one(cell: Cell, device: str, until: float = math.inf) -> dict[str, Any] | None:
    """A cell, unless there is no time left."""
    if time.time() > until:
        return None
    began = time.perf_counter()
    found = train_cell(cell, device, until)
    made = versions(device) | made_with()
    return found | {"seconds": time.perf_counter() - began, "versions": made}


def keep(found: dict[str, Any] | None, path: Path) -> None:
    """A line more."""
    if found is None:
        return
    with path.open("a") as file:
        file.write(json.dumps(found, allow_nan=False) + "\n")
    end, name = found["history"][-1], Cell(**found["cell"]).name
    print(f"{name}: accuracy {end['accuracy']:.3f}, asr {end['asr']}, {found['seconds']:.0f} s", flush=True)


def read(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """All cells of these files."""
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def collect(paths: list[Path], out: Path) -> int:
    """The record, the table, and what fails."""
    runs = longest(read(paths))
    for run in runs:
        run["history"] = [
            {k: _short(v) for k, v in metrics.items() if v not in ({}, "")} for metrics in run["history"]
        ]
    found = findings(runs)
    with replacing(out) as file:
        lines = ",\n".join(json.dumps(run, allow_nan=False) for run in runs)
        file.write(f'{{"cells": [\n{lines}\n]}}\n'.encode())
    print(table(found))
    redraw(PAGE, {"federations": table(found)})
    missed = [one for one in found if one.kept is False]
    for miss in missed:
        print(
            f"missed: {miss.cell.name} after {miss.cell.rounds} rounds: accuracy {miss.accuracy:.3f} "
            f"(unattacked mean {miss.clean:.3f}), asr {miss.asr} (unattacked {miss.own}), "
            f"Byzantine weight {miss.corrupt:.3f}"
        )
    return int(bool(missed))


def _short(value: object) -> object:
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items()}
    return round(value, 5) if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
