"""Which cell of a sitting begins next: the first in order that will have ended when the time is over.

A GPU that several processes share gives each an equal part. What a round costs, were the machine its alone,
is taken from the rounds that were measured of the same kind of cell; until there are any, from a guess that
is as far off as the guesses of the kinds that were measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from randeigen.lab.paper.cells import POISONS
from randeigen.lab.paper.training import Job

Kind: TypeAlias = tuple[str, str]

LARGEST_SHARE = 0.5  # of the machine that one process can use: the rest of its time it spends on the host
START_SECONDS = 1.0  # of a cell, before its first round
MEASURED_ROUNDS = 10  # at a time
CAUTION = 1.1  # rounds of unlike length, and other cells' as well
# About the seconds of an H200 that a round takes where cells share it, until rounds of its kind are measured.
USUAL_ROUND = 0.065
MORE_OF_ATTACKS = {"mra": 0.012, "mpa": 0.04, "dba": 0.2}
MORE_OF_RULES = {"filtering": 0.01, "filtering-adaptive": 0.015, "no-regret": 0.01, "published": 0.01}
TRAINED_SECONDS = 100.0  # of a cell that is no federation


def kind(job: Job) -> Kind:
    """Cells whose rounds cost about the same."""
    attack = "usual" if job.cell.attack in ("none", "hidra", "tma", "dfba") else job.cell.attack
    return attack, job.cell.rule


def guessed_round(job: Job) -> float:
    """Seconds of a round, before any was measured."""
    return USUAL_ROUND + MORE_OF_ATTACKS.get(job.cell.attack, 0.0) + MORE_OF_RULES.get(job.cell.rule, 0.0)


def rounds(job: Job) -> int:
    """Of a federation; other cells count as one round."""
    return 1 if job.cell.attack in POISONS else int(job.config.rounds)


@dataclass
class Running:
    """A cell that has begun."""

    job: Job
    done: int = 0  # rounds
    counted: tuple[int, float] | None = None  # rounds at the last measurement, and when that was

    def report(self, done: int, now: float, costs: Costs, busy: int) -> None:
        """A round is about to begin after these; the first, which loads and compiles, is not measured."""
        self.done = done
        if done and self.counted is None:
            self.counted = done, now
        elif self.counted and done - self.counted[0] >= min(MEASURED_ROUNDS, rounds(self.job) // 2):
            costs.add(self.job, now - self.counted[1], done - self.counted[0], busy)
            self.counted = done, now

    def left(self, costs: Costs) -> float:
        """Seconds of the machine that it still costs."""
        return costs.of(self.job) * (1 - self.done / rounds(self.job))


@dataclass
class Costs:
    """What rounds were found to cost, in seconds of a machine that is theirs alone."""

    measured: dict[Kind, list[float]] = field(default_factory=dict)
    factors: list[float] = field(default_factory=list)  # measured costs over guesses

    def add(self, job: Job, seconds: float, many: int, busy: float) -> None:
        """These many rounds took so long beside others: `busy` processes on average, this one among them."""
        each = seconds / many * share(busy)
        self.measured.setdefault(kind(job), []).append(each)
        self.factors.append(each / guessed_round(job))

    def of(self, job: Job) -> float:
        """Seconds of the machine that a cell costs."""
        if job.cell.attack in POISONS:
            return TRAINED_SECONDS
        known = self.measured.get(kind(job))
        factor = statistics.median(self.factors) if self.factors else 1.0
        each = statistics.median(known) if known else factor * guessed_round(job)
        return each * rounds(job)


def share(busy: float) -> float:
    """What one of so many processes has of the machine."""
    return min(1 / max(busy, 1.0), LARGEST_SHARE)


def seconds_until_done(cost: float, others: Sequence[float]) -> float:
    """How long a cell of this cost takes beside others that have so much left, each with an equal share."""
    left, past = sorted(others), 0.0
    while left and left[0] < cost:
        step, busy = left[0], len(left) + 1
        past += step / share(busy)
        left, cost = [each - step for each in left[1:]], cost - step
    return past + cost / share(len(left) + 1)


def next_job(waiting: Sequence[Job], costs: Costs, others: Sequence[float], seconds: float) -> Job | None:
    """The first that ends in time; None if there is no such."""
    tried: dict[float, bool] = {}
    for job in waiting:
        cost = costs.of(job)
        if cost not in tried:
            tried[cost] = CAUTION * (START_SECONDS + seconds_until_done(cost, others)) <= seconds
        if tried[cost]:
            return job
    return None
