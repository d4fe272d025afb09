"""Metrics that nodes report are as hostile as their arrays: averaged by the same rule, one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from randeigen.bridges.judge import robust_mean
from randeigen.bridges.verdicts import Node

MAX_VALUES = 4096  # numbers in one metric; a list that is longer is no metric


def reports_of_most(reports: Mapping[Node, Mapping[str, Any]], f: int) -> dict[Node, Mapping[str, Any]]:
    """The reports of the form that most nodes have, if these are more than f: names, numbers or lists."""
    ballots = Counter(_form(report) for report in reports.values())
    if not ballots:
        return {}
    form, count = ballots.most_common(1)[0]
    if count <= f or 2 * count <= len(reports):
        return {}
    return {node: report for node, report in reports.items() if _form(report) == form}


def average(
    reports: Mapping[Node, Mapping[str, Any]],
    claims: Mapping[Node, float | None],
    f: int,
    without: frozenset[str] = frozenset(),
) -> dict[str, float | list[float]]:
    """The robust mean of each metric over nodes, f of them corrupt; what cannot be told is left out."""
    averages: dict[str, float | list[float]] = {}
    if not reports:
        return averages
    counts = [claims.get(node) for node in reports]
    for name, example in next(iter(reports.values())).items():
        if name in without or (isinstance(example, list) and not 0 < len(example) <= MAX_VALUES):
            continue
        rows = [report[name] if isinstance(example, list) else [report[name]] for report in reports.values()]
        with np.errstate(over="ignore"):
            mean = robust_mean(np.array([[_number(each) for each in row] for row in rows]), counts, f)
        if mean is not None:
            averages[name] = mean.tolist() if isinstance(example, list) else float(mean[0])
    return averages


def capped(claims: Mapping[Node, float | None], cap: float | None) -> dict[Node, int]:
    """Numbers of examples that a function of the user's own may weigh by: none above `cap` median claims."""
    known = sorted(claim for claim in claims.values() if claim)
    if cap is None or not known:
        return dict.fromkeys(claims, 1)
    most = cap * known[len(known) // 2]
    return {node: int(min(claim or 0, most)) for node, claim in claims.items()}


def _form(report: Mapping[str, Any]) -> frozenset[tuple[str, int | None]]:
    """Names, and how many numbers each has; None for a single one."""
    return frozenset((name, len(v) if isinstance(v, list) else None) for name, v in report.items())


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
