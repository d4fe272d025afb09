"""`randeigen rules --measure`: every rule on the standard grid of the laboratory, with times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from randeigen import timing
from randeigen.certificate import meaning
from randeigen.cli.console import print_line, print_table, progress_bar, spinner
from randeigen.cli.rule_listing import by_worst, numbers
from randeigen.errors import RandEigenError
from randeigen.lab import rule_study
from randeigen.registry import build_rule, pinned_name, without_digest
from randeigen.rules import RULES

TITLES = ("rule", "worst", "mean", "certificate", "kept", "better", "ms", "assumes")
TIMED_COLUMNS, TIMED_EPS = 2**16, 0.1
TIMED_ROWS = 50  # as many as the grid has where that is less
LEGEND = (
    "worst: largest bias over all settings, the distance from the honest rows' mean in units of "
    "sqrt(eps/(1-eps)·||Sigma_S||). mean: average bias in units of sqrt(||Sigma_S||). certificate: median, "
    f"same units: {meaning()} "
    "kept: of the rows' weight without an attack; – where the answer is no weighted mean. "
    "better: settings in which the bias is clearly below the default's. ms: d = 65,536, float32, n = 50 (20 "
    "where the grid has 20). assumes: what the rule is given that is unknown in practice."
)


def measure_rules(names: Sequence[str] | None, seeds: int) -> dict[str, Any]:
    """The record: the results of these rules, or of all, on the standard grid and on the small one."""
    grid_seeds = list(range(rule_study.HELD_OUT, rule_study.HELD_OUT + seeds))
    names = [pinned_name(name) for name in names] if names else None
    large = [name for name in names or rule_study.standard(RULES) if name not in rule_study.SMALL]
    small = [name for name in (names or rule_study.SMALL) if name in rule_study.SMALL]
    for name in large + small:
        _check(name)
    record: dict[str, Any] = {"seeds": grid_seeds, "standings": [], "small": []}
    if large:
        record["standings"] = _results(large, grid_seeds, rule_study.MANY, TIMED_ROWS)
    if small:
        beside = list(dict.fromkeys((*rule_study.BESIDE_SMALL, *small)))
        record["small"] = _results(beside, grid_seeds, rule_study.FEW, rule_study.FEW)
    return {**record, "legend": LEGEND, "made_with": timing.versions()}


def _results(names: Sequence[str], seeds: Sequence[int], n: int, timed_rows: int) -> list[dict[str, Any]]:
    with progress_bar(quiet=False) as progress:

        def report(done: int) -> None:
            if progress is not None:
                progress(f"{n} rows", done, rule_study.cells_in(len(seeds)))

        results = rule_study.measure(
            names, lambda one, eps: build_rule(one, eps, None), rule_study.cells(seeds, n), report
        )
    with spinner() as stage:
        return [one.as_json() | {"ms": _milliseconds(one.rule, timed_rows, stage)} for one in results]


def _milliseconds(name: str, n: int, report: Callable[[str], None]) -> float | None:
    """The median time at the standard shape; None where the rule refuses it."""
    *mixers, last = name.split("+")
    if last in rule_study.PROMISES:  # the variance of Gaussian rows of this shape, so that it stops soon
        last = f"{last}:{rule_study.PROMISES[last]}={1 + TIMED_COLUMNS / n}"
    try:
        rule = build_rule("+".join((*mixers, last)), TIMED_EPS, None)
        return timing.time_rules({name: rule}, n, TIMED_COLUMNS, report=report)[0].median_ms
    except (RandEigenError, np.linalg.LinAlgError):
        return None


def _check(name: str) -> None:
    """Refuse a mistake in a name before minutes are spent."""
    base = name.split("+")[-1]
    promised = f"{base}:{rule_study.PROMISES[base]}=1" if base in rule_study.PROMISES else base
    build_rule("+".join((*name.split("+")[:-1], promised)), TIMED_EPS, None)


def show_measurement(record: dict[str, Any]) -> None:
    """The results as tables on stdout."""
    for part, rows in (("standings", rule_study.MANY), ("small", rule_study.FEW)):
        if not record[part]:
            continue
        lines = [
            (without_digest(one["rule"]), *numbers(one), rule_study.assumption_of(one["rule"]))
            for one in by_worst(record[part])
        ]
        print_line(f"n = {rows}")
        print_table(TITLES, lines, names=("rule", "assumes"))
        broken = sum(one["violations"] for one in record[part])
        print_line(f"Certificates broken: {broken}.")
        for one in record[part]:
            if one["refused"]:
                all_of = one["refused"] + one["settings"]
                refused = f"* {without_digest(one['rule'])} refused {one['refused']} of {all_of} settings"
                print_line(f"{refused}: {one['reason']}")
    print_line(record["legend"])
