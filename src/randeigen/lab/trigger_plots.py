"""What an attack wants misread, on an axis: images without and with its trigger, or sentences."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from randeigen import plotting
from randeigen.errors import BadParameter
from randeigen.lab.federated import Federation
from randeigen.lab.sentence_plots import draw_sentences, triggered_sentences
from randeigen.registry import without_digest
from randeigen.types import Array

IMAGES_PER_TRIGGER = 3
GAP = 0.15  # between images, in their width
TITLE: dict[str, Any] = {"loc": "left", "fontsize": 11, "fontweight": "bold", "pad": 2 * plotting.TEXT}


class Column(NamedTuple):
    """Images one below the other, and their title."""

    title: str
    images: Sequence[Array]


def draw_trigger(axes: Any, federation: Federation) -> None:
    """Draw what an attack wants misread: images or sentences without its trigger and with it.

    Parameters:
        axes: matplotlib's.
        federation: `Federation.of(config)`, of a configuration whose attack has a target.

    Raises:
        BadParameter: the attack wants nothing misread.

    Examples:
        >>> from matplotlib.figure import Figure
        >>> from randeigen.lab import FederatedConfig, Federation, draw_trigger
        >>> axes = Figure().subplots()
        >>> draw_trigger(axes, Federation.of(FederatedConfig(attack="mra", clients=5)))
        >>> [text.get_text() for text in axes.texts]
        ['as it is', 'to be read as 0']
    """
    name = without_digest(federation.spec.attack)
    if sentences := triggered_sentences(federation):
        draw_sentences(axes, sentences)
    elif columns := trigger_columns(federation):
        _draw_columns(axes, columns, max(len(column.images) for column in columns))
    else:
        raise BadParameter(
            f"attack {name!r} wants nothing misread; choose one with a target, as `randeigen attacks` says."
        )
    axes.set_title(name, **TITLE)


def save_trigger(path: Path, federation: Federation) -> bool:
    """Write a picture of `draw_trigger`; False where there is nothing to draw."""
    if sentences := triggered_sentences(federation):
        figure = plotting.new_figure((9.6, 0.5 + 0.62 * len(sentences)), dpi=96)
        draw_trigger(figure.subplots(), federation)
        plotting.save(figure, path)
    elif columns := trigger_columns(federation):
        draw_triggers(path, {without_digest(federation.spec.attack): columns})
    else:
        return False
    return True


def trigger_columns(federation: Federation) -> list[Column]:
    """The images that an attack wants misread: test images without and with its trigger, or its own ones."""
    if "asr" not in federation.success_sets or federation.task.text is not None:
        return []
    images, targets = federation.success_sets["asr"]
    others = federation.test.images[federation.test.labels != targets[0]]
    if len(others) != len(images):
        # Not the test set with a trigger on it: single images, each with its label.
        pairs = zip(images, targets.tolist(), strict=True)
        return [Column(f"as {label}", [image[0].cpu().numpy()]) for image, label in pairs]
    columns = {"as it is": others}
    for name, (stamped, _) in federation.success_sets.items():
        if len(stamped) == len(others):
            columns["" if name == "asr" else name] = stamped
    columns[f"to be read as {int(targets[0])}"] = columns.pop("")
    return [
        Column(name, [image[0].cpu().numpy() for image in stack[:IMAGES_PER_TRIGGER]])
        for name, stack in columns.items()
    ]


def draw_triggers(path: str | os.PathLike[str], triggers: dict[str, list[Column]]) -> None:
    """Images in columns, one attack beside the other where they fit."""
    lines = _packed(triggers)
    tall = [max(len(column.images) for name in line for column in triggers[name]) for line in lines]
    wide = max(sum(len(triggers[name]) for name in line) for line in lines)
    heights = [1.1 * rows + 0.5 for rows in tall]
    figure = plotting.new_figure((1.25 * wide, sum(heights)), dpi=96)  # a point of text: 4/3 pixels
    bands = figure.subfigures(len(lines), 1, height_ratios=heights, squeeze=False)[:, 0]
    for band, rows, line in zip(bands, tall, lines, strict=True):
        widths = [len(triggers[name]) for name in line]
        spare = [wide - sum(widths)] if sum(widths) < wide else []
        parts = band.subfigures(1, len(line) + len(spare), width_ratios=[*widths, *spare], squeeze=False)[0]
        for part, name in zip(parts, line, strict=False):
            axes = part.subplots()
            _draw_columns(axes, triggers[name], rows)
            axes.set_title(name, **TITLE)
    plotting.save(figure, path)


def _packed(triggers: dict[str, list[Column]]) -> list[list[str]]:
    """Names line by line; no line is wider than the widest attack."""
    widest = max(len(columns) for columns in triggers.values())
    lines: list[list[str]] = [[]]
    for name in triggers:
        if sum(len(triggers[other]) for other in [*lines[-1], name]) > widest:
            lines.append([])
        lines[-1].append(name)
    return [line for line in lines if line]


def _draw_columns(axes: Any, columns: Sequence[Column], rows: int) -> None:
    """Columns of images of one size as one image, with room for so many rows."""
    height, width = columns[0].images[0].shape
    gap = max(1, round(GAP * width))
    sheet = np.full((rows * (height + gap), len(columns) * (width + gap) - gap), np.nan)  # NaN: nothing there
    for right, column in enumerate(columns):
        left = right * (width + gap)
        for below, image in enumerate(column.images):
            top = below * (height + gap)
            sheet[top : top + height, left : left + width] = image
        above = {"textcoords": "offset points", "ha": "center", "va": "bottom", "fontsize": plotting.TEXT}
        axes.annotate(column.title, (left + width / 2, -0.5), (0, 3), **above)
    axes.imshow(sheet, cmap="gray", interpolation="nearest")
    axes.set_anchor("NW")
    axes.set_axis_off()
