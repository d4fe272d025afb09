"""A pretrained encoder on SST-2 under embedding poisoning and HIDRA: rules × eps × attacks × seeds.

    python -m studies.language pack .devdata/minilm
    python -m studies.language run --encoder .devdata/minilm --device cuda --minutes 7 --out cells.jsonl
    python -m studies.language collect cells.jsonl... --out results/language.json
    python -m studies.language left                      # how many cells of each pass are not in the record

`pack` makes a folder of 46 MB, MiniLM in half precision with SST-2 as its token ids: all that another machine
needs. `run` trains the cells in order of importance; each finished one is a line of the file at once, so that
a run that was stopped goes on where it was; one that ran out of time is written with the rounds it had. The
fixed sigma of HIDRA and FILTERING is the largest variance of any honest chunk in the unattacked run of the
same setting and seed; the cells that are given it wait for that run. `collect` makes the record.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import traceback
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from fnmatch import fnmatchcase
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from randeigen.attacks import EP
from randeigen.geometry.chunk_variances import chunk_variances
from randeigen.lab import Federation, Task
from randeigen.lab.results import versions
from randeigen.lab.tasks import build
from randeigen.provenance import commit
from studies.language_cells import CLIENTS, PASSES, ROUNDS, RULES, WORD_TABLE, Cell, plan

VARIANCES_EVERY = 4  # rounds between measurements of the honest variances of an unattacked run
RECORD = Path("results/language.json")
REPEATS = 3  # of the last round's aggregation, to measure its time and memory


def play(
    cell: Cell, task: Task, name: str, sigma: float, clients: int, device: str, until: float = math.inf
) -> dict[str, Any]:
    """Train one cell, with fewer rounds if time is up; its record."""
    names = dict(task.model().named_parameters())
    (table,) = [parameter for key, parameter in names.items() if fnmatchcase(key, WORD_TABLE)]
    spec = cell.config(name, sigma, clients, table.shape[1])
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
            if cell == cell.base and (last or t % VARIANCES_EVERY == 1):
                variances.append(float(np.max(chunk_variances(rows, 1000))))
            if last:
                cost = cost_of(lab, rows, metrics.liars)
                if lab.success_sets:
                    record["restored"] = success_without_row(lab, weights)
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


def success_without_row(lab: Federation, weights: Any) -> float:
    """EP's success with the word's row of the embedding put back to its start: what is not the backdoor's."""
    text = lab.info.text
    assert text is not None
    assert text.embedding is not None
    restored = weights.clone()
    table, start = (
        lab.model.split(each[None])[text.embedding][0] for each in (restored, lab.info.initial_weights)
    )
    word = text.id_of(EP().word)
    table[word] = start[word]
    return lab.agreement(restored, *lab.success_sets["asr"])


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
        lab.aggregate(rows, rule, repeat)
        if rows.is_cuda:
            torch.cuda.synchronize()
            peak = max(peak, torch.cuda.max_memory_allocated() - before)
        seconds.append(time.perf_counter() - began)
    return {"seconds": float(np.median(seconds)), "peak_bytes": float(peak)}


def run_cells(options: argparse.Namespace) -> None:
    """Train what is missing, several cells at a time, until the time is up.

    A step of an encoder is hundreds of small kernels, so that several processes use a GPU better than one.
    """
    until = time.time() + 60 * options.minutes
    records = [one for path in (*options.have, options.out) for one in read(path)]
    done = {Cell(**one["cell"]): one for one in records if is_whole(one)}
    cells = [
        cell
        for cell in plan(options.label, options.passes, options.rounds)
        if cell.rule in options.rules and (not options.eps or cell.eps in options.eps)
    ]
    needed = dict.fromkeys(one for cell in cells for one in (cell.base, cell))
    waiting = [cell for cell in needed if cell not in done]
    taken = dict[Cell, float]()  # the seconds of the cells that this run has finished
    setting = (options.encoder, options.task, options.clients, options.device)
    pool = ProcessPoolExecutor(options.workers, get_context("spawn"))
    running = dict[Future[dict[str, Any]], Cell]()
    while waiting or running:
        left = until - time.time()
        ready = [cell for cell in waiting if cell.base in done or not cell.needs_sigma]
        ready = [cell for cell in ready if expected_seconds(cell, taken) < left]
        if ready and len(running) < options.workers and left > 0:
            cell = ready[0]
            waiting.remove(cell)
            sigma = done[cell.base]["sigma"] if cell.base in done else 0.0
            try:
                running[pool.submit(play_named, cell, sigma, until, *setting)] = cell
                continue
            except BrokenProcessPool:  # its other cells have failed too: see below
                waiting.insert(0, cell)
        if not running:
            break
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            cell = running.pop(future)
            try:
                record = future.result()
            except Exception as error:  # one cell that fails must not cost the sitting
                print(f"{cell} failed:", *traceback.format_exception(error), file=sys.stderr, flush=True)
                if isinstance(error, BrokenProcessPool) and not running:  # a process was killed: start anew
                    pool = ProcessPoolExecutor(options.workers, get_context("spawn"))
                continue
            if is_whole(record):
                done[cell], taken[cell] = record, record["seconds"]
            with options.out.open("a") as file:
                file.write(json.dumps(record) + "\n")
    pool.shutdown()
    print(f"{len(waiting)} cells are left; the same command goes on", file=sys.stderr)


def expected_seconds(cell: Cell, taken: dict[Cell, float]) -> float:
    """The longest that a cell of the same attack has taken, which decides most of it, or else any; 0 of none.

    A cell that cannot end in time would be lost: it is not begun.
    """
    alike = [seconds for each, seconds in taken.items() if each.attack == cell.attack]
    return max(alike or taken.values(), default=0.0)


def play_named(
    cell: Cell, sigma: float, until: float, encoder: str, task: str, clients: int, device: str
) -> dict[str, Any]:
    """Train one cell in a process of its own, which keeps the task for the next."""
    name = f"sst2:encoder={encoder}" if task == "sst2" else task
    built = build(name)
    return play(cell, built, name, sigma or built.sigma, clients, device, until)


def is_whole(record: dict[str, Any]) -> bool:
    """Whether a cell had all of its rounds."""
    return bool(len(record["history"]) == record["cell"]["rounds"])


def read(path: Path) -> list[dict[str, Any]]:
    """The cells in a file of lines, or in a record; none if there is no file."""
    if not path.exists():
        return []
    if path.suffix == ".json":
        return list(json.loads(path.read_text())["cells"])
    return [json.loads(line) for line in path.read_text().splitlines()]


def collect(paths: list[Path], out: Path) -> None:
    """One record of all cells that had all of their rounds; of each, the last in the files."""
    runs = (one for path in paths for one in read(path) if is_whole(one))
    cells = {Cell(**one["cell"]): one for one in runs}
    out.write_text(json.dumps({"cells": list(cells.values())}, indent=1) + "\n")
    print(f"{len(cells)} cells in {out}")


def left(paths: list[Path]) -> dict[str, int]:
    """How many cells of each pass these files do not have."""
    done = {Cell(**one["cell"]) for path in paths for one in read(path) if is_whole(one)}
    return {name: len(set(plan("minilm", [name], ROUNDS)) - done) for name in PASSES}


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
    run.add_argument("--rules", nargs="+", choices=list(RULES), default=list(RULES), metavar="RULE")
    run.add_argument("--eps", nargs="+", type=float, help="the cells of these fractions alone")
    run.add_argument("--clients", type=int, default=CLIENTS)
    run.add_argument("--rounds", type=int, default=ROUNDS)
    run.add_argument("--workers", type=int, default=1)
    run.add_argument("--have", nargs="*", type=Path, default=[], help="files of cells that need not be run")
    run.add_argument("--out", type=Path, required=True)
    gather = commands.add_parser("collect")
    gather.add_argument("cells", nargs="+", type=Path)
    gather.add_argument("--out", type=Path, default=RECORD)
    missing = commands.add_parser("left")
    missing.add_argument("--have", nargs="*", type=Path, default=[RECORD])
    options = parser.parse_args()
    if options.command == "pack":
        from randeigen.lab.sst2 import write_copy

        write_copy(options.encoder, options.folder)
    elif options.command == "run":
        run_cells(options)
    elif options.command == "left":
        counts = left(options.have)
        print(*(f"{name}: {count}" for name, count in counts.items() if count), sep="\n")
        print(f"{sum(counts.values())} cells are left")
    else:
        collect(options.cells, options.out)


if __name__ == "__main__":
    main()
