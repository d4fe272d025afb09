"""The verdict of a round: who was asked, what became of each reply and why, and the certificate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from randeigen.certificate import DOWN_WEIGHTED, KEPT, LEFT_OUT

Node: TypeAlias = int | str  # Flower numbers its nodes, NVIDIA FLARE names them

UNUSABLE = "unusable"  # not finite
FAULTY = "faulty"  # unreadable, or not of the model's form
FAILED = "failed"  # an error in place of a reply
SILENT = "silent"  # no reply in time
UNJUDGED = "unjudged"  # a reply that could be read, in a round that was declined
OUTCOMES = (KEPT, DOWN_WEIGHTED, LEFT_OUT, UNUSABLE, FAULTY, FAILED, SILENT, UNJUDGED)
PROVEN = {UNUSABLE, FAULTY}  # what no honest node sends; to be left out is a judgement and no proof
ABSENT = {FAILED, SILENT}  # may have happened to an honest node


@dataclass(frozen=True)
class NodeVerdict:
    """What became of one node's reply."""

    outcome: str  # one of OUTCOMES
    weight: float = 0.0  # its share of the average
    reason: str = ""
    claim: float | None = None  # the number of examples it says it has


@dataclass
class RoundVerdict:
    """What became of one round; evaluation and timing are filled in as the round goes on."""

    round: int
    f: int  # how many of the nodes asked may be corrupt
    rule: str
    nodes: dict[Node, NodeVerdict] = field(default_factory=dict)  # every node asked
    online: int = 0  # nodes that could have been asked
    declined: str = ""  # why the model stayed as it was, if it did
    bias_bound: float | None = None  # at most so far from the mean of the honest replies at these weights
    distance_to_mean: float | None = None
    seed: int | None = None
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)  # waiting for replies, aggregating them
    evaluation: dict[Node, NodeVerdict] = field(default_factory=dict)  # nodes asked to evaluate
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)  # by phase: train, evaluate, server

    def having(self, *outcomes: str) -> list[Node]:
        """The nodes with one of these outcomes."""
        return [node for node, verdict in self.nodes.items() if verdict.outcome in outcomes]

    @property
    def kept(self) -> list[Node]:
        """The nodes whose replies have weight in the average."""
        return self.having(KEPT, DOWN_WEIGHTED)

    def counted(self) -> str:
        """How many nodes had which outcome, in words."""
        counts = Counter(verdict.outcome for verdict in self.nodes.values())
        return ", ".join(f"{counts[word]} {word}" for word in OUTCOMES if counts[word])

    def as_json(self) -> dict[str, Any]:
        """As a JSON object; numbers that are not finite become null."""
        return {
            "round": self.round,
            "f": self.f,
            "rule": self.rule,
            "online": self.online,
            "declined": self.declined,
            "bias_bound": number(self.bias_bound),
            "distance_to_mean": number(self.distance_to_mean),
            "seed": None if self.seed is None else str(self.seed),  # of 64 bits, more than JSON readers keep
            "notes": list(self.notes),
            "seconds": {name: round(value, 4) for name, value in self.seconds.items()},
            "nodes": {str(node): _as_json(each) for node, each in self.nodes.items()},
            "evaluation": {str(node): _as_json(each) for node, each in self.evaluation.items()},
            "metrics": {who: _plain(values) for who, values in self.metrics.items()},
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> RoundVerdict:
        """The verdict of a line of a record; KeyError, TypeError or ValueError if it is none."""
        seed = line["seed"]
        return cls(
            round=int(line["round"]),
            f=int(line["f"]),
            rule=str(line["rule"]),
            nodes={str(node): _from_json(each) for node, each in line["nodes"].items()},
            online=int(line["online"]),
            declined=str(line["declined"]),
            bias_bound=_number_or_none(line["bias_bound"]),
            distance_to_mean=_number_or_none(line["distance_to_mean"]),
            seed=None if seed is None else int(seed),
            notes=tuple(str(note) for note in line["notes"]),
            seconds={str(name): float(value) for name, value in line["seconds"].items()},
            evaluation={str(node): _from_json(each) for node, each in line["evaluation"].items()},
            metrics={str(who): _plain(values) for who, values in line["metrics"].items()},
        )


def number(value: float | None) -> float | None:
    """A JSON number; null if it is not finite."""
    return None if value is None or not math.isfinite(value := float(value)) else value


def _as_json(verdict: NodeVerdict) -> dict[str, Any]:
    record: dict[str, Any] = {"outcome": verdict.outcome, "weight": round(verdict.weight, 9)}
    if verdict.claim is not None:
        record["claim"] = number(verdict.claim)
    return record | ({"reason": verdict.reason} if verdict.reason else {})


def _from_json(line: Mapping[str, Any]) -> NodeVerdict:
    outcome = str(line["outcome"])
    if outcome not in OUTCOMES:
        raise ValueError(f"{outcome!r} is no outcome")
    weight = float(line["weight"])
    return NodeVerdict(outcome, weight, str(line.get("reason", "")), _number_or_none(line.get("claim")))


def _number_or_none(value: Any) -> float | None:
    return None if value is None else float(value)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: [number(each) for each in value] if isinstance(value, list) else number(value)
        for name, value in values.items()
    }


@dataclass
class NodeHistory:
    """One node over the rounds so far."""

    rounds: int = 0  # in which it was asked
    outcomes: Counter[str] = field(default_factory=Counter)
    proven: int = 0  # rounds in which it sent what no honest node sends
    last_reason: str = ""

    @property
    def excluded(self) -> int:
        """Rounds in which it was asked and had no part in the average, those that were declined aside."""
        return self.rounds - sum(self.outcomes[word] for word in (KEPT, DOWN_WEIGHTED, UNJUDGED))


def history_of(verdicts: Iterable[RoundVerdict]) -> dict[Node, NodeHistory]:
    """Every node that was ever asked, those excluded most first."""
    histories: dict[Node, NodeHistory] = {}
    for verdict in verdicts:
        for node, each in verdict.nodes.items():
            history = histories.setdefault(node, NodeHistory())
            history.rounds += 1
            history.outcomes[each.outcome] += 1
            history.proven += each.outcome in PROVEN
            history.last_reason = each.reason or history.last_reason
    return dict(sorted(histories.items(), key=lambda item: (-item[1].excluded, str(item[0]))))
