"""Stock FedAvg or the robust one, as the run configuration says; the result goes into a file."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from faulty import task

app = ServerApp()


def strategy_of(config: dict):
    nodes, evaluate = int(config["nodes"]), 1.0 if config["evaluate"] else 0.0
    settings = {"min_available_nodes": nodes, "min_train_nodes": nodes, "fraction_evaluate": evaluate}
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


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy, accuracies = strategy_of(config), {}
    if config["out"]:
        Path(f"{config['out']}.pid").write_text(str(os.getpid()))

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        found = {name: array.numpy() for name, array in arrays.items()}
        accuracies[number] = task.accuracy(found)
        time.sleep(float(config["pause"]))
        return MetricRecord({"accuracy": accuracies[number]})

    model = ArrayRecord({name: Array(each) for name, each in task.model().items()})
    result = strategy.start(
        grid, model, int(config["rounds"]), float(config["timeout"]), evaluate_fn=evaluate
    )
    if config["out"]:
        arrays = {name: array.numpy() for name, array in result.arrays.items()}
        Path(str(config["out"])).write_text(
            json.dumps(
                {
                    "accuracy": task.accuracy(arrays),
                    "steps": str(arrays["steps"]),
                    "dtypes": {name: str(each.dtype) for name, each in arrays.items()},
                    "accuracies": {str(number): each for number, each in accuracies.items()},
                    "rounds": [verdict.as_json() for verdict in getattr(strategy, "verdicts", [])],
                }
            )
        )
