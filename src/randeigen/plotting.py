"""Pictures of a verdict. matplotlib is imported when one is drawn, never before."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randeigen.errors import BadRows, MissingExtra
from randeigen.rows.write import replacing
from randeigen.types import Array, Mask, Weights

# Okabe and Ito's palette: told apart with any common colour blindness, and by shape without colour.
HONEST, CORRUPT, ANSWER = "#0072B2", "#D55E00", "#000000"
STARS = ("*", "P", "X", "D")
NOTHING = 0.01  # of an even share: a row with less than this has no say, and is called left out
HALF = 0.5  # of an even share: a row with less than this is called down-weighted
KEPT, LESS, OUT = "kept", "down-weighted", "left out"


def fate(share: float) -> str:
    """What became of a row that has this many even shares of the weight."""
    return OUT if share < NOTHING else LESS if share < HALF else KEPT


def fates(weights: Weights) -> NDArray[np.str_]:
    """What became of each row."""
    share = np.asarray(weights, dtype=np.float64) * len(weights)
    return np.array([fate(one) for one in share.tolist()])


def plane(rows: ArrayLike) -> tuple[Array, Array, Array]:
    """The plane of the two widest directions: (n, 2) coordinates, its origin (d,), its axes (d, 2)."""
    wide = np.asarray(rows, dtype=np.float64)
    if wide.ndim != 2 or wide.shape[0] < 2 or not np.isfinite(wide).all():
        raise BadRows(f"a picture needs two or more finite rows of one length, found shape {wide.shape}.")
    origin = wide.mean(axis=0)
    centred = wide - origin
    values, vectors = np.linalg.eigh(centred @ centred.T)
    lengths = np.sqrt(np.maximum(values[:-3:-1], np.finfo(float).tiny))
    directions = (centred.T @ vectors[:, :-3:-1]) / lengths
    return centred @ directions, origin, directions


def draw_clients(
    path: str | os.PathLike[str],
    rows: ArrayLike,
    weights: Weights,
    *,
    corrupt: Mask | None = None,
    marks: Mapping[str, ArrayLike] | None = None,
    title: str = "What was left out",
) -> None:
    """Rows in the plane of their two widest directions: hollow if down-weighted, crossed if left out.

    `corrupt` says who lied, where that is known; `marks` are further points of d numbers, such as means.
    """
    points, origin, directions = plane(rows)
    became = fates(weights)
    stars = {name: (np.asarray(mark) - origin) @ directions for name, mark in (marks or {}).items()}

    # Where all are kept, or none, there is nothing to magnify.
    zoomed = bool(0 < np.count_nonzero(became == KEPT) < len(became))
    figure = new_figure((10.2 if zoomed else 6.8, 5.2))
    panels = figure.subplots(1, 1 + zoomed, width_ratios=(3, 2)[: 1 + zoomed], squeeze=False)[0]
    everyone, close = panels[0], panels[-1]
    for axes in panels:
        legend = scatter(axes, points, became, corrupt)
        for shape, (name, (x, y)) in zip(STARS, stars.items(), strict=False):
            legend[name] = axes.scatter(x, y, s=150, marker=shape, c=ANSWER, edgecolors="white", zorder=5)
        quiet(axes)
    everyone.set_xlabel("position along the widest direction of all updates")
    everyone.set_ylabel("along the second widest")
    everyone.set_title("all updates", loc="left", fontsize=10)
    if zoomed:
        close.set_title("the kept ones, magnified", loc="left", fontsize=10)
        everyone.indicate_inset_zoom(_magnify(close, points[became == KEPT]), edgecolor="0.4")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13)
    place = {"loc": "outside lower left", "ncols": min(len(legend), 4), "frameon": False, "fontsize": 9}
    figure.legend(list(legend.values()), list(legend), **place)
    save(figure, path)


def new_figure(size: tuple[float, float], dpi: int = 150) -> Any:
    """An empty matplotlib figure, in inches; a missing matplotlib is told."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("pictures need matplotlib: pip install 'randeigen[plot]'") from None
    return Figure(figsize=size, dpi=dpi, layout="constrained")


def save(figure: Any, path: str | os.PathLike[str]) -> None:
    """As PNG, whole or not at all."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    with replacing(path) as file:
        file.write(drawn.getvalue())


def quiet(axes: Any) -> None:
    """Axes that stay behind what they measure."""
    axes.grid(color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def scatter(
    axes: Any, points: Array, became: NDArray[np.str_], corrupt: Mask | None, size: float = 80
) -> dict[str, Any]:
    """Shape and colour say who lied, filling and cross what became of it. What to write in the legend."""
    legend: dict[str, Any] = {}
    liars = np.zeros(len(points), dtype=bool) if corrupt is None else np.asarray(corrupt, dtype=bool)
    groups = (
        (~liars, "client" if corrupt is None else "honest", HONEST, "o"),
        (liars, "corrupt", CORRUPT, "^"),
    )
    for place, (group, name, colour, shape) in enumerate(groups):
        for word in (KEPT, LESS, OUT):
            mask = group & (became == word)
            if not mask.any():
                continue
            inside, edge = (colour, "white") if word == KEPT else ("none", colour)
            look = {"facecolors": inside, "edgecolors": edge, "linewidths": 0.8 if word == KEPT else 1.6}
            # Liars on top and larger: those who hide among the honest are what one looks for.
            mark = {"s": size * (1 + place), "marker": shape, "zorder": 3 + place}
            drawn = [axes.scatter(*points[mask].T, **mark, **look)]
            if word == OUT:
                cross = {"s": 1.6 * size, "marker": "x", "c": colour, "linewidths": 1.3, "zorder": 4 + place}
                drawn += [axes.scatter(*points[mask].T, **cross)]
            legend[f"{name}, {word} ({mask.sum()})"] = tuple(drawn)
    return legend


def _magnify(axes: Any, points: Array) -> Any:
    """Show these points alone, with a margin."""
    if len(points) > 1:
        low, high = points.min(axis=0), points.max(axis=0)
        margin = 0.15 * (high - low) + np.finfo(float).tiny
        axes.set_xlim(low[0] - margin[0], high[0] + margin[0])
        axes.set_ylim(low[1] - margin[1], high[1] + margin[1])
    return axes
