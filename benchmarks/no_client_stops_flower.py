"""One client of five does whatever it can: stock FedAvg and `robust(FedAvg(), eps=0.2)`, fault by fault.

    python -m benchmarks.no_client_stops_flower results/flower-faults.json
    python -m benchmarks.no_client_stops_flower results/flower-processes.json --processes

The first runs every fault in this process, replies going through Flower's own code, in about a minute. The
second runs some of them with real processes on loopback (SuperLink, five SuperNodes, and the apps that they
start), in about a quarter of an hour. Needs flwr, as in .venv-flower. Exits 1 if a run under ours fails, a
round is declined, or the accuracy is more than a point below that of the other four clients alone.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from studies.provenance import made_with

ROOT = Path(__file__).resolve().parents[1]
ROUNDS, WIRE_ROUNDS, POINT = 3, 2, 0.01
NODES = {"min_available_nodes": 5, "min_train_nodes": 5, "min_evaluate_nodes": 5}
OVER_THE_WIRE = (
    *("none", "nan", "flip", "shape", "missing", "garbage", "declares-64-tib", "count-nan", "count-large"),
    *("counter", "other-metrics", "raises", "dies", "wire-garbled", "wire-impostor", "wire-unsent"),
)


def without_it(local: Any, rounds: int) -> float:
    """The accuracy that stock FedAvg reaches on the other four clients, each training as it does here."""
    from flwr.serverapp.strategy import FedAvg

    grid = local.LocalGrid(corrupt=0)
    grid.gone = {local.FIRST_NODE}
    result = FedAvg(min_train_nodes=4).start(grid, local.model(), rounds, 5.0)
    return float(local.accuracy(result.arrays))


def in_process(local: Any, fault: str, ours: bool) -> dict[str, Any]:
    """One run of three rounds with evaluation, and what became of it."""
    from flwr.serverapp.strategy import FedAvg

    from randeigen.flower import robust

    strategy = FedAvg(**NODES)
    strategy = robust(strategy, eps=0.2) if ours else strategy
    began = time.perf_counter()
    try:
        result = strategy.start(local.LocalGrid(fault), local.model(), ROUNDS, 1.0)
    except Exception as error:
        return {"ended": f"failed: {type(error).__name__}", "seconds": time.perf_counter() - began}
    found: dict[str, Any] = {"ended": "completed", "seconds": round(time.perf_counter() - began, 2)}
    found["accuracy"] = round(local.accuracy(result.arrays), 4)
    steps = result.arrays["steps"].numpy()
    found["counter"] = "right" if abs(float(steps) - 2 * ROUNDS) < 0.01 else str(steps)
    found["dtype_of_counter"] = str(steps.dtype)
    if ours:
        found["declined"] = sum(bool(verdict.declined) for verdict in strategy.verdicts)
        found["outcome"] = strategy.verdicts[-1].nodes[local.FIRST_NODE].outcome
    return found


def over_the_wire(federation: Any, fault: str, ours: bool) -> dict[str, Any]:
    """The same by `flwr run`, in two rounds without evaluation."""
    done = federation.run(fault=fault, strategy="robust" if ours else "stock", timeout=60.0, seconds=150)
    found = {"ended": done["status"].removeprefix("finished:"), "seconds": done["seconds"]}
    if "accuracy" in done:
        found |= {"accuracy": round(done["accuracy"], 4)}
        found["counter"] = "right" if abs(float(done["steps"]) - 4) < 0.01 else done["steps"]
    if ours and "rounds" in done:
        found["declined"] = sum(bool(verdict["declined"]) for verdict in done["rounds"])
        outcomes = [each["outcome"] for each in done["rounds"][-1]["nodes"].values()]
        found["outcome"] = min(outcomes, key=lambda outcome: outcome == "kept")
    return found


def harm(found: dict[str, Any], alone: float) -> str:
    """What a fault did to a run, in a word."""
    if found["ended"] != "completed":
        return str(found["ended"])
    if found["accuracy"] < alone - POINT:
        return "model lost" if found["accuracy"] < 0.5 else "model worse"
    return "none" if found["counter"] == "right" else "counter lost"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("out")
    options.add_argument("--processes", action="store_true", help="real processes on loopback")
    chosen = options.parse_args()
    logging.disable(logging.CRITICAL)
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    lines: dict[str, dict[str, Any]] = {}
    local = import_module("flower_grid")
    alone = without_it(local, WIRE_ROUNDS if chosen.processes else ROUNDS)
    if chosen.processes:
        with tempfile.TemporaryDirectory() as folder:
            made = import_module("flower_processes").Federation(Path(folder))
            with made as federation:
                for fault in OVER_THE_WIRE:
                    lines[fault] = {
                        "stock": over_the_wire(federation, fault, False),
                        "ours": over_the_wire(federation, fault, True),
                    }
                    show(fault, lines[fault], alone)
    else:
        vars(import_module("randeigen.flower.grid")).update(LEAST_GRACE=0.2, STUCK_AFTER=0.1)  # seconds
        for fault in (*local.faults.FAULTS, *local.IN_PROTOCOL):
            lines[fault] = {way: in_process(local, fault, way == "ours") for way in ("stock", "ours")}
            show(fault, lines[fault], alone)
    for ways in lines.values():
        for found in ways.values():
            found["harm"] = harm(found, alone)
    bad = [f for f, ways in lines.items() if ways["ours"]["harm"] != "none" or ways["ours"].get("declined")]
    record = {
        "made_with": made_with() | {"flwr": version("flwr")},
        "clients": 5,
        "corrupt": 1,
        "eps": 0.2,
        "accuracy_of_the_others_alone": round(alone, 4),
        "faults": lines,
    }
    Path(chosen.out).write_text(json.dumps(record, indent=1) + "\n")
    stock = [ways["stock"]["harm"] for ways in lines.values()]
    failed = sum(word not in ("none", "model lost", "model worse", "counter lost") for word in stock)
    lost = sum(word in ("model lost", "model worse", "counter lost") for word in stock)
    print(f"{len(lines)} runs: stock fails in {failed}, loses model or counter in {lost}; ours in {len(bad)}")
    return 1 if bad else 0


def show(fault: str, ways: dict[str, Any], alone: float) -> None:
    """One line of the matrix, as it is measured."""
    ours = ways["ours"]
    told = f"{ours.get('outcome', '')}, {ours.get('accuracy', '')}"
    stock, own = harm(ways["stock"], alone), harm(ours, alone)
    print(f"{fault:<18}stock: {stock:<36}ours: {own:<8}{told}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
