"""What robustness costs in a Flower server: the aggregation step of stock FedAvg beside ours, in one run.

    python -m benchmarks.robust_flower_costs_little_more results/flower-overhead.json

20 clients, 10 million parameters each. Times are medians over rounds of `aggregate_train`. Each strategy is
in a process of its own, whose peak memory is that of the replies and of what aggregating them takes.
Needs flwr, as in .venv-flower, and a quiet machine; about a minute. Exits 1 if ours takes more than 1.5 times
the time, or 1.3 times the memory.
"""

from __future__ import annotations

import json
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

CLIENTS, PARAMETERS, ROUNDS = 20, 10_000_000, 7
LAYERS = 10
MOST_TIME, MOST_MEMORY = 1.5, 1.3


class Nodes:
    """A Grid that only has nodes."""

    def get_node_ids(self) -> list[int]:
        return list(range(1, CLIENTS + 1))


def measure(way: str) -> dict[str, Any]:
    """Seconds of aggregate_train, round by round, and the peak of this process."""
    import logging

    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedAvg

    from randeigen.flower import robust

    try:
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    except ImportError:
        pass
    logging.disable(logging.CRITICAL)
    shape = (PARAMETERS // LAYERS,)
    settings = {"min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS, "fraction_evaluate": 0.0}
    strategy = FedAvg(**settings) if way == "stock" else robust(FedAvg(**settings), eps=0.2)
    model = ArrayRecord({f"layer{k}": Array(np.zeros(shape, np.float32)) for k in range(LAYERS)})
    sent = list(strategy.configure_train(1, model, ConfigRecord(), Nodes()))
    replies, rng = [], np.random.default_rng(0)
    for message in sent:
        arrays = {f"layer{k}": Array(rng.standard_normal(shape, np.float32)) for k in range(LAYERS)}
        content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 100, "loss": 1.0})}
        replies.append(Message(RecordDict(content), reply_to=message))
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for number in range(1, ROUNDS + 1):
        began = time.perf_counter()
        arrays, _ = strategy.aggregate_train(number, list(replies))
        seconds.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "held_mib": held / 1024, "peak_mib": peak / 1024}


def main() -> int:
    if len(sys.argv) > 2:
        print(json.dumps(measure(sys.argv[2])))
        return 0
    found: dict[str, Any] = {"stock": [], "ours": []}
    for way in ("stock", "ours", "stock", "ours"):
        words = [sys.executable, "-W", "ignore", "-m", "benchmarks.robust_flower_costs_little_more", "-", way]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        found[way].append(json.loads(done.stdout))
    seconds = {way: [each for run in runs for each in run["seconds"]] for way, runs in found.items()}
    medians = {way: statistics.median(each) for way, each in seconds.items()}
    peaks = {way: max(run["peak_mib"] for run in runs) for way, runs in found.items()}
    time_ratio, memory_ratio = medians["ours"] / medians["stock"], peaks["ours"] / peaks["stock"]
    record = {
        "made_with": made_with() | {"flwr": version("flwr")},
        "clients": CLIENTS,
        "parameters": PARAMETERS,
        "seconds": medians,
        "peak_mib": peaks,
        "time_ratio": time_ratio,
        "memory_ratio": memory_ratio,
        "runs": found,
    }
    Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n")
    print(f"stock {medians['stock']:.2f} s, {peaks['stock']:.0f} MiB")
    print(f"ours {medians['ours']:.2f} s, {peaks['ours']:.0f} MiB: {time_ratio:.2f}×, {memory_ratio:.2f}×")
    return 1 if time_ratio > MOST_TIME or memory_ratio > MOST_MEMORY else 0


if __name__ == "__main__":
    sys.exit(main())
