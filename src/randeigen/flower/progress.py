"""What a run tells in Flower's own log: settings at the start, a line or two a round."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from randeigen.bridges.verdicts import RoundVerdict
from randeigen.certificate import KEPT

if TYPE_CHECKING:
    from randeigen.flower.replies import Phase
    from randeigen.flower.run import FlowerRun

LOG = logging.getLogger("flwr")  # the logger moved between versions of Flower, its name did not
MAX_NODES_LOGGED = 20  # nodes named in the log of one round


def log_settings(run: FlowerRun) -> None:
    """The settings, in the manner of Flower's own summaries."""
    judge = run.session.judge
    scope = "of all nodes" if judge.tolerance.f is None else "of the nodes asked in a round"
    LOG.info("\t├──> randeigen:")
    LOG.info("\t│\t├── May be corrupt: %s %s", judge.tolerance, scope)
    LOG.info("\t│\t├── Rule: %s", judge.rule_name)
    LOG.info("\t│\t└── Record: %s", "none" if run.session.record is None else run.session.record.path)


def log_round(verdict: RoundVerdict) -> None:
    """Who was kept, who was not and why, and how far off the average can be."""
    total = len(verdict.nodes)
    if verdict.declined:
        LOG.warning(
            "aggregate_train: round %d is declined, the model stays: %s", verdict.round, verdict.declined
        )
    else:
        counted = f"{verdict.counted()} of {total} nodes (f = {verdict.f})"
        LOG.info("aggregate_train: %s; %s", counted, _bound(verdict))
    _log_nodes({node: v for node, v in verdict.nodes.items() if v.outcome != KEPT and v.reason})
    for note in verdict.notes:
        LOG.info("\t> %s", note)


def _bound(verdict: RoundVerdict) -> str:
    if verdict.f == 0:
        return "no node was said to be corrupt"
    if verdict.bias_bound is None or not math.isfinite(verdict.bias_bound):
        return "nothing can be promised of the average"
    return f"corrupt ones moved the average by at most {verdict.bias_bound:.3g}"


def log_evaluation(verdict: RoundVerdict | None, phase: Phase) -> None:
    """How many nodes evaluated."""
    evaluation = {} if verdict is None else verdict.evaluation
    LOG.info("aggregate_evaluate: %d results, %d without", len(phase.replies), len(phase.others))
    _log_nodes({node: each for node, each in evaluation.items() if each.outcome != KEPT})


def _log_nodes(nodes: dict) -> None:  # type: ignore[type-arg]
    for node, each in list(nodes.items())[:MAX_NODES_LOGGED]:
        LOG.info("\t> node %s is %s: %s", node, each.outcome, each.reason)
    if len(nodes) > MAX_NODES_LOGGED:
        LOG.info("\t> and %d more nodes", len(nodes) - MAX_NODES_LOGGED)
