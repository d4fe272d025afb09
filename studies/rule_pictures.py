"""The rules side by side: how far off on average and at worst, and under which attack."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from randeigen import plotting
from randeigen.cli.rule_listing import by_worst
from randeigen.lab.rule_study import DEFAULT, assumption_of

WORST, MEAN = "#D55E00", "#0072B2"
COLOUR_LIMITS = (0.1, 10.0)  # relative bias, blue below 1, red above
UNITS = (
    "bias / sqrt(eps/(1−eps)·‖Σ_S‖)\n"
    "1: what Byzantine rows within the honest spread can do\n"
    "† given what nobody knows"
)


def draw_results(path: str | os.PathLike[str], results: Sequence[Mapping[str, Any]], title: str) -> None:
    """Left: mean and worst relative bias of every rule. Right: the worst under each attack."""
    ordered = by_worst(results)
    attacks = list(ordered[0]["by_attack"])
    size = (6.5 + 0.42 * len(attacks), 2.2 + 0.3 * len(ordered))
    figure = plotting.new_figure(size, dpi=130)
    dots, heat = figure.subplots(1, 2, width_ratios=(5, 0.45 * len(attacks)), sharey=True)
    _dots(dots, ordered)
    _heat(figure, heat, ordered, attacks)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13)
    plotting.save(figure, path)


def _dots(axes: Any, ordered: Sequence[Mapping[str, Any]]) -> None:
    positions = np.arange(len(ordered))
    worst, mean = ([one[key] for one in ordered] for key in ("worst", "mean_relative"))
    axes.hlines(positions, mean, worst, color="0.75", linewidth=1.5, zorder=1)
    hollow = {"facecolors": "white", "edgecolors": MEAN, "linewidths": 1.6}
    axes.scatter(mean, positions, s=34, label="mean", zorder=3, **hollow)
    axes.scatter(worst, positions, s=34, marker="D", c=WORST, label="worst", zorder=3)
    beside = {"textcoords": "offset points", "va": "center", "fontsize": 7.5}
    for position, value in zip(positions, worst, strict=True):
        axes.annotate(_short(value, 2), (value, position), (7, 0), **beside)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlim(min(mean) / 1.4, max(worst) * 2.4)
    axes.axvline(1, color="0.4", linewidth=1, linestyle=":", zorder=0)
    axes.set_yticks(positions, [_label(one) for one in ordered], fontsize=8.5)
    for tick, one in zip(axes.get_yticklabels(), ordered, strict=True):
        tick.set_fontweight("bold" if one["rule"] == DEFAULT else "normal")
    axes.invert_yaxis()
    axes.grid(axis="x", color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}
    axes.legend(ncols=2, frameon=False, fontsize=9, **above)
    axes.set_xlabel(UNITS, fontsize=9)


def _heat(figure: Any, axes: Any, ordered: Sequence[Mapping[str, Any]], attacks: Sequence[str]) -> None:
    from matplotlib.colors import LogNorm

    values = np.array([[one["by_attack"].get(attack, np.nan) for attack in attacks] for one in ordered])
    image = axes.imshow(
        np.clip(values, *COLOUR_LIMITS), norm=LogNorm(*COLOUR_LIMITS), cmap="RdBu_r", aspect="auto"
    )
    for (line, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            colour = "black" if 0.2 < value < 5 else "white"
            axes.text(column, line, _short(value), ha="center", va="center", fontsize=7, color=colour)
    turned = {"rotation": 55, "ha": "right", "rotation_mode": "anchor", "fontsize": 8.5}
    axes.set_xticks(range(len(attacks)), attacks, **turned)
    axes.tick_params(length=0, labelleft=False)
    axes.spines[:].set_visible(False)
    axes.set_title("worst over clouds, eps and seeds, by attack", loc="left", fontsize=10)
    bar = figure.colorbar(image, ax=axes, fraction=0.02, pad=0.01, extend="both")
    bar.outline.set_visible(False)
    ticks = (0.1, 0.3, 1, 3, 10)
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    bar.ax.minorticks_off()


def _short(value: float, digits: int = 1) -> str:
    """As few characters as will do."""
    if value < 9.95:
        return f"{value:.{digits}f}" if value >= 0.05 else "0"
    return f"{value:.0f}" if value < 999.5 else f"{value / 1000:.1f}k"


def _label(one: Mapping[str, Any]) -> str:
    return f"{one['rule']}{' †' if assumption_of(one['rule']) else ''}"
