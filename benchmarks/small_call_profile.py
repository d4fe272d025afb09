"""Where the time of one small call goes: functions by their own time, launches and waits on a GPU.

    python -m benchmarks.small_call_profile [--device cuda] [--out profile.json]

Each cell: the median call beside a plain mean, the same under cProfile (which slows Python down; only the
shares count), the events that torch's profiler counts, and how the host's microseconds are split in stages.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import randeigen
from randeigen import pipeline
from randeigen.timed_rows import Dtype, Form, timed_rows

CELLS: tuple[tuple[Form, Dtype, int, int], ...] = (
    ("matrix", "float32", 10, 2**18),
    ("matrix", "float32", 30, 2**18),
    ("matrix", "float32", 64, 2**14),
    ("matrix", "float32", 100, 2**14),
    ("matrix", "float32", 100, 2**18),
    ("vectors", "float32", 50, 2**18),
    ("state_dicts", "float32", 10, 2**18),
)
REPEATS, WARM_UP, SHOWN = 50, 5, 40
WAITS = ("Synchronize", "cudaMemcpy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    began, report = time.perf_counter(), {}
    for form, dtype, n, d in CELLS:
        name = f"{form} {dtype} n={n} d={d}"
        with timed_rows(n, d, dtype, given.device, 0, form) as rows:
            report[name] = cell(name, rows.rows, rows.mean, rows.wait)
        if time.perf_counter() - began > 22:
            break
    report["host"] = host()
    if given.out:
        given.out.write_text(json.dumps(report, indent=1))


def cell(name: str, rows: Any, mean: Callable[[], Any], wait: Callable[[], None]) -> dict[str, Any]:
    """Time, stages, functions and events of one call, printed."""

    def call() -> None:
        randeigen.aggregate(rows, eps=0.1)

    for _ in range(WARM_UP):
        call()
        mean()
    means, calls = timed(mean, wait), timed(call, wait)
    found: dict[str, Any] = {"mean_us": median(means), "call_us": median(calls), "best_us": min(calls)}
    found["stages_us"] = stages(rows, wait)
    found["rounds"] = randeigen.aggregate(rows, eps=0.1, seed=1).verdict.rounds
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(REPEATS):
        call()
    profile.disable()
    lines = sorted(pstats.Stats(profile).stats.items(), key=lambda item: -item[1][2])  # type: ignore[attr-defined]
    found["functions"] = [
        [f"{Path(file).name}:{line}({function})", count / REPEATS, round(1e6 * own / REPEATS, 1)]
        for (file, line, function), (_, count, own, _, _) in lines[:SHOWN]
    ]
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as events:
        for _ in range(10):
            call()
        wait()
    counts: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for event in events.events():
        counts[event.name] += 1
        spent[event.name] += max(event.self_device_time_total, event.self_cpu_time_total)
    found["events"] = {key: [counts[key] / 10, round(us / 10, 1)] for key, us in spent.most_common(SHOWN)}
    found["launches"] = sum(c for key, c in counts.items() if "LaunchKernel" in key) / 10
    found["waits"] = sum(c for key, c in counts.items() if any(word in key for word in WAITS)) / 10
    print(f"\n== {name}")
    print({key: value for key, value in found.items() if key not in ("functions", "events")})
    for function, count, own in found["functions"]:
        print(f"{own:9.1f} us {count:7.1f} {function}")
    for key, (count, own) in found["events"].items():
        print(f"{own:9.1f} us {count:7.1f} {key[:90]}")
    return found


def timed(call: Callable[[], Any], wait: Callable[[], None]) -> list[float]:
    """Microseconds of each call."""
    times = []
    for _ in range(REPEATS):
        wait()
        start = time.perf_counter_ns()
        call()
        wait()
        times.append((time.perf_counter_ns() - start) / 1e3)
    return times


def stages(rows: Any, wait: Callable[[], None]) -> dict[str, float]:
    """Median microseconds until rows are wrapped, measured, judged and combined."""
    seen: dict[str, list[float]] = {}
    measure, judge, combine = pipeline.StreamedRows.measure, pipeline.judge, pipeline.StreamedRows.combine

    def clocked(name: str, function: Any) -> Any:
        def inner(*args: Any, **options: Any) -> Any:
            start = time.perf_counter_ns()
            try:
                return function(*args, **options)
            finally:
                seen.setdefault(name, []).append((time.perf_counter_ns() - start) / 1e3)

        return inner

    pipeline.StreamedRows.measure = clocked("measure", measure)  # type: ignore[method-assign]
    pipeline.StreamedRows.combine = clocked("combine", combine)  # type: ignore[method-assign]
    pipeline.judge = clocked("judge", judge)
    wrap = clocked("as_rows", randeigen.rows.as_rows)
    try:
        for _ in range(REPEATS):
            wait()
            wrap(rows)
            clocked("all", randeigen.aggregate)(rows, eps=0.1)
    finally:
        pipeline.StreamedRows.measure, pipeline.StreamedRows.combine = measure, combine  # type: ignore[method-assign]
        pipeline.judge = judge
    return {name: median(times) for name, times in seen.items()}


def host() -> dict[str, Any]:
    """What small numpy calls cost here: the unit of everything above."""
    found: dict[str, Any] = {"threads": os.environ.get("OMP_NUM_THREADS", "")}
    ones = np.ones(10)
    calls: dict[str, Callable[[], Any]] = {
        "sum of 10": lambda: ones.sum(),
        "sort of 10": lambda: np.sort(ones),
        "sqrt": lambda: np.sqrt(ones),
    }
    for name, call in calls.items():
        found[name] = round(median(timed(call, lambda: None)), 2)
    for n in (10, 16, 30, 40, 64, 100):
        a = np.cov(np.random.default_rng(0).standard_normal((n, 300)))
        found[f"eigh {n}"] = round(median(timed(lambda a=a: np.linalg.eigh(a), lambda: None)), 1)  # type: ignore[misc]
        found[f"eigvalsh {n}"] = round(median(timed(lambda a=a: np.linalg.eigvalsh(a), lambda: None)), 1)  # type: ignore[misc]
    print(found)
    return found


def median(values: list[float]) -> float:
    return round(float(np.median(values)), 1)


if __name__ == "__main__":
    main()
