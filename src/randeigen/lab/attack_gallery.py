"""Every attack in pictures: what it stamps on images, and where its clients stand among the honest ones."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import randeigen
from randeigen import plotting
from randeigen.attacks.catalogue import ATTACKS
from randeigen.lab import FederatedConfig, Federation
from randeigen.outcomes import outcomes_of
from randeigen.types import Array, Mask, Weights

CALM = 8  # rounds in peace before anybody lies: the model is about 85% right, and honest updates are long
ROWS = 3  # images shown of every trigger
ACROSS = 4  # panels beside each other on the sheet of all attacks


class Stand(NamedTuple):
    """Where the clients of one round stand, and what RandEigen made of them."""

    rows: Array
    weights: Weights
    corrupt: Mask


class Column(NamedTuple):
    """Images under one another, and what they are."""

    title: str
    images: Sequence[Array]


def draw_gallery(
    folder: str | os.PathLike[str], names: Sequence[str] = tuple(ATTACKS), say: Callable[[str], None] = print
) -> list[Path]:
    """Where the clients of each attack stand and what it stamps; clients.png and triggers.png show all."""
    into = Path(folder)
    into.mkdir(parents=True, exist_ok=True)
    say("training in peace")
    calm = Federation.of(FederatedConfig(rule="mean"), None, None, None, None, "cpu")
    weights = calm.scene.first
    for t in range(1, CALM + 1):
        weights, _, _ = calm.round(t, weights, {})
    stands: dict[str, Stand] = {}
    triggers: dict[str, list[Column]] = {}
    drawn = []
    for name in names:
        say(name)
        lab = Federation.of(FederatedConfig(attack=name), None, None, None, None, "cpu")
        stand = stands[name] = _stand(lab, weights)
        drawn.append(into / f"{name}-clients.png")
        means = {"plain mean": stand.rows.mean(axis=0), "randeigen": stand.weights @ stand.rows}
        title = f"{name}: {ATTACKS[name].does}"
        plotting.draw_clients(
            drawn[-1], stand.rows, stand.weights, corrupt=stand.corrupt, marks=means, title=title
        )
        if columns := shown(lab):
            triggers[name] = columns
            drawn.append(into / f"{name}-trigger.png")
            draw_triggers(drawn[-1], {name: columns})
    drawn.append(into / "clients.png")
    draw_stands(drawn[-1], stands)
    if triggers:
        drawn.append(into / "triggers.png")
        draw_triggers(drawn[-1], triggers)
    return drawn


def shown(lab: Federation) -> list[Column]:
    """What an attack wants misread: test images as they are and as it shows them; or its own, one by one."""
    if "asr" not in lab.success_sets:
        return []
    images, wanted = lab.success_sets["asr"]
    others = lab.test.images[lab.test.labels != wanted[0]]
    if len(others) != len(images):  # not the test set with a stamp on it: chosen images, each with its label
        chosen = zip(images, wanted.tolist(), strict=True)
        return [Column(f"as {label}", [image[0].cpu().numpy()]) for image, label in chosen]
    columns = {"as it is": others}
    for name, (stamped, _) in lab.success_sets.items():
        if len(stamped) == len(others):
            columns["" if name == "asr" else name] = stamped
    columns[f"to be read as {int(wanted[0])}"] = columns.pop("")
    return [Column(name, [image[0].cpu().numpy() for image in some[:ROWS]]) for name, some in columns.items()]


def draw_triggers(path: str | os.PathLike[str], triggers: dict[str, list[Column]]) -> None:
    """Images in columns, attack beside attack as far as they fit."""
    lines = _packed(triggers)
    tall = [max(len(column.images) for name in line for column in triggers[name]) for line in lines]
    wide = max(sum(len(triggers[name]) for name in line) for line in lines)
    heights = [1.1 * rows + 0.5 for rows in tall]
    figure = plotting.new_figure((1.15 * wide, sum(heights)), dpi=120)
    bands = figure.subfigures(len(lines), 1, height_ratios=heights, squeeze=False)[:, 0]
    for band, rows, line in zip(bands, tall, lines, strict=True):
        widths = [len(triggers[name]) for name in line]
        spare = [wide - sum(widths)] if sum(widths) < wide else []
        parts = band.subfigures(1, len(line) + len(spare), width_ratios=[*widths, *spare], squeeze=False)[0]
        for part, name in zip(parts, line, strict=False):
            part.suptitle(name, x=0.02, ha="left", fontsize=11, fontweight="bold")
            _columns(part.subplots(rows, len(triggers[name]), squeeze=False), triggers[name])
    plotting.save(figure, path)


def _packed(triggers: dict[str, list[Column]]) -> list[list[str]]:
    """Names line by line, each as wide as the widest of them at most."""
    widest = max(len(columns) for columns in triggers.values())
    lines: list[list[str]] = [[]]
    for name in triggers:
        if sum(len(triggers[other]) for other in [*lines[-1], name]) > widest:
            lines.append([])
        lines[-1].append(name)
    return [line for line in lines if line]


def _columns(grid: Any, columns: Sequence[Column]) -> None:
    low = min(float(image.min()) for column in columns for image in column.images)
    high = max(float(image.max()) for column in columns for image in column.images)
    for axes in grid.flat:
        axes.set_axis_off()
    for place, column in enumerate(columns):
        grid[0, place].set_title(column.title, fontsize=9)
        for axes, image in zip(grid[:, place], column.images, strict=False):
            axes.imshow(image, cmap="gray", vmin=low, vmax=high)


def draw_stands(path: str | os.PathLike[str], stands: dict[str, Stand]) -> None:
    """All attacks on one sheet, each in the plane of the two widest directions of its own round."""
    down = math.ceil(len(stands) / ACROSS)
    figure = plotting.new_figure((2.6 * ACROSS, 2.15 * down + 0.6), dpi=100)
    panels = figure.subplots(down, ACROSS, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    legend: dict[str, Any] = {}
    for axes, (name, stand) in zip(panels.flat, stands.items(), strict=False):
        axes.set_axis_on()
        points, origin, directions = plotting.plane(stand.rows)
        marks = plotting.scatter(axes, points, outcomes_of(stand.weights), stand.corrupt, size=26)
        legend |= {text.partition(" (")[0]: mark for text, mark in marks.items()}
        liars = points[stand.corrupt]
        if len(liars) > 1 and np.ptp(liars, axis=0).max() < 1e-3 * np.ptp(points, axis=0).max():
            inward = "right" if liars[0, 0] > 0 else "left"  # the origin is the mean of all
            beside = {"textcoords": "offset points", "fontsize": 9, "color": plotting.CORRUPT, "ha": inward}
            axes.annotate(f"{len(liars)} alike", liars[0], (0, -16), **beside, zorder=6)
        centre = (stand.rows.mean(axis=0) - origin) @ directions
        star = {"s": 60, "marker": "P", "c": plotting.ANSWER, "edgecolors": "white", "zorder": 5}
        legend["plain mean"] = axes.scatter(*centre, **star)
        axes.set_title(f"{name} ({ATTACKS[name].goal})", loc="left", fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.margins(0.12)
    order = sorted(legend, reverse=True)
    place = {"loc": "outside lower left", "ncols": 4, "frameon": False, "fontsize": 9}
    figure.legend([legend[text] for text in order], order, **place)
    plotting.save(figure, path)


def _stand(lab: Federation, weights: Any) -> Stand:
    t = CALM + 1
    chosen, m = lab.who(t)
    rows = lab.rows(t, weights, chosen, m)
    judged = randeigen.aggregate(rows, rule=lab.rule, seed=0)
    return Stand(rows.double().cpu().numpy(), judged.weights, np.arange(len(rows)) < m)
