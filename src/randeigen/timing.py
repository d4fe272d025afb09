"""The cost of a rule, measured beside a plain mean of the same rows in the same run."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import randeigen
from randeigen.backend import native
from randeigen.provenance import processor
from randeigen.provenance import versions as core_versions
from randeigen.rules import Rule
from randeigen.timed_rows import Dtype, Form, TimedRows, timed_rows
from randeigen.types import GeometryKind

MAX_TIMED_SECONDS = 4.0  # after this long no further call of a rule is begun


@dataclass(frozen=True)
class Timing:
    """One rule on one shape. Times in milliseconds; `means` is the ratio of medians to the plain mean's."""

    rule: str
    n: int
    d: int
    dtype: str
    device: str
    median_ms: float
    best_ms: float
    repeats: int
    means: float
    best_means: float
    extra_mb: float  # peak private memory beyond the rows and the answer
    mean_ms: float  # the plain mean it is compared with
    mean_best_ms: float
    form: Form = "matrix"


def time_rules(
    rules: Mapping[str, Rule],
    n: int,
    d: int,
    *,
    dtype: Dtype = "float32",
    device: str = "cpu",
    form: Form = "matrix",
    geometry: GeometryKind = "auto",
    repeats: int = 7,
    max_seconds: float = MAX_TIMED_SECONDS,
    seed: int = 0,
    report: Callable[[str], None] = lambda stage: None,
) -> list[Timing]:
    """Time each rule on the same Gaussian rows, each call after one of the plain mean in the same form.

    What slows a machine down for a while then slows both. No call is begun `max_seconds` after the first;
    where the call that is made for its memory alone takes longer, it is the one timed. `report` is called
    with what is being done.
    """
    report(f"drawing {n} × {d:,} numbers")
    with timed_rows(n, d, dtype, device, seed, form) as given:
        with timed_rows(min(n, 10), min(d, 512), dtype, device, seed, form) as small:
            randeigen.aggregate(small.rows, eps=0.1)  # thread pools and kernels are made once
        timings = []
        for name, rule in rules.items():
            report(f"timing {name}")
            times, means, taken = _times(given, rule, geometry, device, repeats, max_seconds)
            median, mean = float(np.median(times)), float(np.median(means))
            timings.append(
                Timing(
                    *(name, n, d, dtype, device, median, min(times), len(times)),
                    means=median / mean,
                    best_means=min(times) / min(means),
                    extra_mb=max(0.0, (taken - given.answer_bytes) / 1e6),
                    mean_ms=mean,
                    mean_best_ms=min(means),
                    form=form,
                )
            )
    return timings


def slope(timings: Sequence[Timing]) -> float:
    """The exponent with which the time grows with d, fitted to logarithms: 1 is linear."""
    d, t = np.log([x.d for x in timings]), np.log([x.best_ms for x in timings])
    return float(np.polyfit(d, t, 1)[0])


def record(timings: Sequence[Timing], **more: Any) -> dict[str, Any]:
    """The content of a results file: the timings, and all that is needed to run them again."""
    return {"timings": [asdict(timing) for timing in timings], **more, "made_with": versions()}


def versions() -> dict[str, str]:
    """Versions and machine, for records."""
    torch = sys.modules.get("torch")
    used = {**core_versions(), "processor": processor(), "loops": native.processor()}
    if torch is not None:
        used["threads"] = str(torch.get_num_threads())
        if torch.cuda.is_available():
            used["gpu"] = torch.cuda.get_device_name()
    return used


class Peak:
    """Peak private memory while a call runs: anonymous pages here, allocated bytes on a GPU."""

    def __init__(self, device: str = "cpu") -> None:
        self.bytes = 0
        self._torch = sys.modules["torch"] if device != "cpu" else None
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        if self._torch is not None:
            self._torch.cuda.reset_peak_memory_stats()
            self._before = self._torch.cuda.memory_allocated()
        else:
            self._before = anonymous_bytes()
            self._watcher.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._torch is not None:
            self.bytes = self._torch.cuda.max_memory_allocated() - self._before
        else:
            self._done.set()
            self._watcher.join()

    def _watch(self) -> None:
        while not self._done.wait(0.0005):
            self.bytes = max(self.bytes, anonymous_bytes() - self._before)


def anonymous_bytes(process: int | str = "self") -> int:
    """Memory of a process that no file backs; mapped pages of a file cost nothing. 0 where unknown."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)


def _times(
    given: TimedRows, rule: Rule, geometry: GeometryKind, device: str, repeats: int, max_seconds: float
) -> tuple[list[float], list[float], int]:
    """Milliseconds of each call and of each plain mean beside it, and the bytes that a call takes."""

    def call() -> None:
        randeigen.aggregate(given.rows, rule=rule, geometry=geometry)

    given.mean()
    if device != "cpu":
        call()  # kernels are compiled once
    with Peak(device) as peak:
        first = _timed(call, given.wait)
    if first > 1e3 * max_seconds:
        return [first], [_timed(given.mean, given.wait)], peak.bytes
    times: list[float] = []
    means: list[float] = []
    began = time.perf_counter()
    while len(times) < repeats and (not times or time.perf_counter() - began < max_seconds):
        means.append(_timed(given.mean, given.wait))
        times.append(_timed(call, given.wait))
    return times, means, peak.bytes


def _timed(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Milliseconds until the result is there."""
    wait()
    start = time.perf_counter()
    call()
    wait()
    return 1e3 * (time.perf_counter() - start)
