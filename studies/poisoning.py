"""The study of poisoned data sets behind docs/training.md: every cell is one data set and one defence.

    python -m studies.poisoning results --study subpopulation --device cuda --workers 12

The data of a seed and a cluster or target is prepared once, for all defences; `clean` is the same training
without the poison, and gives each attack's success rate on a clean model. The record is rewritten after every
unit, so that a study that is cut short leaves what it has.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from randeigen.attacks import Clean, GradientMatching, LabelFlipPoison, Subpopulation, Trigger
from randeigen.attacks.base import DataPoison
from randeigen.lab.config import CentralizedConfig, Defence
from randeigen.rows.write import replacing
from studies.provenance import commit

SEEDS = 5
SCRATCH = CentralizedConfig("mnist", "subpopulation", eps=0.05, epochs=8)
TUNED = replace(SCRATCH, start="pretrained", epochs=5)
MATCHED = replace(TUNED, attack="matching")
ALL: tuple[Defence, ...] = ("clean", "none", "suspects")
BOTH: tuple[Defence, ...] = ("none", "suspects")


@dataclass(frozen=True)
class Part:
    """Cells that differ by seed, by defence and by which cluster or target is attacked."""

    name: str
    spec: CentralizedConfig
    attack: Any  # a DataPoison with an index of clusters or targets
    many: int  # clusters or targets for each seed
    defences: tuple[Defence, ...]
    seeds: int = SEEDS

    def poisoner(self, which: int) -> DataPoison:
        """The attack on this cluster or target."""
        fields = {Subpopulation: "cluster", GradientMatching: "target"}
        field = fields.get(type(self.attack))
        poison: DataPoison = replace(self.attack, **{field: which}) if field else self.attack
        return poison


def _wrong(attack: str) -> CentralizedConfig:
    return replace(SCRATCH, attack=attack)


STUDIES: dict[str, tuple[Part, ...]] = {
    "subpopulation": (
        Part("from scratch", SCRATCH, Subpopulation(alpha=2), 10, ALL),
        Part("fine-tuning", TUNED, Subpopulation(alpha=4), 5, ("clean", "none", "backward")),
    ),
    "matching": (
        Part("fine-tuning", MATCHED, GradientMatching(ball=128.0), 4, ("clean", "none", "backward")),
        *(
            Part(
                f"{100 * share:g}% moved by {ball:g}/255",
                MATCHED,
                GradientMatching(share=share, ball=ball),
                1,
                ("none", "backward") if (share, ball) == (0.04, 64.0) else ("none",),
            )
            for share in (0.04, 0.02, 0.01)
            for ball in (64.0, 32.0, 16.0)
        ),
    ),
    "further": (
        Part("trigger, 5%", _wrong("trigger"), Trigger(0.05), 1, BOTH, seeds=1),
        Part("label-flip, 5%", _wrong("label-flip"), LabelFlipPoison(0.05), 1, BOTH, seeds=1),
        Part("fine-tuning, judged by suspects", TUNED, Subpopulation(alpha=4), 1, BOTH, seeds=4),
        Part("trigger, 1%", _wrong("trigger"), Trigger(0.01), 1, BOTH, seeds=1),
        Part("label-flip, 1%", _wrong("label-flip"), LabelFlipPoison(0.01), 1, BOTH, seeds=1),
        Part("no poison", _wrong("none"), Clean(), 1, BOTH, seeds=2),
    ),
}


@dataclass(frozen=True)
class Unit:
    """The cells that one process runs at a time."""

    part: Part
    seed: int
    which: tuple[int, ...]
    device: str


def units(parts: Sequence[Part], device: str, together: int) -> Iterator[Unit]:
    """All cells, a few of one seed together: their common model is trained once."""
    for part in parts:
        for first in range(0, part.many, together):
            for seed in range(part.seeds):
                yield Unit(part, seed, tuple(range(first, min(first + together, part.many))), device)


def measure(unit: Unit) -> list[dict[str, Any]]:
    """The cells of a unit, each as a line of the record."""
    import torch

    from randeigen.lab.centralized import train
    from randeigen.lab.poisoned_setup import prepare

    torch.set_num_threads(1)
    part, lines, setup = unit.part, [], None
    for which in unit.which:
        spec = replace(part.spec, seed=unit.seed)
        setup = prepare(spec, attack=part.poisoner(which), device=unit.device, beside=setup)
        for defence in part.defences:
            start = time.perf_counter()
            last = train(replace(spec, defence=defence), setup).history[-1]
            metrics = {
                name: value for name, value in asdict(last).items() if name not in ("epoch", "seconds")
            }
            key = {"part": part.name, "seed": unit.seed, "which": which, "defence": defence}
            took = round(time.perf_counter() - start, 2)
            lines.append({**key, **metrics, "examples": len(setup.train.labels), "seconds": took})
    return lines


def summary(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds and clusters or targets; success is also given minus the clean model's own rate."""
    own = {(line["part"], line["seed"], line["which"]): line for line in lines if line["defence"] == "clean"}
    rows = []
    for part in dict.fromkeys(line["part"] for line in lines):
        for defence in dict.fromkeys(line["defence"] for line in lines):
            cells = [line for line in lines if (line["part"], line["defence"]) == (part, defence)]
            if not cells:
                continue
            pairs = [(c, own.get((part, c["seed"], c["which"]))) for c in cells]
            row: dict[str, Any] = {"part": part, "defence": defence, "cells": len(cells)}
            for name in ("accuracy", "asr", "auc", "weight_honest", "weight_poison"):
                values = [c[name] for c in cells if c[name] is not None]
                row[name] = round(float(np.mean(values)), 4) if values else None
            for name in ("accuracy", "asr"):
                less = [c[name] - o[name] for c, o in pairs if o and c[name] is not None]
                row[f"{name}_less_clean"] = round(float(np.mean(less)), 4) if less else None
            known = {
                name: [round(c[name], 4) for c in cells if c[name] is not None] for name in ("asr", "auc")
            }
            row["worst_asr"] = max(known["asr"], default=None)
            row["least_auc"] = min(known["auc"], default=None)
            rows.append(row)
    return rows


def write(path: Path, study: str, lines: Sequence[dict[str, Any]], device: str) -> None:
    """Write the record: the parts of the study, every cell, the means."""
    from randeigen.lab.results import versions

    parts: list[dict[str, Any]] = [
        {"part": part.name, "spec": asdict(part.spec), "attack": asdict(part.attack), "seeds": part.seeds}
        for part in STUDIES[study]
        if any(line["part"] == part.name for line in lines)
    ]
    for part in parts:
        part["spec"].pop("defence")  # each cell has its own
    order = {part.name: index for index, part in enumerate(STUDIES[study])}
    cells = sorted(lines, key=lambda c: (order[c["part"]], c["seed"], c["which"], c["defence"]))
    record: dict[str, Any] = {"study": study, "parts": parts, "summary": summary(cells), "cells": cells}
    record |= {"versions": versions(device), "commit": commit()}
    with replacing(path) as file:
        file.write((json.dumps(record, indent=1) + "\n").encode())


def main(words: Sequence[str] | None = None) -> None:
    """Run studies in several processes and write their records."""
    parser = argparse.ArgumentParser(prog="studies.poisoning", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--study", action="append", choices=STUDIES, help="All unless given.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--together", type=int, default=2, help="Clusters or targets of one seed at a time.")
    parser.add_argument("--seconds", type=float, default=1e6, help="Then stop with what there is.")
    options = parser.parse_args(words)
    options.folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.workers) as pool:
        for study in options.study or STUDIES:
            todo = list(units(STUDIES[study], options.device, options.together))
            lines: list[dict[str, Any]] = []
            answers = pool.imap_unordered(measure, todo)
            for done in range(1, len(todo) + 1):
                try:
                    lines += answers.next(max(0.1, options.seconds - (time.monotonic() - start)))
                except multiprocessing.TimeoutError:
                    print(f"{study}: time is up after {done - 1} of {len(todo)} units", flush=True)
                    break
                write(options.folder / f"poisoning-{study}.json", study, lines, options.device)
                took = time.monotonic() - start
                print(f"{study}: {done} of {len(todo)} units, {took:.0f} s", flush=True)
            for row in summary(lines):
                print(row, flush=True)
        pool.terminate()


if __name__ == "__main__":
    main()
