"""The federations on digits of docs/laboratory.md: attacks, unlike clients, and what 60 rounds come to.

    python -m studies.digits --runs digits-runs

Trains what is missing in the folder of runs (some twelve minutes on one core, one record each), writes
results/digits.json and puts its tables into docs/laboratory.md. The same versions on the same kind of
processor give the same record to the bit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from randeigen.lab import FederatedConfig, FederatedRecord, run_sweep, tasks
from randeigen.lab.sweep import SweepStep
from randeigen.rows.write import replacing
from studies.documents import redraw
from studies.provenance import made_with

ROOT = Path(__file__).resolve().parents[1]
RECORD, PAGE = ROOT / "results" / "digits.json", ROOT / "docs" / "laboratory.md"
RULES = {"mean": "mean", "FILTERING": "chunked-filtering", "RandEigen": "randeigen"}
ATTACKS = (
    *("none", "hidra", "hidra:tensors=false", "tma", "mra", "mra:share=0.5", "mra:boost=5,share=0.3", "dba"),
    *("mpa", "dfba", "label-flip", "zero", "krum-attack", "adaptive"),
)
SEEDS = (0, 1, 2)
MORE_SEEDS = (*SEEDS, 3, 4)  # of runs without attack, whose differences are small
LONG, LONG_SEEDS = 60, (0, 1)  # rounds
LONG_ATTACKS = ("none", "zero", "krum-attack")
LONG_RULES = ("randeigen", "arc+randeigen", "clipping+randeigen")
Cell = Mapping[str, Any]


def configs() -> Iterator[FederatedConfig]:
    """Every run of the study."""
    for attack in ATTACKS:
        for rule in RULES.values():
            for seed in MORE_SEEDS if attack == "none" else SEEDS:
                yield FederatedConfig(attack=attack, rule=rule, seed=seed)
    for rule in RULES.values():
        for seed in MORE_SEEDS:
            yield FederatedConfig(rule=rule, seed=seed, partition="dirichlet", alpha=0.3)
    for seed in LONG_SEEDS:
        yield FederatedConfig(rule="mean", rounds=LONG, seed=seed)
        for attack in LONG_ATTACKS:
            for rule in LONG_RULES:
                yield FederatedConfig(attack=attack, rule=rule, rounds=LONG, seed=seed)


def collect(records: Sequence[FederatedRecord]) -> list[Cell]:
    """One cell for each setting, with the results of its seeds."""
    cells: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in records:
        spec, last = record.spec, record.history[-1]
        setting = {
            "attack": spec.attack,
            "partition": spec.partition,
            "rule": spec.rule,
            "rounds": spec.rounds,
        }
        cell = cells.setdefault(
            tuple(setting.values()), setting | {"seeds": [], "accuracy": [], "asr": [], "weight_corrupt": []}
        )
        cell["seeds"].append(spec.seed)
        for name in ("accuracy", "asr", "weight_corrupt"):
            cell[name].append(getattr(last, name))
    return list(cells.values())


def tables(cells: Sequence[Cell]) -> dict[str, str]:
    """The tables of the page, by the name of their place."""
    rounds = FederatedConfig().rounds
    lines = [["attack", *RULES], ["---", *["---:"] * len(RULES)]]
    rows = [("none", "iid"), ("none", "dirichlet"), *((attack, "iid") for attack in ATTACKS[1:])]
    for attack, partition in rows:
        name = {"none": "none"}.get(attack, f"`{attack}`")
        name += ", Dirichlet(0.3)" if partition == "dirichlet" else ""
        found = [find(cells, attack, rule, partition, rounds) for rule in RULES.values()]
        lines.append([name, *(result(cell, SEEDS) for cell in found)])
    longer = [["rule", *(name if name == "none" else f"`{name}`" for name in LONG_ATTACKS)]]
    longer += [["---", *["---:"] * len(LONG_ATTACKS)]]
    for rule in ("mean", *LONG_RULES):
        found = [find(cells, attack, rule, "iid", LONG) for attack in LONG_ATTACKS]
        longer.append([f"`{rule}`", *(result(cell, LONG_SEEDS) for cell in found)])
    return {"digits": _markdown(lines), "digits-60": _markdown(longer)}


def find(cells: Sequence[Cell], attack: str, rule: str, partition: str, rounds: int) -> Cell | None:
    """The cell of this setting; a rule may have got the task's sigma behind its name."""
    for cell in cells:
        setting = cell["attack"], cell["rule"].partition(":")[0], cell["partition"], cell["rounds"]
        if setting == (attack, rule, partition, rounds):
            return cell
    return None


def result(cell: Cell | None, seeds: Sequence[int]) -> str:
    """Mean accuracy over these seeds in percent and, where it has a meaning, attack success."""
    if cell is None:
        return ""
    of = [cell["seeds"].index(seed) for seed in seeds]
    text = f"{100 * statistics.fmean(cell['accuracy'][i] for i in of):.1f}"
    if cell["asr"][0] is not None:
        text += f" / {100 * statistics.fmean(cell['asr'][i] for i in of):.0f}"
    return text


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("| --- |", "|---|", 1)


def main() -> int:
    """Train, collect, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("digits-runs"), help="where the runs' records go")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on one core")
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--redraw", action="store_true", help="put the record's tables into the page alone")
    options = parser.parse_args()
    if options.redraw:
        redraw(PAGE, tables(json.loads(options.out.read_text())["cells"]))
        return 0
    task, made = tasks.build("digits"), made_with()

    def report(step: SweepStep) -> None:
        left = "" if step.seconds_left is None else f", {step.seconds_left / 60:.0f} min left"
        print(f"{step.done}/{step.total} {step.path.stem}{left}", file=sys.stderr, flush=True)

    asked = [config.resolve(task) for config in configs()]
    paths = run_sweep(asked, options.runs, jobs=options.jobs, command=made["command"], on_step=report)
    cells = collect([FederatedRecord.read(path) for path in paths])
    text = ",\n".join(json.dumps(cell, allow_nan=False) for cell in cells)
    with replacing(options.out) as file:
        file.write(f'{{"made_with": {json.dumps(made)},\n"cells": [\n{text}\n]}}\n'.encode())
    redraw(PAGE, tables(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
