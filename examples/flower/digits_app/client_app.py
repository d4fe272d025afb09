"""Clients: all but two train honestly."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.task import load_data, make_model, test, train

app = ClientApp()


@app.train()
def train_model(message: Message, context: Context) -> Message:
    part, parts = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    received = message.content["arrays"].to_torch_state_dict()
    model = make_model()
    model.load_state_dict(received)
    data, _ = load_data(part, parts)
    loss = train(model, data)
    learned = model.state_dict()
    if part == 0 and context.run_config["malicious"]:
        for name, old in received.items():
            if old.is_floating_point():
                learned[name] = old - 10 * (learned[name] - old)
    if part == 1 and context.run_config["broken"]:
        learned["0.weight"] = torch.zeros(16, 64)
    content = {
        "arrays": ArrayRecord(learned),
        "metrics": MetricRecord({"num-examples": len(data[0]), "train-loss": loss}),
    }
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate_model(message: Message, context: Context) -> Message:
    part, parts = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data, _ = load_data(part, parts)
    metrics = MetricRecord({"num-examples": len(data[0]), "accuracy": test(model, data)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
