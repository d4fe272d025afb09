"""What robustness costs for any n, d, dtype and form, beside a plain mean of the same form in the same run.

    python -m benchmarks.cost_surface [--device cuda] [--quick] [--only matrix --only n=1000 …]
    python -m benchmarks.cost_surface --redraw        pictures and table of docs/costs.md from the records

Writes results/surface-cpu.json or results/surface-h200.json. Exits 1 where a cell misses its limit. Run it
with nothing else on the same cores. Cells that have a limit come first, and of these the float32 matrices;
after --minutes no other is begun, and a run that is interrupted has its record too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.surface_limits import Cell, cells, limit_ms
from randeigen import RandEigen, rules, timing
from randeigen.rows.write import replacing
from studies.provenance import made_with

ROOT = Path(__file__).resolve().parents[1]
RECORDS = {"cpu": ROOT / "results/surface-cpu.json", "cuda": ROOT / "results/surface-h200.json"}
REPEATS, QUICK_REPEATS = 9, 3
MAX_SECONDS = {"cpu": 4.0, "cuda": 0.3}  # of calls timed in one cell
EPS = 0.1
RULES = {
    "randeigen": RandEigen(EPS),
    "published": RandEigen.as_published(EPS),
    "median": rules.Median(EPS),
    "trimmed-mean": rules.TrimmedMean(EPS),
    "bulyan": rules.Bulyan(EPS),
    # Of these rows no chunk's variance is below the threshold: the filters go through all their rounds.
    "chunked-filtering": rules.ChunkedFiltering(EPS, sigma=1.0),
    "chunked-no-regret": rules.ChunkedNoRegret(EPS, sigma=1.0),
}


@dataclass(frozen=True)
class Measured:
    """One cell of the surface."""

    cell: Cell
    timing: timing.Timing

    def limit(self) -> float | None:
        return limit_ms(self.cell, self.timing.mean_ms, self.timing.device)

    def misses(self) -> bool:
        """By the median, and by the best call too: one slow repeat on a busy machine is no miss."""
        limit, best = self.limit(), limit_ms(self.cell, self.timing.mean_best_ms, self.timing.device)
        return (
            limit is not None
            and best is not None
            and self.timing.median_ms > limit
            and self.timing.best_ms > best
        )

    def record(self) -> dict[str, Any]:
        limit = self.limit()
        return {**asdict(self.cell), **asdict(self.timing), "limit_ms": limit, "misses": self.misses()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=sorted(RECORDS), default="cpu")
    parser.add_argument("--quick", action="store_true", help="only cells that have a limit, fewer repeats")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD",
        help="cells with this word: n=100, d=2^18, bfloat16, vectors, median, gram …; repeat it to narrow",
    )
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--minutes", type=float, default=math.inf, help="after these no cell is begun")
    parser.add_argument(
        "--out", type=Path, help="another record; with --only or --quick none is written without it"
    )
    parser.add_argument(
        "--redraw", action="store_true", help="draw the records that are there; measures nothing"
    )
    options = parser.parse_args(arguments)
    if options.redraw:
        from benchmarks.surface_picture import redraw

        return redraw(ROOT, RECORDS)
    if not options.minutes > 0:
        parser.error(f"--minutes {options.minutes:g}: give a positive number")
    chosen = [cell for cell in cells(options.device) if cell.has(options.only)]
    chosen.sort(
        key=lambda cell: (not cell.is_limited(options.device), cell.form != "matrix", cell.dtype != "float32")
    )
    if options.quick:
        chosen = [cell for cell in chosen if cell.is_limited(options.device)]
    if not chosen:
        parser.error(
            f"no cell has {' and '.join(options.only)}; a cell reads like {cells(options.device)[0].words()}"
        )
    repeats = options.repeats or (QUICK_REPEATS if options.quick else REPEATS)
    out = options.out or (None if options.only or options.quick else RECORDS[options.device])
    measured: list[Measured] = []
    made: dict[str, str] = {}
    for one in measure(chosen, options.device, repeats, options.minutes):
        measured.append(one)
        if out:  # after every cell: a run that is ended early has its record
            made = made or made_with()
            write(out, measured, len(chosen), made)
    missed = [one for one in measured if one.misses()]
    for one in missed:
        print(
            f"misses: {one.cell.words()}: {one.timing.median_ms:.2f} ms (best {one.timing.best_ms:.2f}), "
            f"limit {one.limit():.2f} ms"
        )
    limited = sum(one.limit() is not None for one in measured)
    print(f"{len(measured)} of {len(chosen)} cells, {limited} with a limit, {len(missed)} missed")
    if not measured:
        print(f"nothing was measured in --minutes {options.minutes:g}; give more")
    return 1 if missed or not measured else 0


def write(out: Path, measured: Sequence[Measured], cells: int, made: Mapping[str, str]) -> None:
    """The record of so many cells, whole or not at all."""
    record = {
        "cells": [one.record() for one in measured],
        "left_out": cells - len(measured),
        "eps": EPS,
        "cores": len(os.sched_getaffinity(0)),
        "made_with": made,
    }
    with replacing(out) as file:
        file.write((json.dumps(record, indent=1) + "\n").encode())


def measure(
    chosen: Sequence[Cell], device: str, repeats: int, minutes: float = math.inf
) -> Iterator[Measured]:
    """Every cell in turn, while there is time; a line is printed as soon as a cell is done."""
    began = time.perf_counter()
    for number, cell in enumerate(chosen, 1):
        if time.perf_counter() - began > 60 * minutes:
            break
        found = timing.time_rules(
            {cell.rule: RULES[cell.rule]},
            cell.n,
            cell.d,
            dtype=cell.dtype,
            device=device,
            form=cell.form,
            geometry=cell.geometry,
            repeats=repeats,
            max_seconds=MAX_SECONDS[device],
        )[0]
        one = Measured(cell, found)
        limit = one.limit()
        print(
            f"{number:>3}/{len(chosen)} {time.perf_counter() - began:5.0f} s  {cell.words():<62}"
            f"{found.median_ms:10.2f} ms (best {found.best_ms:.2f})  mean {found.mean_ms:8.2f} ms  "
            f"{found.means:7.2f} means (best {found.best_means:.2f})"
            + ("" if limit is None else f"  limit {limit:.2f} ms" + ("  MISSES" if one.misses() else "")),
            flush=True,
        )
        yield one


if __name__ == "__main__":
    sys.exit(main())
