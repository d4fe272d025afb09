"""A federation in this process: a Grid that calls the ClientApp; replies go through Flower's own code."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

sys.path.append(str(Path(__file__).parents[1] / "flower" / "app"))

from faulty import faults, task
from faulty.client import app as client_app

try:  # a Message outside of a run needs these since Flower 1.36
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
except ImportError:
    pass

faults.LARGE = 2**20
FIRST_NODE = 2**63 + 11  # node ids are unsigned numbers of 64 bits
IN_PROTOCOL = ("garbled", "unsent", "impostor")  # below the ClientApp, by a SuperNode of its own


class LocalGrid:
    """n nodes; the first `corrupt` of them do `fault`."""

    def __init__(self, fault: str = "none", nodes: int = 5, corrupt: int = 1, stuck: float = 1.0) -> None:
        self.nodes = [FIRST_NODE + node for node in range(nodes)]
        self.gone: set[int] = set()
        self.fault, self.corrupt, self.stuck = fault, corrupt, stuck
        self.sent: list[Message] = []
        self._replies: dict[str, Message | None] = {}
        self._count = 0

    def get_node_ids(self) -> list[int]:
        return [node for node in self.nodes if node not in self.gone]

    def push_messages(self, messages: list[Message]) -> list[str]:
        ids = []
        for message in messages:
            self._count += 1
            message.metadata.__dict__["_message_id"] = f"m{self._count}"
            self.sent.append(message)
            self._replies[f"m{self._count}"] = self.reply_to(message)
            ids.append(f"m{self._count}")
        return ids

    def reply_to(self, message: Message) -> Message | None:
        part = message.metadata.dst_node_id - FIRST_NODE
        corrupt = part < self.corrupt
        if corrupt and self.fault in ("dies", "hangs"):
            return None
        config = {"fault": self.fault, "corrupt": self.corrupt}
        place = {"partition-id": part, "num-partitions": len(self.nodes)}
        context = Context(1, message.metadata.dst_node_id, place, RecordDict(), config)
        try:
            reply = travelled(client_app(message, context))
        except Exception as error:
            return Message(Error(2, str(error)), reply_to=message)
        if corrupt and self.fault == "impostor":
            reply.metadata.__dict__["_src_node_id"] = FIRST_NODE + len(self.nodes) - 1
        return reply

    def pull_messages(self, ids: Any) -> list[Message]:
        found = []
        for message_id in list(ids):
            if (reply := self._replies.get(message_id)) is None:
                continue
            sender = self.sent[int(message_id[1:]) - 1].metadata.dst_node_id - FIRST_NODE
            if sender < self.corrupt and self.fault == "garbled":
                json.loads("{")
            if sender < self.corrupt and self.fault == "unsent":
                time.sleep(self.stuck)
                continue
            del self._replies[message_id]
            found.append(reply)
        return found

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        """As Flower's own does, but for the pause between two pulls."""
        ids, end, replies = set(self.push_messages(list(messages))), time.monotonic() + (timeout or 0), []
        while ids and time.monotonic() < end:
            replies += (found := self.pull_messages(ids))
            ids -= {message.metadata.reply_to_message_id for message in found}
            time.sleep(0.01)
        return replies


def travelled(message: Message) -> Message:
    """The message as it is after Flower took it apart and put it together again."""
    objects = get_all_nested_objects(message)
    contents = {name: each.deflate() for name, each in objects.items()}
    return inflate_object_from_contents(message.object_id, contents)


def model() -> ArrayRecord:
    return record_of(task.model())


def record_of(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(each)) for name, each in arrays.items()})


def accuracy(arrays: ArrayRecord) -> float:
    return task.accuracy({name: array.numpy() for name, array in arrays.items()})


def evaluated(number: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"accuracy": accuracy(arrays)})
