"""Pictures of runs: accuracy, attack success and Byzantine weight over the rounds, rule beside rule."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from randeigen import plotting
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
    for name, (title, unit, of) in COURSES.items():
        lines = {without_digest(r.spec.rule): [of(metrics) for metrics in r.history] for r in records}
        lines = {rule: line for rule, line in lines.items() if any(value is not None for value in line)}
        path = Path(folder) / f"{name}.png"
        if not lines:
            path.unlink(missing_ok=True)  # an earlier run's would be mistaken for this one's
            continue
        spec = records[0].spec
        draw_lines(
            path,
            f"{title}: {_setting(records[0])}",
            unit,
            lines,
            "round",
            spec.rounds,
            attack_start=spec.calm,
        )
        paths.append(path)
    return paths


def draw_lines(
    path: Path,
    title: str,
    unit: str,
    lines: Mapping[str, Sequence[float | None]],
    along: str,
    last: int,
    *,
    attack_start: int = 0,
) -> None:
    """Shares over rounds or epochs, one line for each rule or defence."""
    figure = plotting.new_figure((7.2, 4.0))
    axes = figure.subplots()
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
        axes.annotate("attack begins", (attack_start + 0.7, 0.96), color="0.35", fontsize=9)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlim(0.5, last + 0.5)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(along)
    axes.set_ylabel(unit)
    plotting.quiet(axes)
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(frameon=False, loc="best", fontsize=10)
    plotting.save(figure, path)


def _setting(record: FederatedRecord) -> str:
    spec = record.spec
    mix = f", Dirichlet({spec.alpha:g})" if spec.partition == "dirichlet" else ""
    if spec.attack == "none":
        return f"{spec.task}, no attack, {spec.clients} clients{mix}"
    return f"{spec.task}, {without_digest(spec.attack)} by {100 * spec.eps:g}% of {spec.clients} clients{mix}"
