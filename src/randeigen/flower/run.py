"""The state of a robust run of the Message API: what was sent, to whom, and the rounds so far."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from randeigen.bridges.form import Leaf, Refused
from randeigen.bridges.session import Session
from randeigen.bridges.verdicts import SILENT, Node, NodeVerdict
from randeigen.errors import BadParameter
from randeigen.flower.checkpoint import Checkpoint
from randeigen.flower.grid import GuardedGrid
from randeigen.flower.progress import LOG
from randeigen.flower.replies import form_of_record

POLL = 0.5  # seconds between two looks at who is online


class FlowerRun:
    """Everything that a robust strategy keeps between calls."""

    def __init__(
        self,
        session: Session,
        grace: float,
        patience: float,
        like: ArrayRecord | None,
        checkpoint: str | os.PathLike[str] | None,
    ) -> None:
        self.session, self.grace, self.patience = session, grace, patience
        self.checkpoint = None if checkpoint is None else Checkpoint(checkpoint)
        if checkpoint is not None and session.record is None:
            raise BadParameter("checkpoint needs record, which says how many rounds are done; give both.")
        self.done = 0  # rounds of the run before it was resumed
        self.model: ArrayRecord | None = None
        self.form: dict[str, Leaf] = {}
        self.next_model: ArrayRecord | None = None  # the model after the last round
        self.recipients: list[int] = []
        self.shortage = ""  # why nobody was asked, if nobody was
        self.evaluates_last = False  # whether a round ends with the server's own evaluation
        self._like = None if like is None else _form(like, "like")
        self._template: Message | None = None
        self._guarded: GuardedGrid | None = None
        self._settled: int | None = None  # nodes that are online once patience is over

    def begin(self, strategy: Any, arrays: ArrayRecord) -> ArrayRecord:
        """The model to start from: the given one, or that of the checkpoint."""
        self.done, self._settled = 0, None
        saved = None if self.checkpoint is None else self.checkpoint.load(strategy)
        past = self.session.begin(resume=saved is not None)
        if saved is None or past is None or not past.rounds:
            return arrays
        rounds, model = saved
        self.session.forget_after(rounds)
        for verdict in self.session.verdicts:  # JSON has no numbers for names
            verdict.nodes = {int(node): each for node, each in verdict.nodes.items()}
            verdict.evaluation = {int(node): each for node, each in verdict.evaluation.items()}
        self.done = rounds
        LOG.info("Resuming after round %d, from %s", rounds, self.checkpoint.path if self.checkpoint else "")
        return model

    def model_sent(self, arrays: ArrayRecord) -> None:
        """What a round begins with, and so the form of its replies."""
        self.model = arrays
        self.form = self._like if self._like is not None else _form(arrays, "the model")

    def remember(self, messages: Iterable[Message], grid: Grid) -> list[Message]:
        """The messages, once it is written down who is asked."""
        messages = list(messages)
        self.recipients = [message.metadata.dst_node_id for message in messages]
        self._template = messages[0] if messages else None
        self._guarded = grid if isinstance(grid, GuardedGrid) else None
        return messages

    def wait_for_nodes(self, grid: GuardedGrid, needed: int) -> list[int]:
        """The nodes online, as soon as they are as many as needed or patience is over."""
        if self._settled is not None:
            needed = min(needed, self._settled)
        began, logged = time.monotonic(), False
        while len(nodes := grid.get_node_ids()) < needed:
            if time.monotonic() - began >= self.patience:
                LOG.warning(
                    "%d of %d nodes are online after %.0f s; going on", len(nodes), needed, self.patience
                )
                self._settled = len(nodes)
                return nodes
            if not logged:
                LOG.info("Waiting for nodes: %d online, %d needed, %.0f s", len(nodes), needed, self.patience)
                logged = True
            time.sleep(min(POLL, self.patience))
        if self._settled is not None:
            self._settled = max(self._settled, len(nodes))
        return nodes

    def by_node(self, replies: list[Message]) -> tuple[dict[Node, Message], dict[Node, NodeVerdict]]:
        """Each reply by the node it came from, and the nodes without one.

        Through the guarded grid that is the node that was asked; elsewhere the first that claims to be it.
        """
        replies_of: dict[Node, Message] = {}
        others: dict[Node, NodeVerdict] = {}
        known = {} if self._guarded is None else {id(m): n for n, m in self._guarded.received.items()}
        if self._guarded is not None:
            others |= self._guarded.others
        for message in replies:
            node = known.get(id(message), message.metadata.src_node_id)
            if node in self.recipients and node not in replies_of:
                replies_of[node] = message
            else:
                LOG.warning("a reply that claims to come from node %d is ignored: it was not asked for", node)
        missing = NodeVerdict(SILENT, reason="no reply in time")
        others |= {node: missing for node in self.recipients if node not in replies_of and node not in others}
        return replies_of, {node: each for node, each in others.items() if node not in replies_of}

    def seconds_waited(self) -> float:
        """Seconds of the last exchange; 0 where the grid is not guarded."""
        return 0.0 if self._guarded is None else self._guarded.seconds

    def unchanged(self) -> ArrayRecord | None:
        """The model that was sent; None where replies are no models."""
        return self.model if self._like is None else None

    def one_reply(
        self,
        arrays: ArrayRecord | None,
        arrays_key: str,
        count_key: str,
        metrics: Mapping[str, Any] | None = None,
    ) -> Message:
        """A message as from a single node, with an average and one example."""
        assert self._template is not None
        content = RecordDict({"metrics": MetricRecord({**(metrics or {}), count_key: 1})})
        if arrays is not None:
            content[arrays_key] = arrays
        return Message(content, reply_to=self._template)

    def end_round(self, strategy: Any) -> None:
        """Write the round into the record, then the model into the checkpoint.

        In this order a server that is killed between the two runs the round again.
        """
        self.session.close()
        if self.checkpoint is not None and self.next_model is not None and self.session.verdicts:
            self.checkpoint.save(self.session.verdicts[-1].round, self.next_model, strategy)

    def renumbered(self, result: Result) -> Result:
        """A result whose rounds count from the run's beginning, not from where it was resumed."""
        for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(
                result, name, {self.done + number: each for number, each in getattr(result, name).items()}
            )
        return result


@cache
def plain_metrics_function() -> Any:
    """Flower's own way to aggregate metrics, which ours stands for."""
    return FedAvg().train_metrics_aggr_fn


def _form(arrays: ArrayRecord, name: str) -> dict[str, Leaf]:
    try:
        return form_of_record(arrays)
    except Refused as why:
        raise BadParameter(f"{name} cannot be averaged: {why}; send arrays of floats and integers.") from why
