"""Pictures of runs: how accuracy, attack success and the weight of liars went, rule beside rule."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from randeigen.errors import MissingExtra
from randeigen.learn.records import Moment, Record
from randeigen.rows.save import replacing

# Okabe and Ito's palette: told apart with any common colour blindness, and by dashes without colour.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)))
MARKS = ("o", "s", "^", "D", "v", "P", "X")
MARKED = 10  # marks on a line

Course = tuple[str, str, Callable[[Moment], float | None]]
COURSES: Mapping[str, Course] = {
    "accuracy": ("accuracy", "correct test images", lambda moment: moment.accuracy),
    "asr": ("attack success", "images misread as the attacker wants", lambda moment: moment.asr),
    "weight": ("weight given to attackers", "share of the aggregate", lambda moment: moment.weight_corrupt),
}


def draw_runs(folder: str | os.PathLike[str], records: Sequence[Record]) -> list[Path]:
    """accuracy.png, asr.png (where there is a success to speak of) and weight.png; their paths."""
    drawn = []
    for name, (title, unit, of) in COURSES.items():
        lines = {r.spec.rule: [of(moment) for moment in r.history] for r in records}
        if all(value is None for line in lines.values() for value in line):
            continue
        path = Path(folder) / f"{name}.png"
        _draw(path, f"{title}: {_told(records[0])}", unit, lines, records[0])
        drawn.append(path)
    return drawn


def draw_triggers(path: str | os.PathLike[str], pairs: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> None:
    """Images before and after an attacker's stamp, side by side."""
    figure = _figure((1.5 * len(pairs), 3.2))
    grid = figure.subplots(2, len(pairs), squeeze=False)
    for column, pair in enumerate(pairs):
        for axes, image in zip(grid[:, column], pair, strict=True):
            axes.imshow(image, cmap="gray", vmin=min(i.min() for i in pair), vmax=max(i.max() for i in pair))
            axes.set_xticks([])
            axes.set_yticks([])
    grid[0, 0].set_ylabel("as it is")
    grid[1, 0].set_ylabel("as attacked")
    _save(figure, path)


def _draw(
    path: Path, title: str, unit: str, lines: Mapping[str, Sequence[float | None]], record: Record
) -> None:
    figure = _figure((7.2, 4.0))
    axes = figure.subplots()
    for place, (rule, values) in enumerate(lines.items()):
        look = place % len(COLOURS)
        rounds = [t for t, value in enumerate(values, 1) if value is not None]
        style = {"color": COLOURS[look], "linestyle": DASHES[look], "marker": MARKS[look]}
        every = max(1, len(rounds) // MARKED)
        axes.plot(
            *(rounds, [value for value in values if value is not None]),
            **style,
            label=rule,
            linewidth=2,
            markersize=5,
            markevery=every,
        )
    if record.spec.calm:
        axes.axvline(record.spec.calm + 0.5, color="0.5", linewidth=1)
        axes.annotate("attack begins", (record.spec.calm + 0.7, 0.96), color="0.35", fontsize=9)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlim(0.5, record.spec.rounds + 0.5)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("round")
    axes.set_ylabel(unit)
    axes.grid(color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(frameon=False, loc="best", fontsize=10)
    _save(figure, path)


def _told(record: Record) -> str:
    spec = record.spec
    mix = f", Dirichlet({spec.alpha:g})" if spec.partition == "dirichlet" else ""
    return f"{spec.task}, {spec.attack} by {100 * spec.eps:g}% of {spec.clients} clients{mix}"


def _figure(size: tuple[float, float]) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("pictures need matplotlib: pip install 'randeigen[plot]'") from None
    return Figure(figsize=size, dpi=150, layout="constrained")


def _save(figure: Any, path: str | os.PathLike[str]) -> None:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    with replacing(path) as file:
        file.write(drawn.getvalue())
