"""A pretrained encoder on SST-2 under embedding poisoning and HIDRA: rules × eps × attacks × seeds.

    python -m studies.language pack .devdata/minilm
    python -m studies.language run --encoder .devdata/minilm --device cuda --minutes 7 --out cells.jsonl
    python -m studies.language collect cells.jsonl... --out results/language.json

`pack` makes a folder of 46 MB, MiniLM in half precision with SST-2 as its token ids: all that another machine
needs. `run` trains the cells in order of importance; each finished one is a line of the file at once, so that
a run that was stopped goes on where it was; one that ran out of time is written with the rounds it had. The
fixed sigma of HIDRA and FILTERING is the largest variance of any honest chunk in the unattacked run of the
same setting and seed, which is therefore the first cell. `collect` makes the record.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import randeigen
from randeigen.attacks import EP
from randeigen.geometry.gram_batch import chunk_variances
from randeigen.lab import FederatedConfig, Federation, Task
from randeigen.lab.results import versions
from randeigen.lab.tasks import build
from randeigen.provenance import commit

CLIENTS, ROUNDS = 20, 20
RULES = {
    "mean": "mean",
    "filtering": "chunked-filtering:sigma={sigma!r}",
    "filtering-adaptive": "chunked-filtering:sigma={sigma!r},adaptive=true",
    "no-regret": "chunked-no-regret:sigma={sigma!r}",
    "no-regret-adaptive": "chunked-no-regret:sigma={sigma!r},adaptive=true",
    "randeigen": "randeigen",
    "published": "published",
}
ATTACKS = {
    "none": "none",
    "ep": "ep",
    "ep-boosted": "ep:boost={boost!r}",
    "ep-blended": "ep:boost={boost!r},blend=true",
    "hidra": "hidra:sigma={sigma!r},tensors=false",  # cut as FILTERING cuts
    "hidra-10": "hidra:sigma={ten_sigma!r},tensors=false",
    "hidra-adaptive": "hidra-adaptive:tensors=false",
}
# What clients do in a round, by the learning rate and the most steps: honest updates are short, or longer.
SETTINGS = {"short": (2e-5, 10), "long": (5e-5, 10), "pass": (2e-5, 0), "trial": (2e-5, 1)}
PASSES = ("settings", "main", "long", "rules", "eps", "seeds", "published")
REPEATS = 3  # of the last round's aggregation, to measure its time and memory


@dataclass(frozen=True)
class Cell:
    """One federation."""

    attack: str
    rule: str
    eps: float = 0.2
    seed: int = 0
    setting: str = "short"
    rounds: int = ROUNDS
    encoder: str = "minilm"

    @property
    def base(self) -> Cell:
        """The unattacked mean that it is compared with."""
        return replace(self, attack="none", rule="mean", eps=0.0)

    def config(self, task: str, sigma: float, clients: int) -> FederatedConfig:
        """The federation of this cell; without attack rules assume a fifth, as under attack."""
        byzantine = max(1, int(self.eps * clients + 1e-9))
        values = {"sigma": sigma, "ten_sigma": 10 * sigma, "boost": clients / byzantine}
        rate, steps = SETTINGS[self.setting]
        return FederatedConfig(
            task=task,
            attack=ATTACKS[self.attack].format(**values),
            rule=RULES[self.rule].format(**values),
            eps=self.eps if self.attack != "none" else 0.0,
            feared=self.eps or 0.2,
            rounds=self.rounds,
            seed=self.seed,
            clients=clients,
            rate=rate,
            steps=steps,
        )


def plan(encoder: str, passes: list[str], rounds: int) -> Iterator[Cell]:
    """All cells, the most important first. The unattacked mean of a seed comes before its other cells."""
    start = Cell("none", "mean", 0.0, rounds=rounds, encoder=encoder)
    everything = [name for name in ATTACKS if name != "none"]
    kinds: dict[str, list[Cell]] = {
        "settings": [replace(start, setting=name) for name in ("short", "long")],
        "main": [
            *(replace(start, rule=rule) for rule in ("mean", "randeigen")),
            *(replace(start, attack=a, rule=r, eps=0.2) for a in everything for r in ("mean", "randeigen")),
        ],
        "long": [
            *(replace(start, setting="long", rule=rule) for rule in ("mean", "randeigen")),
            *(
                replace(start, setting="long", attack=a, rule=r, eps=0.2)
                for a in ("ep", "ep-boosted", "ep-blended", "hidra")
                for r in ("mean", "randeigen")
            ),
        ],
        "rules": [
            replace(start, attack=a, rule=r, eps=0.2)
            for r in ("filtering-adaptive", "filtering", "no-regret", "no-regret-adaptive")
            for a in ("none", "ep-boosted", "hidra", "hidra-adaptive", "ep", "ep-blended", "hidra-10")
        ],
        "eps": [
            replace(start, attack=a, rule=r, eps=eps)
            for eps in (0.05, 0.1, 0.15)
            for a in everything
            for r in ("randeigen", "mean")
        ],
    }
    trial = replace(start, setting="trial")
    kinds["trial"] = [trial, replace(trial, attack="ep", eps=0.2), replace(trial, attack="hidra", eps=0.2)]
    kinds["published"] = [
        replace(start, attack=a, rule="published", eps=0.2) for a in ("ep-boosted", "hidra", "none", "ep")
    ]
    kinds["seeds"] = [replace(cell, seed=seed) for seed in (1, 2) for cell in kinds["main"]]
    for name in passes:
        yield from kinds[name]


def play(
    cell: Cell, task: Task, name: str, sigma: float, clients: int, device: str, until: float = math.inf
) -> dict[str, Any]:
    """Train one cell, with fewer rounds if time is up; its record."""
    spec = cell.config(name, sigma, clients)
    lab = Federation.of(spec, task=task, device=device)
    own = EP().success_sets(lab.info, *lab.test)["asr"] if cell.attack == "none" else None
    weights, state = lab.info.initial_weights, dict[str, Any]()
    history, cost, variances = list[dict[str, Any]](), dict[str, float](), list[float]()
    began = time.perf_counter()
    for t in range(1, spec.rounds + 1):
        snapshots = list[Any]()
        weights, state, metrics = lab.round(t, weights, state, snapshots.append)
        record = asdict(metrics)
        if own is not None:
            record["own"] = lab.agreement(weights, *own)
        last = t == spec.rounds or time.time() > until
        if snapshots and (cell == cell.base or last):
            rows = snapshots[0].rows
            norms = rows.norm(dim=1)
            honest, byzantine = norms[metrics.liars :], norms[: metrics.liars]
            record["norms"] = [float(part.mean()) for part in (honest, byzantine) if len(part)]
            if cell == cell.base:
                variances.append(float(np.max(chunk_variances(rows, 1000))))
            if last:
                cost = cost_of(lab, rows, metrics.liars)
        del snapshots
        history.append(record)
        print(
            f"{cell.attack} {cell.rule} {cell.eps:g} seed {cell.seed} {cell.setting}: round {t}/{spec.rounds}"
            f" accuracy {metrics.accuracy:.3f} success {metrics.asr if own is None else record['own']} "
            f"Byzantine weight {metrics.weight_corrupt} {time.perf_counter() - began:.1f} s",
            file=sys.stderr,
            flush=True,
        )
        if last:
            break
    return {
        "cell": asdict(cell),
        "spec": asdict(lab.spec),
        "history": history,
        "aggregation": cost,
        "sigma": max(variances, default=sigma),
        "seconds": time.perf_counter() - began,
        "versions": {**versions(device), **task.about, "commit": commit()},
    }


def cost_of(lab: Federation, rows: Any, m: int) -> dict[str, float]:
    """Median seconds of an aggregation of these rows, and the memory it takes beyond them on a GPU."""
    seconds, peak = [], 0
    rule = lab.informed_rule(rows[m:])
    for repeat in range(REPEATS):
        if rows.is_cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        began = time.perf_counter()
        randeigen.aggregate(rows, rule=rule, seed=repeat)
        if rows.is_cuda:
            torch.cuda.synchronize()
            peak = max(peak, torch.cuda.max_memory_allocated() - before)
        seconds.append(time.perf_counter() - began)
    return {"seconds": float(np.median(seconds)), "peak_bytes": float(peak)}


def run_cells(options: argparse.Namespace) -> None:
    """Train what is missing, until the time is up."""
    until = time.time() + 60 * options.minutes
    name = f"sst2:encoder={options.encoder}" if options.task == "sst2" else options.task
    task = build(name)
    done = {Cell(**one["cell"]): one for one in read(options.out) if is_whole(one)}
    longest = 0.0
    for cell in plan(options.label, options.passes, options.rounds):
        if cell in done:
            continue
        if cell != cell.base and cell.base not in done:
            print(f"{cell} has no unattacked run yet; it is left out", file=sys.stderr)
            continue
        if time.time() + longest > until:
            print("the time is up; the same command goes on", file=sys.stderr)
            break
        began = time.time()
        sigma = done[cell.base]["sigma"] if cell.base in done else task.sigma
        try:
            record = play(cell, task, name, sigma, options.clients, options.device, until)
        except Exception as error:  # one cell that fails must not cost the sitting
            print(f"{cell} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            continue
        done[cell] = record
        with options.out.open("a") as file:
            file.write(json.dumps(record) + "\n")
        if cell.rule in ("mean", "randeigen"):
            longest = time.time() - began


def is_whole(record: dict[str, Any]) -> bool:
    """Whether a cell had all of its rounds."""
    return bool(len(record["history"]) == record["cell"]["rounds"])


def read(path: Path) -> list[dict[str, Any]]:
    """The cells in a file of lines; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def collect(paths: list[Path], out: Path) -> None:
    """One record of all cells, of each the one with the most rounds."""
    found = sorted((one for path in paths for one in read(path)), key=lambda one: len(one["history"]))
    cells = {Cell(**one["cell"]): one for one in found}
    out.write_text(json.dumps({"cells": list(cells.values())}, indent=1) + "\n")
    print(f"{len(cells)} cells in {out}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    pack = commands.add_parser("pack")
    pack.add_argument("folder", type=Path)
    pack.add_argument("--encoder", default="minilm")
    run = commands.add_parser("run")
    run.add_argument("--encoder", default="minilm", help="minilm, mpnet or a folder")
    run.add_argument("--label", default="minilm", help="what the cells call it")
    run.add_argument("--task", default="sst2", help="sst2, or sst2-tiny to try the script")
    run.add_argument("--device", default="cpu")
    run.add_argument("--minutes", type=float, default=60.0)
    run.add_argument("--passes", nargs="+", default=list(PASSES))
    run.add_argument("--clients", type=int, default=CLIENTS)
    run.add_argument("--rounds", type=int, default=ROUNDS)
    run.add_argument("--out", type=Path, required=True)
    gather = commands.add_parser("collect")
    gather.add_argument("cells", nargs="+", type=Path)
    gather.add_argument("--out", type=Path, default=Path("results/language.json"))
    options = parser.parse_args()
    if options.command == "pack":
        from randeigen.lab.sst2 import write_copy

        write_copy(options.encoder, options.folder)
    elif options.command == "run":
        run_cells(options)
    else:
        collect(options.cells, options.out)


if __name__ == "__main__":
    main()
