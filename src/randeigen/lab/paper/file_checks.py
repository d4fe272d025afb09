"""Whether the files that a report shows hold what it needs: measurements, and studies of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from randeigen.lab.paper.other_studies import LANGUAGE
from randeigen.lab.record_checks import (
    DURATION,
    KEPT,
    NUMBER,
    ORDER,
    Kind,
    check_entry,
    check_lines,
    check_parts,
    damaged,
    is_count,
    is_number,
    is_positive,
    is_text,
    or_none,
    read_json,
)

TEXT: Kind = is_text, "a string"
YES_OR_NO: Kind = (lambda value: isinstance(value, bool)), "true or false"
POSITIVE: Kind = is_positive, "a number above 0"
SIZE: Kind = (lambda value: is_count(value) and value >= 2, "a whole number from 2")
LINES: Kind = (lambda value: isinstance(value, list) and bool(value), "a list of lines")
SEED: Kind = is_count, "a whole number from 0"
OBJECT: Kind = (lambda value: isinstance(value, dict), "an object")


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_number, value))


def _are_points(value: Any) -> bool:
    return isinstance(value, list) and all(_are_numbers(point) and len(point) >= 2 for point in value)


NUMBERS: Kind = _are_numbers, "a list of numbers"
POINTS: Kind = _are_points, "a list of points"


def checked_measurement(name: str, path: Path) -> dict[str, Any]:
    """The record of the measurement of this name, `figure:1`."""
    content = check_parts(path, read_json(path, name), ("versions", "made"), name)
    CHECKS[name](path, content, name)
    return content


def _theorems(path: Path, content: dict[str, Any], name: str) -> None:
    holds: Kind = or_none(lambda value: isinstance(value, bool)), "true, false or null"
    kinds = {"id": TEXT, "measured": TEXT, "bound": TEXT, "holds": holds}
    for one in check_lines(path, content, "checks", kinds, name):
        for key, kind in (("note", TEXT), ("room", TEXT), ("regime", YES_OR_NO)):
            if key in one:
                check_entry(path, one, key, kind, "a check", name)


def _prior_work(path: Path, content: dict[str, Any], name: str) -> None:
    kinds = {"rule": TEXT, "d": SIZE, "seconds": POSITIVE, "bias": DURATION, "relative": NUMBER}
    check_lines(path, content, "lines", kinds, name)


def _figure_2(path: Path, content: dict[str, Any], name: str) -> None:
    chunked = ("filtering, C×C", "filtering, n×n", "published", "randeigen")
    for key, size, rules in (("lines", "d", ("published", "randeigen")), ("by_chunk", "chunk", chunked)):
        lines = check_lines(path, content, key, {"rule": TEXT, size: SIZE, "seconds": POSITIVE}, name)
        pairs = {(line["rule"], line[size]) for line in lines}
        if not pairs:
            raise damaged(path, f"its {key} are empty", name)
        for value in sorted({line[size] for line in lines}):
            if absent := [rule for rule in rules if (rule, value) not in pairs]:
                raise damaged(path, f"{key} has no {absent[0]} at {size} = {value}", name)


def _chunks(path: Path, content: dict[str, Any], name: str) -> None:
    for key in ("columns", "rows"):
        check_entry(path, content, key, SIZE, "the record", name)
    kinds = {"chunk": SIZE, "rounds": ORDER, "timed": ORDER}  # of how many rounds, how many were timed
    seconds = dict.fromkeys(("dense", "published", "randeigen", "step"), POSITIVE)
    if not check_lines(path, content, "lines", {**kinds, **seconds}, name):
        raise damaged(path, "its lines are empty", name)


def _figure_1(path: Path, content: dict[str, Any], name: str) -> None:
    kinds = {"task": TEXT, "attack": TEXT, "round": ORDER, "byzantine": ORDER}
    check_lines(path, content, "panels", {**kinds, "projections": POINTS, "variance_shares": NUMBERS}, name)


def _figure_5(path: Path, content: dict[str, Any], name: str) -> None:
    check_lines(path, content, "panels", {"attack": TEXT, "poison": ORDER, "projections": NUMBERS}, name)


def _certificate(path: Path, content: dict[str, Any], name: str) -> None:
    kinds = {"round": ORDER} | dict.fromkeys(("certificate", "bias", "moved", "bias_of_mean"), DURATION)
    for panel in check_lines(path, content, "panels", {"attack": TEXT, "lines": LINES}, name):
        check_lines(path, panel, "lines", kinds, name)


CHECKS: Mapping[str, Callable[[Path, dict[str, Any], str], None]] = {
    "table:prior-work": _prior_work,
    "figure:1": _figure_1,
    "figure:2": _figure_2,
    "chunks": _chunks,
    "figure:5": _figure_5,
    "certificate": _certificate,
    "theorems": _theorems,
}


def check_study(path: Path) -> None:
    """Refuse a study of federations, of images or of sentences, whose cells are not all there."""
    what = "federations"
    content = check_parts(path, read_json(path, what), (), what)
    sentences = path.name == LANGUAGE
    kinds = {"cell": OBJECT, "history": LINES, "versions": OBJECT, "seconds": DURATION}
    for one in check_lines(path, content, "cells", kinds, what):
        cell = one["cell"]
        names = ("encoder", "setting") if sentences else ("data", "partition")
        for name in ("attack", "rule", *names):
            check_entry(path, cell, name, TEXT, "a cell", what)
        check_entry(path, cell, "seed", SEED, "a cell", what)
        if sentences:
            check_entry(path, cell, "eps", NUMBER, "a cell", what)
        check_entry(path, one["versions"], "commit", TEXT, "versions", what)
        check_lines(path, one, "history", {}, what)
        for metrics in one["history"]:
            _check_own(path, metrics, one_number=sentences)


def _check_own(path: Path, metrics: dict[str, Any], *, one_number: bool) -> None:
    """The rates of success on a model that nobody attacks."""
    rates: Kind = (
        lambda value: isinstance(value, dict) and all(map(is_number, value.values())),
        "a number for each name",
    )
    for name in ("own", "more"):
        if name in metrics:
            kind = KEPT if one_number and name == "own" else rates
            check_entry(path, metrics, name, kind, "a round", "federations")


def extra_memory(path: Path) -> list[float]:
    """Megabytes beside rows and answer that the default took, in a record of what aggregations cost."""
    what = "what aggregations cost"
    content = check_parts(path, read_json(path, what), (), what)
    lines = [
        line
        for key in ("timings", "growth")
        for line in check_lines(path, content, key, {"rule": TEXT}, what)
    ]
    of = [line for line in lines if line["rule"] == "randeigen"]
    for line in of:
        check_entry(path, line, "extra_mb", NUMBER, "a timing of randeigen", what)
    if not of:
        raise damaged(path, "it has no timing of randeigen", what)
    return [line["extra_mb"] for line in of]


def costs_of_shapes(path: Path) -> list[dict[str, Any]]:
    """The lines of a record of what aggregations cost, of all rules and shapes."""
    what = "what aggregations of all shapes cost"
    content = check_parts(path, read_json(path, what), (), what)
    kinds = {"rule": TEXT, "n": SIZE, "d": SIZE, "extra_mb": NUMBER}
    lines = check_lines(path, content, "cells", kinds, what)
    if not lines:
        raise damaged(path, "it has no cells", what)
    return lines
