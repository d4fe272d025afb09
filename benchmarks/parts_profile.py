"""Where the time of parts goes on a GPU: kernels and the host, for a hybrid and for every row a part.

    python -m benchmarks.parts_profile --out parts-profile.json

The rows are those of `parts_cost`. A line has the time of one call, that of all kernels in it, and both by
name: kernels by what they took on the GPU, operators by what their launches took on the host.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import randeigen
from benchmarks.parts_cost import EMBEDDINGS, MINILM, cloud, least
from randeigen.partition import Partition
from studies.provenance import made_with

MOST_NAMED = 25  # kernels and operators that are listed


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parts_profile")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    shapes = EMBEDDINGS | MINILM
    lines = []
    for name, kind in (("30,522 × 384", "dense"), ("30,522 × 384", "words"), ("6,000 × 64", "words")):
        others = 11_000 if name in MINILM else 36
        leaves, d = [("embedding", shapes[name]), ("dense", (others, 1000))], int(np.prod(shapes[name]))
        d += others * 1000
        rows = cloud(20, d, "cuda", words=shapes[name] if kind == "words" else None, planted=slice(64, 128))
        for cut in ("whole", "hybrid:rows:embedding", "rows:embedding"):
            partition = Partition.of(cut, leaves, d)
            call = partial(randeigen.aggregate, rows, eps=0.2, seed=0, partition=partition)
            lines.append({"rows": name, "kind": kind, "partition": cut} | profiled(call))
            print({key: value for key, value in lines[-1].items() if not isinstance(value, list)}, flush=True)
    if options.out:
        options.out.write_text(json.dumps({"made_with": made_with(), "lines": lines}, indent=1) + "\n")
    return 0


def profiled(call: Any) -> dict[str, Any]:
    """Milliseconds of one call without a profiler, and what the profiler finds in another."""
    import torch

    quickest = least(call, "cuda", 3)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    averages = profile.key_averages()
    kernels = [each for each in averages if each.device_type.name == "CUDA"]
    operators = [each for each in averages if each.device_type.name == "CPU"]
    return {
        "ms": 1e3 * quickest,
        "ms_profiled": 1e3 * seconds,
        "ms_of_kernels": sum(each.self_device_time_total for each in kernels) / 1e3,
        "launches": sum(each.count for each in kernels),
        "kernels": _named(kernels, "self_device_time_total"),
        "operators": _named(operators, "self_cpu_time_total"),
    }


def _named(events: Any, time_of: str) -> list[list[Any]]:
    """Name, how often, milliseconds of all together; those that took longest."""
    ordered = sorted(events, key=lambda each: -getattr(each, time_of))
    return [[each.key[:90], each.count, getattr(each, time_of) / 1e3] for each in ordered[:MOST_NAMED]]


if __name__ == "__main__":
    sys.exit(main())
