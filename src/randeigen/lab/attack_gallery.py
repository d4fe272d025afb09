"""Every attack in pictures: its trigger, and its updates among the honest ones."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import randeigen
from randeigen import plotting
from randeigen.attacks import ATTACKS
from randeigen.certificate import outcomes_of
from randeigen.lab import FederatedConfig, Federation
from randeigen.lab.trigger_plots import Column, draw_triggers, save_trigger, trigger_columns
from randeigen.principal_plane import PrincipalPlane
from randeigen.types import Array, Mask, Weights

HONEST_ROUNDS = 8  # before the attack: the model is about 85% accurate, and honest updates are still large
PANELS_ACROSS = 4  # on the sheet of all attacks


class AttackedRound(NamedTuple):
    """The updates of one round under attack, and the weights that RandEigen gives them."""

    rows: Array
    weights: Weights
    corrupt: Mask


def draw_gallery(
    folder: str | os.PathLike[str],
    names: Sequence[str] = tuple(ATTACKS),
    progress: Callable[[str], None] = print,
) -> list[Path]:
    """Draw the updates of each attack and its trigger; clients.png and triggers.png show all.

    `progress` is called with what is drawn next.
    """
    into = Path(folder)
    into.mkdir(parents=True, exist_ok=True)
    trained: dict[str, Any] = {}  # the weights after some rounds without attack, by task
    rounds: dict[str, AttackedRound] = {}
    triggers: dict[str, list[Column]] = {}
    paths = []
    for name in names:
        spec = _setting(name)
        if spec.task not in trained:
            progress(f"training without attack on {spec.task}")
            trained[spec.task] = _honest_weights(spec)
        progress(name)
        federation = Federation.of(spec)
        one = rounds[name] = _attacked_round(federation, trained[spec.task])
        paths.append(into / f"{name}-clients.png")
        means = {"plain mean": one.rows.mean(axis=0), "randeigen": one.weights @ one.rows}
        title = f"{name}: {ATTACKS[name].does}"
        plotting.draw_clients(paths[-1], one.rows, one.weights, corrupt=one.corrupt, marks=means, title=title)
        if columns := trigger_columns(federation):
            triggers[name] = columns
        if save_trigger(into / f"{name}-trigger.png", federation):
            paths.append(into / f"{name}-trigger.png")
    paths.append(into / "clients.png")
    draw_rounds(paths[-1], rounds)
    if triggers:
        paths.append(into / "triggers.png")
        draw_triggers(paths[-1], triggers)
    return paths


def _setting(attack: str) -> FederatedConfig:
    """The federation in which an attack is drawn: of digits, or of sentences where it needs words."""
    if ATTACKS[attack].inputs == "tokens":
        return FederatedConfig(task="sst2-tiny", attack=attack, clients=20)
    return FederatedConfig(attack=attack)


def _honest_weights(spec: FederatedConfig) -> Any:
    honest = Federation.of(replace(spec, attack="none", rule="mean"))
    weights = honest.info.initial_weights
    for t in range(1, HONEST_ROUNDS + 1):
        weights, _, _ = honest.round(t, weights, {})
    return weights


def draw_rounds(path: str | os.PathLike[str], rounds: dict[str, AttackedRound]) -> None:
    """All attacks on one sheet, each in the plane of the top two directions of its own round."""
    down = math.ceil(len(rounds) / PANELS_ACROSS)
    figure = plotting.new_figure((2.6 * PANELS_ACROSS, 2.15 * down + 0.6), dpi=100)
    panels = figure.subplots(down, PANELS_ACROSS, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    legend: dict[str, Any] = {}
    for axes, (name, one) in zip(panels.flat, rounds.items(), strict=False):
        axes.set_axis_on()
        plane = PrincipalPlane.of(one.rows)
        marks = plotting.scatter(
            axes, plane.points, outcomes_of(one.weights), one.corrupt, size=26, numbered=3
        )
        legend |= {text.partition(" (")[0]: mark for text, mark in marks.items()}
        centre = plane.project(one.rows.mean(axis=0))
        star = {"s": 60, "marker": "P", "c": plotting.ANSWER, "edgecolors": "white", "zorder": 5}
        legend["plain mean"] = axes.scatter(*centre, **star)
        axes.set_title(f"{name} ({ATTACKS[name].goal})", loc="left", fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.margins(0.12)
    order = sorted(legend, reverse=True)
    style = {"loc": "outside lower left", "ncols": 4, "frameon": False, "fontsize": 9}
    figure.legend([legend[text] for text in order], order, **style)
    plotting.save(figure, path)


def _attacked_round(federation: Federation, weights: Any) -> AttackedRound:
    t = HONEST_ROUNDS + 1
    participants, m = federation.participants(t)
    rows = federation.rows(t, weights, participants, m)
    result = randeigen.aggregate(rows, rule=federation.rule, seed=0)
    return AttackedRound(rows.double().cpu().numpy(), result.weights, np.arange(len(rows)) < m)
