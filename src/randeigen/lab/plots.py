"""Pictures of runs: accuracy, attack success and Byzantine weight over the rounds, rule beside rule."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from randeigen import plotting
from randeigen.errors import BadParameter
from randeigen.lab.results import FederatedRecord, RoundMetrics
from randeigen.registry import without_digest

# Okabe and Ito's palette: distinct with any common colour blindness; dashes differ too.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)))
MARKS = ("o", "s", "^", "D", "v", "P", "X")
MARKS_PER_LINE = 10

Course = tuple[str, str, Callable[[RoundMetrics], float | None]]  # title, unit, value of a round
COURSES: Mapping[str, Course] = {
    "accuracy": ("accuracy", "correct in the test set", lambda metrics: metrics.accuracy),
    "asr": ("attack success", "misread as the attackers want", lambda metrics: metrics.asr),
    "weight": (
        "weight given to attackers",
        "share of the aggregate",
        lambda metrics: metrics.weight_corrupt if metrics.liars else None,
    ),
}


def draw_runs(folder: str | os.PathLike[str], records: Sequence[FederatedRecord]) -> list[Path]:
    """Draw accuracy.png, and where they have a meaning asr.png and weight.png; their paths."""
    paths = []
    for name, (_, _, of) in COURSES.items():
        path = Path(folder) / f"{name}.png"
        if all(of(metrics) is None for record in records for metrics in record.history):
            path.unlink(missing_ok=True)  # an earlier run's would be mistaken for this one's
            continue
        figure = plotting.new_figure((plotting.WIDTH, 3.2))
        draw_course(figure.subplots(), records, name)
        plotting.save(figure, path)
        paths.append(path)
    return paths


def draw_course(axes: Any, records: Sequence[FederatedRecord], course: str = "accuracy") -> None:
    """Draw the course of some runs over their rounds, one line for each.

    Parameters:
        axes: matplotlib's.
        records: of federations that differ in their rule.
        course: "accuracy", "asr" (attack success) or "weight" (the share of the aggregate that came from
            Byzantine clients).

    Raises:
        BadParameter: there is no such course, or no record.

    Examples:
        >>> from matplotlib.figure import Figure
        >>> from randeigen.lab import FederatedConfig, draw_course, run
        >>> small = {"clients": 5, "rounds": 2, "epochs": 1}
        >>> runs = [run(FederatedConfig(rule=rule, **small)) for rule in ("mean", "krum")]
        >>> axes = Figure().subplots()
        >>> draw_course(axes, runs)
        >>> [line.get_label() for line in axes.get_lines()]
        ['mean', 'krum']
    """
    if course not in COURSES or not records:
        known = ", ".join(COURSES)
        raise BadParameter(
            f"course={course!r} of {len(records)} records; choose one of {known}, and give records."
        )
    title, unit, of = COURSES[course]
    lines = {without_digest(r.spec.rule): [of(metrics) for metrics in r.history] for r in records}
    lines = {rule: line for rule, line in lines.items() if any(value is not None for value in line)}
    spec, heading = records[0].spec, f"{title}: {_setting(records[0])}"
    draw_lines(axes, heading, unit, lines, "round", spec.rounds, attack_start=spec.calm)


def draw_lines(
    axes: Any,
    title: str,
    unit: str,
    lines: Mapping[str, Sequence[float | None]],
    along: str,
    last: int,
    *,
    attack_start: int = 0,
) -> None:
    """Draw shares over rounds or epochs, one line for each rule or defence."""
    for index, (rule, values) in enumerate(lines.items()):
        look = index % len(COLOURS)
        rounds = [t for t, value in enumerate(values, 1) if value is not None]
        style = {"color": COLOURS[look], "linestyle": DASHES[look], "marker": MARKS[look]}
        every = max(1, len(rounds) // MARKS_PER_LINE)
        axes.plot(
            *(rounds, [value for value in values if value is not None]),
            **style,
            label=rule,
            linewidth=2,
            markersize=5,
            markevery=every,
        )
    if attack_start:
        axes.axvline(attack_start + 0.5, color="0.5", linewidth=1)
        axes.annotate("attack begins", (attack_start + 0.7, 0.96), color="0.35", fontsize=plotting.TEXT)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlim(0.5, last + 0.5)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(along, fontsize=plotting.TEXT)
    axes.set_ylabel(unit, fontsize=plotting.TEXT)
    plotting.quiet(axes)
    title = textwrap.fill(title, plotting.TITLE_CHARACTERS)
    axes.set_title(title, loc="left", fontsize=plotting.TEXT)
    if lines:
        axes.legend(frameon=False, loc="best", fontsize=plotting.TEXT)


def _setting(record: FederatedRecord) -> str:
    spec = record.spec
    mix = f", Dirichlet({spec.alpha:g})" if spec.partition == "dirichlet" else ""
    if spec.attack == "none":
        return f"{spec.task}, no attack, {spec.clients} clients{mix}"
    return f"{spec.task}, {without_digest(spec.attack)} by {100 * spec.eps:g}% of {spec.clients} clients{mix}"
