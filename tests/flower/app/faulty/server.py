"""Stock FedAvg or the robust one, as the run configuration says; the result goes into a file.

`faults` are run one after the other, each from the beginning, and the file gets a JSON line for each; without
them the file is one JSON object.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from faulty import faults, task

app = ServerApp()
SHORT = 12.0  # seconds for a client that never answers


def strategy_of(config: dict, evaluate: bool):
    nodes = int(config["nodes"])
    settings = {"min_available_nodes": nodes, "min_train_nodes": nodes, "min_evaluate_nodes": nodes}
    settings["fraction_evaluate"] = 1.0 if evaluate else 0.0
    kind, _, step = str(config["strategy"]).partition("-")
    plain = FedAdam(eta=0.05, **settings) if step == "adam" else FedAvg(**settings)
    if kind == "stock":
        return plain
    from randeigen.flower import robust

    return robust(
        plain,
        eps=float(config["eps"]),
        patience=float(config["patience"]),
        record=config["record"] or None,
        checkpoint=config["checkpoint"] or None,
    )


def run(grid: Grid, config: dict, fault: str, timeout: float) -> dict[str, Any]:
    """All rounds, and what became of the model."""
    strategy = strategy_of(config, bool(config["evaluate"]) or fault in faults.IN_EVALUATION)
    accuracies: dict[str, float] = {}

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        values = {name: array.numpy() for name, array in arrays.items()}
        accuracies[str(number)] = task.accuracy(values)
        time.sleep(float(config["pause"]))
        return MetricRecord({"accuracy": accuracies[str(number)]})

    model = ArrayRecord({name: Array(each) for name, each in task.model().items()})
    orders = {name: ConfigRecord({"fault": fault}) for name in ("train_config", "evaluate_config")}
    result = strategy.start(grid, model, int(config["rounds"]), timeout, evaluate_fn=evaluate, **orders)
    arrays = {name: array.numpy() for name, array in result.arrays.items()}
    return {
        "accuracy": task.accuracy(arrays),
        "steps": str(arrays["steps"]),
        "dtypes": {name: str(each.dtype) for name, each in arrays.items()},
        "accuracies": accuracies,
        "rounds": [verdict.as_json() for verdict in getattr(strategy, "verdicts", [])],
    }


def run_each(grid: Grid, config: dict, out: Path) -> None:
    """One fault after the other: what stops a strategy stops that fault alone."""
    for fault in str(config["faults"]).split(","):
        began, timeout = time.monotonic(), float(config["timeout"])
        try:
            ended = run(grid, config, fault, SHORT if fault in faults.NEVER_ANSWERS else timeout)
            ended["status"] = "completed"
        except Exception as error:
            ended = {"status": f"failed: {type(error).__name__}"}
        line = {"fault": fault, "seconds": round(time.monotonic() - began, 1), **ended}
        with open(out, "a") as file:
            file.write(json.dumps(line) + "\n")


@app.main()
def main(grid: Grid, context: Context) -> None:
    config, out = context.run_config, Path(str(context.run_config["out"]))
    if config["out"]:
        Path(f"{out}.pid").write_text(str(os.getpid()))
    if config["faults"]:
        run_each(grid, config, out)
        return
    result = run(grid, config, str(config["fault"]), float(config["timeout"]))
    if config["out"]:
        out.write_text(json.dumps(result))
