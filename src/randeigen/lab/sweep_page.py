"""The comparison page of a sweep: attacks against rules with intervals over seeds, and the rounds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from randeigen.lab.chart_axes import Axis
from randeigen.lab.charts import Series, chart
from randeigen.lab.config import FederatedConfig
from randeigen.lab.html_page import explained, listed
from randeigen.lab.report_html import TableCell, gallery, paragraphs, table, write
from randeigen.lab.tidy import Interval, interval, over_seeds

FIRST = ("task", "partition", "alpha", "eps")  # in titles
# What may differ between the tables of a page; a table compares attacks and rules over seeds.
SETTINGS = tuple(
    name
    for name in dict.fromkeys((*FIRST, *(field.name for field in fields(FederatedConfig))))
    if name not in ("attack", "rule", "seed")
)
SHORT = {
    "feared": "assumed eps",
    "rate": "learning rate",
    "sample": "participation",
    "redraw": "attackers redrawn",
    "calm": "attack start",
}
Line = Mapping[str, Any]


def write_sweep_page(path: str | os.PathLike[str], runs: Sequence[Line], rounds: Sequence[Line]) -> None:
    """One page about the runs of `tidy.records`, and of the same by round."""
    seeds = sorted({line["seed"] for line in runs})
    sections = []
    for index, group in enumerate(grouped(runs)):
        same = [line for line in rounds if _setting_key(line) == _setting_key(group.lines[0])]
        sections.append((f"s{index}", group.title, comparison(group.lines) + gallery(_courses(same))))
    lead = paragraphs(
        f"{len(runs)} runs, {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}. Accuracy "
        "on the test set and, below it, attack success, in percent: means over seeds and half the width of "
        "their 95% interval (Student's t). Green: within one point of the unattacked mean of the same "
        "setting. Orange: more than five points below it, or a success of more than 20%. Attack success is "
        "the share of attacked test examples that are classified as the attackers want."
    )
    lead += listed(explained((line["attack"] for line in runs), (line["rule"] for line in runs)))
    write(path, "A sweep of federations", lead, sections)


class Group(NamedTuple):
    """Runs that agree in everything but attack, rule and seed."""

    title: str  # what sets it apart from the other groups
    lines: list[Line]


def grouped(runs: Sequence[Line]) -> list[Group]:
    """The runs by their settings."""
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in runs:
        groups.setdefault(_setting_key(line), []).append(line)
    named = differing(runs) or ("task",)
    return [
        Group(", ".join(_setting(name, lines[0].get(name)) for name in named), lines)
        for lines in groups.values()
    ]


def differing(runs: Sequence[Line]) -> tuple[str, ...]:
    """The settings that are not the same in all runs, other than attack, rule and seed."""
    return tuple(name for name in SETTINGS if len({_value(line, name) for line in runs}) > 1)


def label(name: str) -> str:
    """The word for a setting on pages and in tables."""
    return SHORT.get(name, name)


def _value(line: Line, name: str) -> Any:
    """A setting; the eps that rules assume only where it is not the true one."""
    value = line.get(name)
    return None if name == "feared" and value == line.get("eps") else value


def _setting_key(line: Line) -> tuple[Any, ...]:
    return tuple(line.get(name) for name in SETTINGS)


def comparison(lines: Sequence[Line]) -> str:
    """Attacks down, rules across, as HTML."""
    return table(*comparison_cells(lines))


def comparison_cells(lines: Sequence[Line]) -> tuple[list[str], list[list[TableCell | str]]]:
    """Titles and lines of that table."""
    rules = list(dict.fromkeys(line["rule"] for line in lines))
    accuracy = over_seeds(lines, ("attack", "rule"), lambda line: 100 * line["accuracy"])
    success = over_seeds(lines, ("attack", "rule"), lambda line: _percent(line["asr"]))
    clean = accuracy.get(("none", "mean"))
    body: list[list[TableCell | str]] = [
        [attack, *(_cell(accuracy.get((attack, rule)), success.get((attack, rule)), clean) for rule in rules)]
        for attack in dict.fromkeys(line["attack"] for line in lines)
    ]
    return ["attack", *rules], body


def interval_text(value: Interval) -> str:
    """A mean with half of its interval, where there is one.

    >>> interval_text(Interval(94.52, 0.31, 3))
    '94.5 ± 0.3'
    """
    return f"{value.mean:.1f}" + ("" if value.half_width is None else f" ± {value.half_width:.1f}")


def _cell(accuracy: Interval | None, success: Interval | None, clean: Interval | None) -> TableCell | str:
    if accuracy is None:
        return ""
    below = f"success {interval_text(success)}" if success else ""
    if clean is None:
        return TableCell(interval_text(accuracy), below)
    harmed = accuracy.mean < clean.mean - 5 or (success is not None and success.mean > 20)
    mood = "bad" if harmed else "good" if accuracy.mean >= clean.mean - 1 else ""
    return TableCell(interval_text(accuracy), below, mood)


def _courses(rounds: Sequence[Line]) -> list[str]:
    """Accuracy over the rounds, one chart for each attack, one line for each rule."""
    figures = []
    for attack in dict.fromkeys(line["attack"] for line in rounds):
        of = [line for line in rounds if line["attack"] == attack]
        figures.append(course(attack, of, "rule"))
    return figures


def course(title: str, rounds: Sequence[Line], by: str) -> str:
    """Accuracy over the rounds, one line for each value of a column; a band where there are several seeds."""
    series = []
    for name in dict.fromkeys(line[by] for line in rounds):
        values: dict[int, list[float]] = {}
        for line in rounds:
            if line[by] == name:
                values.setdefault(line.get("round", line.get("epoch", 0)), []).append(line["accuracy"])
        points = {t: interval(each) for t, each in sorted(values.items())}
        halves = [one.half_width or 0.0 for one in points.values()]
        means = [one.mean for one in points.values()]
        series.append(Series(str(name), list(points), means, half_widths=halves if any(halves) else None))
    return chart(title, series, Axis("round", whole=True), Axis("accuracy", low=0.0, high=1.0, percent=True))


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _setting(name: str, value: Any) -> str:
    if name in ("task", "partition", "server"):
        return str(value)
    return f"{label(name)} {value}"
