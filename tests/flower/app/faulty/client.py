"""A client that answers honestly unless it is one of the corrupt ones."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from faulty import faults, task, wire

app = ClientApp()


def place(message: Message, context: Context) -> tuple[int, int, str]:
    """Which part of the data a client has, of how many, and what it does wrong."""
    part, parts = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    config = {**context.run_config, **message.content.config_records.get("config", {})}
    return part, parts, str(config["fault"]) if part < int(config["corrupt"]) else "none"


@app.train()
def train(message: Message, context: Context) -> Message:
    part, parts, fault = place(message, context)
    arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
    trained = task.train(arrays, part, parts)
    metrics = {"num-examples": len(task.share(part, parts)[0]), "loss": 0.5 + part / 10}
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(np.asarray(each)) for name, each in trained.items()}),
            "metrics": MetricRecord(metrics),
        }
    )
    if fault in faults.FAULTS:
        content = faults.FAULTS[fault](content)
    reply = Message(content, reply_to=message)
    return wire.WIRE[fault](reply) if fault in wire.WIRE else reply


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    part, parts, fault = place(message, context)
    arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
    metrics = {"num-examples": len(task.share(part, parts)[0]), "accuracy": task.accuracy(arrays)}
    if fault == "evaluate-names":
        metrics = {"num-examples": 10, "x" * 300: 1.0}
    if fault == "evaluate-nan":
        metrics["accuracy"] = float("nan")
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
