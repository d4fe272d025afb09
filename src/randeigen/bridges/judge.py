"""Replies in, their robust average and the verdict of the round out: where a bridge calls `aggregate`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from randeigen.api import aggregate
from randeigen.bridges.corruption import Declined, Tolerance, corrupt_among
from randeigen.bridges.verdicts import ABSENT, PROVEN, UNJUDGED, UNUSABLE, Node, NodeVerdict, RoundVerdict
from randeigen.certificate import KEPT, outcome_of
from randeigen.errors import BadFraction, BadParameter, BadRows, TooManyCorrupt
from randeigen.prior_weights import MAX_CLAIM_RATIO
from randeigen.registry import DEFAULT, build_rule
from randeigen.rules import Rule
from randeigen.types import Aggregate, Array

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
RuleChoice: TypeAlias = str | Callable[..., Rule]


class Judge:
    """How replies are averaged: what is feared, by which rule, and how far claims of example counts go."""

    def __init__(
        self,
        tolerance: Tolerance,
        rule: RuleChoice = DEFAULT,
        cap: float | None = MAX_CLAIM_RATIO,
    ) -> None:
        self.tolerance, self.cap = tolerance, cap
        self._rule = rule
        trial = self._rule_for(0)  # a mistyped name or parameter is told here, not in the first round
        self.rule_name = rule if isinstance(rule, str) else type(trial).__name__
        if cap is not None and (isinstance(cap, bool) or not isinstance(cap, (int, float)) or not cap >= 1):
            raise BadParameter(
                f"cap={cap!r}; give the most a claim counts in median claims, from 1, or None."
            )

    def _rule_for(self, f: int) -> Rule:
        if isinstance(self._rule, str):
            return build_rule(self._rule, None, f)
        rule = self._rule(f=f) if callable(self._rule) and not isinstance(self._rule, Rule) else self._rule
        if not isinstance(self._rule, Rule) and isinstance(rule, Rule):
            return rule
        raise BadParameter(
            f"rule={self._rule!r}; give a name such as 'nnm+krum' or a class such as randeigen.rules.Krum: "
            "f differs from round to round."
        )

    def round(
        self,
        number: int,
        replies: Mapping[Node, Arrays],
        claims: Mapping[Node, float | None],
        others: Mapping[Node, NodeVerdict],
        online: int,
        known: int = 0,
    ) -> tuple[dict[str, NDArray[Any]] | None, RoundVerdict]:
        """The average of the replies, None where the round is declined; and the verdict.

        `others` are nodes asked that gave nothing to average, `online` all that could have been asked,
        `known` corrupt nodes that no longer are.
        """
        total = len(replies) + len(others)
        f = self.tolerance.among(total, max(online, total), known)
        verdict = RoundVerdict(number, f, self.rule_name, dict(others), online)
        began = time.perf_counter()
        try:
            result = self._aggregate(list(replies.values()), [claims.get(node) for node in replies], verdict)
        except (Declined, TooManyCorrupt, BadFraction, BadRows) as why:
            verdict.declined = str(why)
            verdict.nodes |= {node: NodeVerdict(UNJUDGED, claim=claims.get(node)) for node in replies}
            verdict.nodes |= _unusable(list(replies), why.reasons if isinstance(why, TooManyCorrupt) else {})
            return None, verdict
        verdict.seconds["aggregate"] = time.perf_counter() - began
        nodes = list(replies)
        for row, node in enumerate(nodes):
            verdict.nodes[node] = _on_node(result, row, claims.get(node))
        verdict.bias_bound, verdict.distance_to_mean = result.bias_bound, result.distance_to_mean
        verdict.seed, verdict.notes = result.seed, _named(result.verdict.notes)
        return dict(result.mean), verdict

    def _aggregate(
        self, rows: list[Arrays], claims: list[float | None], verdict: RoundVerdict
    ) -> Aggregate[Any]:
        refused = sum(each.outcome in PROVEN for each in verdict.nodes.values())
        absent = sum(each.outcome in ABSENT for each in verdict.nodes.values())
        left = corrupt_among(len(rows), verdict.f, refused, absent)
        counts = [math.nan if claim is None else claim for claim in claims]
        heard = self.cap is not None and any(math.isfinite(count) and count > 0 for count in counts)
        result = aggregate(
            rows,
            rule=self._rule_for(left),
            row_weights=counts if heard else None,
            cap=self.cap if self.cap is not None else MAX_CLAIM_RATIO,
        )
        # Rows that are not finite are known only now: with them, too little may be left.
        unusable = len(result.unusable)
        corrupt_among(len(rows) - unusable, verdict.f, refused + unusable, absent)
        return result


def _unusable(nodes: list[Node], reasons: Mapping[int, str]) -> dict[Node, NodeVerdict]:
    return {nodes[row]: NodeVerdict(UNUSABLE, reason=str(why)) for row, why in reasons.items()}


def _on_node(result: Aggregate[Any], row: int, claim: float | None) -> NodeVerdict:
    weight = float(result.weights[row])
    if row in result.unusable:
        return NodeVerdict(UNUSABLE, 0.0, str(result.unusable[row]), claim)
    outcome = outcome_of(weight * (result.weights.size - len(result.unusable)))
    return NodeVerdict(outcome, weight, "" if outcome == KEPT else _reason(result, row, claim), claim)


def _reason(result: Aggregate[Any], row: int, claim: float | None) -> str:
    """Why a reply has little weight or none."""
    verdict = result.verdict
    if verdict.far_outliers is not None and verdict.far_outliers[row]:
        return "over 10,000 times further out than the typical reply"
    dropped = int(verdict.dropped_in_round[row]) if verdict.dropped_in_round is not None else 0
    if dropped and verdict.scores is not None:
        return f"filtered in pass {dropped} at {float(verdict.scores[row]):.3g} times the replies' variance"
    if claim is None or not (math.isfinite(claim) and claim > 0):
        return "it claims no positive number of examples"
    return "not chosen by the rule"


def _named(notes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(note.replace("row_weights: ", "example counts: ") for note in notes)


def robust_mean(values: Array, claims: list[float | None], f: int) -> Array | None:
    """(p,) the robust mean of n reports of p numbers, f of them corrupt; None if too few are finite."""
    usable = np.isfinite(values).all(axis=1)
    left = max(f - int((~usable).sum()), 0)
    values, n = values[usable], int(usable.sum())
    if n <= 2 * left:
        return None
    counts = np.array([math.nan if claim is None else claim for claim in claims])[usable]
    heard = bool((np.isfinite(counts) & (counts > 0)).any())
    try:
        return np.asarray(aggregate(values, f=left, row_weights=counts if heard else None).mean)
    except (TooManyCorrupt, BadRows, BadFraction):  # numbers so large that squares of them overflow
        return None
