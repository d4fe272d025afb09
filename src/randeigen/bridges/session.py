"""A run round by round: verdicts so far, nodes that are no longer asked, and the record."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from numpy.typing import NDArray

from randeigen.bridges.corruption import Declined, corrupt_among
from randeigen.bridges.judge import Arrays, Judge
from randeigen.bridges.metrics import average, reports_of_most
from randeigen.bridges.record import Record, Run
from randeigen.bridges.verdicts import (
    ABSENT,
    FAULTY,
    PROVEN,
    Node,
    NodeHistory,
    NodeVerdict,
    RoundVerdict,
    history_of,
)
from randeigen.certificate import KEPT
from randeigen.errors import BadParameter

AnyNode = TypeVar("AnyNode", int, str)


class Session:
    """The rounds of one run."""

    def __init__(
        self, judge: Judge, strikes: int | None = None, record: str | os.PathLike[str] | None = None
    ) -> None:
        if strikes is not None and (isinstance(strikes, bool) or not isinstance(strikes, int) or strikes < 1):
            raise BadParameter(f"strikes={strikes!r}; give after how many faulty replies a node is barred.")
        self.judge, self.strikes = judge, strikes
        settings = {"tolerance": str(judge.tolerance), "rule": judge.rule_name, "strikes": strikes}
        self.record = None if record is None else Record(record, settings)
        self.verdicts: list[RoundVerdict] = []
        self.most_online = 0  # at once: nodes that go away take none of the corrupt ones with them
        self._written = 0  # verdicts that are in the record

    def begin(self, *, resume: bool = False) -> Run | None:
        """Start a run in the record; the one that is resumed, if there is one."""
        self.verdicts, self._written = [], 0
        run = None if self.record is None else self.record.begin(resume=resume)
        if run is not None:
            self.verdicts, self._written = list(run.rounds), len(run.rounds)
        return run

    @property
    def history(self) -> dict[Node, NodeHistory]:
        """Every node over the rounds so far, those excluded most first."""
        return history_of(self.verdicts)

    @property
    def barred(self) -> set[str]:
        """The nodes that are no longer asked, as text."""
        if self.strikes is None:
            return set()
        return {str(node) for node, past in self.history.items() if past.proven >= self.strikes}

    def available(self, nodes: Iterable[AnyNode]) -> list[AnyNode]:
        """The nodes that may be asked."""
        nodes, barred = list(nodes), self.barred
        self.most_online = max(self.most_online, len(nodes))
        return [node for node in nodes if str(node) not in barred]

    def corrupt_in(self, sampled: int) -> int:
        """f for so many nodes asked."""
        return self.judge.tolerance.among(sampled, max(self.most_online, sampled), len(self.barred))

    def train(
        self,
        number: int,
        replies: Mapping[Node, Arrays],
        claims: Mapping[Node, float | None],
        others: Mapping[Node, NodeVerdict],
    ) -> dict[str, NDArray[Any]] | None:
        """The average of a round's replies, None where it is declined; the verdict is the last one."""
        self.close()
        online = max(self.most_online, len(replies) + len(others))
        mean, verdict = self.judge.round(number, replies, claims, others, online, len(self.barred))
        self.verdicts.append(verdict)
        return mean

    def decline(self, number: int, why: str) -> None:
        """A round in which nobody could be asked."""
        self.close()
        verdict = RoundVerdict(number, self.corrupt_in(0), self.judge.rule_name, online=self.most_online)
        verdict.declined = why
        self.verdicts.append(verdict)

    def reports(
        self,
        reports: Mapping[Node, Mapping[str, Any]],
        claims: Mapping[Node, float | None],
        others: Mapping[Node, NodeVerdict],
        without: str,
    ) -> tuple[dict[str, float | list[float]], list[Node]]:
        """The average of each metric, and the nodes whose reports it is made of."""
        total = len(reports) + len(others)
        refused = sum(each.outcome in PROVEN for each in others.values())
        absent = sum(each.outcome in ABSENT for each in others.values())
        try:
            left = corrupt_among(len(reports), self.corrupt_in(total), refused, absent)
        except Declined:
            return {}, []
        alike = reports_of_most(reports, left)
        return average(alike, claims, left, frozenset((without,))), list(alike)

    def evaluate(
        self,
        reports: Mapping[Node, Mapping[str, Any]],
        claims: Mapping[Node, float | None],
        others: Mapping[Node, NodeVerdict],
        without: str,
    ) -> tuple[dict[str, float | list[float]], list[Node]]:
        """The same for the evaluation of the current round, with the verdict on each node."""
        averages, alike = self.reports(reports, claims, others, without)
        if self.verdicts:
            verdict = self.verdicts[-1]
            verdict.evaluation = dict(others)
            for node in reports:
                unheard = NodeVerdict(FAULTY, reason="its metrics are not those that most nodes report")
                verdict.evaluation[node] = NodeVerdict(KEPT) if node in alike else unheard
            verdict.metrics["evaluate"] = averages
        return averages, alike

    def forget_after(self, number: int) -> None:
        """Drop the rounds after this one: they will be run again."""
        self.verdicts[:] = [verdict for verdict in self.verdicts if verdict.round <= number]
        self._written = len(self.verdicts)

    def close(self) -> None:
        """Write what is finished into the record."""
        if self.record is not None:
            for verdict in self.verdicts[self._written :]:
                self.record.append(verdict)
        self._written = len(self.verdicts)


class RoundsSoFar:
    """What strategies and aggregators show of their session."""

    _session: Session

    @property
    def verdicts(self) -> list[RoundVerdict]:
        """What became of every round so far."""
        return self._session.verdicts

    @property
    def history(self) -> dict[Node, NodeHistory]:
        """Every node over the rounds so far, those excluded most first."""
        return self._session.history
