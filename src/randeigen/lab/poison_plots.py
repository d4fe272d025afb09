"""Pictures of training on poisoned data: the course of it, and where the poison stands among gradients."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from randeigen import plotting
from randeigen.lab.centralized import Projection
from randeigen.lab.config import CentralizedConfig
from randeigen.lab.plots import draw_lines
from randeigen.lab.results import CentralizedRecord, EpochMetrics

BINS = 40
COURSES: Mapping[str, tuple[str, str, Callable[[EpochMetrics], float | None]]] = {
    "accuracy": ("accuracy", "correct test images", lambda seen: seen.accuracy),
    "asr": ("attack success", "images misread as the attacker wants", lambda seen: seen.asr),
    "weight": ("weight of the poison", "beside an honest example's", lambda seen: seen.weight_poison),
}


def draw_training(folder: str | os.PathLike[str], records: Sequence[CentralizedRecord]) -> list[Path]:
    """accuracy.png, and where they have a meaning asr.png and weight.png; their paths."""
    drawn, spec = [], records[0].spec
    for name, (title, unit, of) in COURSES.items():
        lines = {r.spec.defence: [of(seen) for seen in r.history] for r in records}
        path = Path(folder) / f"{name}.png"
        if all(value is None for line in lines.values() for value in line):
            path.unlink(missing_ok=True)  # of an earlier run: it would be taken for this one's
            continue
        draw_lines(path, f"{title}: {_told(spec)}", unit, lines, "epoch", len(records[0].history))
        drawn.append(path)
    return drawn


def draw_projection(path: str | os.PathLike[str], seen: Projection, spec: CentralizedConfig) -> None:
    """A histogram of gradients' places on the widest direction of their label (the paper's last figure)."""
    figure = plotting.new_figure((7.2, 4.0))
    axes = figure.subplots()
    edges = np.linspace(seen.places.min(), seen.places.max(), BINS + 1)
    kinds = (
        ("honest", ~seen.poison, plotting.HONEST, "/"),
        ("poison", seen.poison, plotting.CORRUPT, "\\"),
    )
    for name, mask, colour, hatch in kinds:
        if mask.any():
            look = {"color": colour, "alpha": 0.65, "hatch": hatch, "edgecolor": "white"}
            axes.hist(seen.places[mask], edges, label=f"{name} ({mask.sum()})", **look)
    axes.set_xlabel("place on the widest direction of the gradients, all of length 1")
    axes.set_ylabel("examples")
    plotting.quiet(axes)
    axes.set_title(
        f"label {seen.label} after epoch {seen.epoch}: {_told(spec)}, {spec.defence}", loc="left", fontsize=11
    )
    axes.legend(frameon=False, fontsize=10)
    plotting.save(figure, path)


def _told(spec: CentralizedConfig) -> str:
    attack = "no attack" if spec.attack == "none" else spec.attack
    return f"{spec.task}, {attack}, eps {spec.eps:g}"
