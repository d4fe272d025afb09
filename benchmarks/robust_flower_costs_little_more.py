"""What robustness costs in a Flower server: the aggregation step of stock FedAvg beside ours, in one run.

    python -m benchmarks.robust_flower_costs_little_more results/flower-overhead.json

20 clients, 10 million parameters each: replies in hand, `aggregate_train` makes the new arrays. Both
strategies take turns in one process on the same replies, first on replies about the origin, then on models
near one another, which are measured from a pivot, then on one core. Peak memory is that of a process for each
strategy, replies included. Needs flwr, as in .venv-flower, two cores and a quiet machine, or `--urgent`, as
root on a machine in use; about two minutes. Exits 1 if the median of ours is over 1.5 times that of stock
FedAvg on replies about the origin, or its memory over 1.3 times.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from studies.provenance import made_with

CLIENTS, PARAMETERS, LAYERS = 20, 10_000_000, 10
ROUNDS, PROCESSES = 9, 3
MAX_TIME, MAX_MEMORY = 1.5, 1.3
ON_ONE_CORE = "about the origin, on one core"
# Distance of the origin in spreads.
KINDS = {"about the origin": 0.0, "models near one another": 10.0, ON_ONE_CORE: 0.0}
WAYS = ("stock", "ours")
NAME = "benchmarks.robust_flower_costs_little_more"


class Nodes:
    """A Grid that only has nodes."""

    def get_node_ids(self) -> list[int]:
        return list(range(1, CLIENTS + 1))


def strategies(ways: list[str], kind: str) -> dict[str, tuple[Any, list[Any]]]:
    """Strategies, each with the replies to its messages; their arrays are the same."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedAvg

    from randeigen.flower import robust

    try:
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    except ImportError:
        pass
    rng, shape = np.random.default_rng(0), (PARAMETERS // LAYERS,)
    centre = [KINDS[kind] * rng.standard_normal(shape, np.float32) for _ in range(LAYERS)]
    model = ArrayRecord({f"layer{k}": Array(layer) for k, layer in enumerate(centre)})
    records = [
        ArrayRecord(
            {f"layer{k}": Array(centre[k] + rng.standard_normal(shape, np.float32)) for k in range(LAYERS)}
        )
        for _ in range(CLIENTS)
    ]
    settings = {"min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS, "fraction_evaluate": 0.0}
    by_way = {}
    for way in ways:
        strategy = FedAvg(**settings) if way == "stock" else robust(FedAvg(**settings), eps=0.2)
        messages = list(strategy.configure_train(1, model, ConfigRecord(), Nodes()))
        metrics = MetricRecord({"num-examples": 100, "loss": 1.0})
        contents = [RecordDict({"arrays": record, "metrics": metrics}) for record in records]
        replies = [Message(each, reply_to=to) for each, to in zip(contents, messages, strict=True)]
        by_way[way] = strategy, replies
    return by_way


def measure(ways: list[str], kind: str) -> dict[str, Any]:
    """Seconds of aggregate_train, round by round, the strategies by turns; and the peak of this process."""
    logging.disable(logging.CRITICAL)
    by_way = strategies(ways, kind)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(1, ROUNDS + 1):
        for way, (strategy, replies) in by_way.items():
            began = time.perf_counter()
            strategy.aggregate_train(number, list(replies))
            seconds[way].append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "seconds": {way: each[1:] for way, each in seconds.items()},
        "peak_mib": peak,
    }  # the first warms up


def in_process(ways: list[str], kind: str, urgent: bool) -> dict[str, Any]:
    words = [sys.executable, "-W", "ignore", "-m", NAME, "-", "--measure", ",".join(ways), "--kind", kind]
    if urgent:
        words.append("--urgent")
    environment = os.environ | ({"OMP_NUM_THREADS": "1"} if kind == ON_ONE_CORE else {})
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    return dict(json.loads(done.stdout))


def compared(kind: str, urgent: bool) -> dict[str, Any]:
    """Medians and bests over several processes, and the ratio of ours to stock."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(PROCESSES):
        for way, each in in_process(list(WAYS), kind, urgent)["seconds"].items():
            seconds[way] += each
    medians = {way: statistics.median(each) for way, each in seconds.items()}
    best = {way: min(each) for way, each in seconds.items()}
    return {
        "seconds": medians,
        "best_seconds": best,
        "time_ratio": medians["ours"] / medians["stock"],
        "best_time_ratio": best["ours"] / best["stock"],
        "all_seconds": seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out")
    parser.add_argument("--urgent", action="store_true", help="Linux, as root: before whatever else runs")
    parser.add_argument("--measure", help="strategies that this process measures; for the script itself")
    parser.add_argument("--kind", choices=list(KINDS), default=next(iter(KINDS)))
    options = parser.parse_args()
    if options.measure:
        if options.urgent:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        print(json.dumps(measure(options.measure.split(","), options.kind)))
        return 0
    times = {kind: compared(kind, options.urgent) for kind in KINDS}
    peaks = {way: in_process([way], next(iter(KINDS)), options.urgent)["peak_mib"] for way in WAYS}
    memory_ratio = peaks["ours"] / peaks["stock"]
    record = {
        "made_with": made_with() | {"flwr": version("flwr")},
        "clients": CLIENTS,
        "parameters": PARAMETERS,
        "peak_mib": peaks,
        "memory_ratio": memory_ratio,
        "replies": times,
    }
    Path(options.out).write_text(json.dumps(record, indent=1) + "\n")
    for kind, each in times.items():
        medians, best = each["seconds"], each["best_seconds"]
        print(
            f"{kind}: stock {medians['stock']:.3f} s (best {best['stock']:.3f}), ours {medians['ours']:.3f} s"
        )
        print(f"  (best {best['ours']:.3f}): {each['time_ratio']:.2f}×, best {each['best_time_ratio']:.2f}×")
    print(f"peak memory: {peaks['stock']:.0f} MiB, ours {peaks['ours']:.0f} MiB: {memory_ratio:.2f}×")
    ratio = times[next(iter(KINDS))]["time_ratio"]
    return 1 if ratio > MAX_TIME or memory_ratio > MAX_MEMORY else 0


if __name__ == "__main__":
    sys.exit(main())
