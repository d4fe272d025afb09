"""Pictures of training on poisoned data: metrics over the epochs, and gradients on their top direction."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from randeigen import plotting
from randeigen.lab.centralized import Projection
from randeigen.lab.config import CentralizedConfig
from randeigen.lab.plots import draw_lines
from randeigen.lab.results import CentralizedRecord, EpochMetrics
from randeigen.registry import without_digest

BINS = 40
COURSES: Mapping[str, tuple[str, str, Callable[[EpochMetrics], float | None]]] = {
    "accuracy": ("accuracy", "correct test images", lambda metrics: metrics.accuracy),
    "asr": ("attack success", "images misread as the attacker wants", lambda metrics: metrics.asr),
    "weight": ("weight of the poison", "beside an honest example's", lambda metrics: metrics.weight_poison),
}


def draw_training(folder: str | os.PathLike[str], records: Sequence[CentralizedRecord]) -> list[Path]:
    """Draw accuracy.png, and where they have a meaning asr.png and weight.png; their paths."""
    paths, spec = [], records[0].spec
    for name, (title, unit, of) in COURSES.items():
        lines: dict[str, list[float | None]] = {
            r.spec.defence: [of(metrics) for metrics in r.history] for r in records
        }
        path = Path(folder) / f"{name}.png"
        if all(value is None for line in lines.values() for value in line):
            path.unlink(missing_ok=True)  # an earlier run's would be mistaken for this one's
            continue
        figure = plotting.new_figure((plotting.WIDTH, 3.2))
        heading = f"{title}: {_setting(spec)}"
        draw_lines(figure.subplots(), heading, unit, lines, "epoch", len(records[0].history))
        plotting.save(figure, path)
        paths.append(path)
    return paths


def draw_projection(path: str | os.PathLike[str], gradients: Projection, spec: CentralizedConfig) -> None:
    """Write a picture of `draw_gradients`."""
    figure = plotting.new_figure((plotting.WIDTH, 3.4))
    axes = figure.subplots()
    draw_gradients(axes, gradients)
    title = f"label {gradients.label} after epoch {gradients.epoch}: {_setting(spec)}, {spec.defence}"
    title = textwrap.fill(title, plotting.TITLE_CHARACTERS)
    axes.set_title(title, loc="left", fontsize=plotting.TEXT)
    plotting.save(figure, path)


def draw_gradients(axes: Any, gradients: Projection) -> None:
    """Draw a histogram of gradients projected on their label's top direction (the paper's last figure).

    Parameters:
        axes: matplotlib's.
        gradients: what `look` of `train` is called with.

    Raises:
        ValueError: there is no gradient.

    Examples:
        >>> import numpy as np
        >>> from matplotlib.figure import Figure
        >>> from randeigen.lab import draw_gradients
        >>> from randeigen.lab.centralized import Projection
        >>> axes = Figure().subplots()
        >>> draw_gradients(axes, Projection(1, 3, np.array([-1.0, 0.0, 2.0]), np.array([False, False, True])))
        >>> [text.get_text() for text in axes.get_legend().get_texts()]
        ['honest (2)', 'poison (1)']
    """
    edges = np.linspace(gradients.projections.min(), gradients.projections.max(), BINS + 1)
    kinds = (
        ("honest", ~gradients.poison, plotting.HONEST, "/"),
        ("poison", gradients.poison, plotting.CORRUPT, "\\"),
    )
    for name, mask, colour, hatch in kinds:
        if mask.any():
            look = {"color": colour, "alpha": 0.65, "hatch": hatch, "edgecolor": "white"}
            axes.hist(gradients.projections[mask], edges, label=f"{name} ({mask.sum()})", **look)
    axes.set_xlabel("projection on the gradients' top direction", fontsize=plotting.TEXT)
    axes.set_ylabel("examples", fontsize=plotting.TEXT)
    plotting.quiet(axes)
    axes.legend(frameon=False, fontsize=plotting.TEXT)


def _setting(spec: CentralizedConfig) -> str:
    attack = "no attack" if spec.attack == "none" else without_digest(spec.attack)
    return f"{spec.task}, {attack}, eps {spec.eps:g}"
