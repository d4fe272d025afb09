"""The cost of a rule, measured beside a plain mean of the same rows in the same run."""

from __future__ import annotations

import platform
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

import randeigen
from randeigen.errors import BadParameter, MissingExtra
from randeigen.provenance import versions as core_versions
from randeigen.rules import Rule

MAX_TIMED_SECONDS = 4.0  # after this long no further call of a rule is begun
Dtype: TypeAlias = Literal["float16", "bfloat16", "float32", "float64"]


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


def time_rules(
    rules: Mapping[str, Rule],
    n: int,
    d: int,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    repeats: int = 7,
    seed: int = 0,
    report: Callable[[str], None] = lambda stage: None,
) -> list[Timing]:
    """Time each rule on the same Gaussian rows, after the plain mean of numpy or torch.

    `report` is called with what is being done.
    """
    report(f"drawing {n} × {d:,} numbers")
    rows, plain, run = _rows(n, d, dtype, device, seed)
    small = rows[:, : min(d, 512)]
    run(lambda: randeigen.aggregate(small, eps=0.1))  # thread pools and kernels are made once
    mean = _times(lambda: run(plain), repeats)
    timings = []
    for name, rule in rules.items():
        report(f"timing {name}")
        call = _bind(run, rows, rule)
        with Peak(device) as peak:
            call()
        times = _times(call, repeats)
        answer = d * rows.itemsize if isinstance(rows, np.ndarray) else d * rows.element_size()
        median, best = float(np.median(times)), min(times)
        timings.append(
            Timing(
                *(name, n, d, dtype, device, median, best, len(times)),
                means=median / float(np.median(mean)),
                best_means=best / min(mean),
                extra_mb=max(0.0, (peak.bytes - answer) / 1e6),
                mean_ms=float(np.median(mean)),
                mean_best_ms=min(mean),
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
    used = {**core_versions(), "processor": _processor()}
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


def anonymous_bytes() -> int:
    """Memory of this process that no file backs; mapped pages of a file cost nothing. 0 where unknown."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)


def _rows(n: int, d: int, dtype: str, device: str, seed: int) -> tuple[Any, Callable[[], Any], Any]:
    """The rows, their plain mean, and a function that runs a call until its result is there."""
    if n < 1 or d < 1:
        raise BadParameter(f"n={n}, d={d}; give at least one row and one column.")
    if dtype not in get_args(Dtype):
        raise BadParameter(f"dtype={dtype!r} is not known; choose one of {', '.join(get_args(Dtype))}.")
    if device == "cpu" and dtype != "bfloat16":
        rng = np.random.default_rng(seed)
        rows = np.empty((n, d), dtype=dtype)
        for row in rows:
            row[:] = rng.standard_normal(d, dtype=np.float64 if dtype == "float64" else np.float32)
        return rows, lambda: rows.mean(axis=0), lambda call: call()
    torch = _torch(device)
    tensor = torch.empty((n, d), dtype=getattr(torch, dtype), device=device)
    tensor.normal_(generator=torch.Generator(device).manual_seed(seed))

    def run(call: Callable[[], Any]) -> Any:
        result = call()
        if device != "cpu":
            torch.cuda.synchronize()
        return result

    return tensor, lambda: tensor.mean(0), run


def _torch(device: str) -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtra(f"device {device!r} needs torch; install randeigen[torch].") from None
    if device != "cpu" and not torch.cuda.is_available():
        raise BadParameter(f"device={device!r}, but torch sees no CUDA device here; use cpu.")
    return torch


def _bind(run: Any, rows: Any, rule: Rule) -> Callable[[], Any]:
    return lambda: run(lambda: randeigen.aggregate(rows, rule=rule))


def _times(call: Callable[[], Any], repeats: int) -> list[float]:
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < repeats and (not times or time.perf_counter() - began < MAX_TIMED_SECONDS):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
