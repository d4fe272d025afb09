"""Pictures of a verdict. matplotlib is imported when one is drawn, never before."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randeigen.errors import BadRows, MissingExtra
from randeigen.outcomes import DOWN_WEIGHTED, KEPT, LEFT_OUT, outcomes_of
from randeigen.rows.write import replacing
from randeigen.types import Array, Mask, Weights

if TYPE_CHECKING:
    from randeigen.inspection import Inspection

# Okabe and Ito's palette: distinct with any common colour blindness; shapes differ too.
HONEST, CORRUPT, ANSWER = "#0072B2", "#D55E00", "#000000"
MARKERS = ("*", "P", "X", "D")


def plane(rows: ArrayLike) -> tuple[Array, Array, Array]:
    """The plane of the top two principal directions: (n, 2) coordinates, origin (d,), axes (d, 2)."""
    matrix = np.asarray(rows, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] < 2 or not np.isfinite(matrix).all():
        raise BadRows(f"a picture needs two or more finite rows of one length, found shape {matrix.shape}.")
    origin = matrix.mean(axis=0)
    centred = matrix - origin
    eigenvalues, eigenvectors = np.linalg.eigh(centred @ centred.T)  # of the Gram matrix, ascending
    norms = np.sqrt(np.maximum(eigenvalues[:-3:-1], np.finfo(float).tiny))
    directions = (centred.T @ eigenvectors[:, :-3:-1]) / norms
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
    """Draw rows in the plane of their top two directions: hollow if down-weighted, crossed if left out.

    `corrupt` marks the Byzantine rows, where they are known; `marks` are further points of d numbers, such as
    means.
    """
    points, origin, directions = plane(rows)
    outcomes = outcomes_of(weights)
    stars = {name: (np.asarray(mark) - origin) @ directions for name, mark in (marks or {}).items()}

    # Where all are kept, or none, there is nothing to magnify.
    zoomed = bool(0 < np.count_nonzero(outcomes == KEPT) < len(outcomes))
    figure = new_figure((10.2 if zoomed else 6.8, 5.2))
    panels = figure.subplots(1, 1 + zoomed, width_ratios=(3, 2)[: 1 + zoomed], squeeze=False)[0]
    everyone, close = panels[0], panels[-1]
    for axes in panels:
        legend = scatter(axes, points, outcomes, corrupt)
        for shape, (name, (x, y)) in zip(MARKERS, stars.items(), strict=False):
            legend[name] = axes.scatter(x, y, s=150, marker=shape, c=ANSWER, edgecolors="white", zorder=5)
        quiet(axes)
    everyone.set_xlabel("projection on the top direction of all updates")
    everyone.set_ylabel("on the second")
    everyone.set_title("all updates", loc="left", fontsize=10)
    if zoomed:
        close.set_title("the kept ones, magnified", loc="left", fontsize=10)
        everyone.indicate_inset_zoom(_magnify(close, points[outcomes == KEPT]), edgecolor="0.4")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13)
    place = {"loc": "outside lower left", "ncols": min(len(legend), 4), "frameon": False, "fontsize": 9}
    figure.legend(list(legend.values()), list(legend), **place)
    save(figure, path)


def draw_inspection(path: str | os.PathLike[str] | BinaryIO, found: Inspection) -> None:
    """Draw an inspection: rows in the plane of their top two directions; bound and weight against eps."""
    figure = new_figure((10.2, 5.2))
    rows, curve = figure.subplots(1, 2, width_ratios=(3, 2))
    draw_inspected_rows(rows, found)
    draw_bound_by_eps(curve, found)
    save(figure, path)


def draw_inspected_rows(axes: Any, found: Inspection) -> None:
    """The rows in the plane of their top two directions, those that stand apart crossed."""
    index, points = found.plane()
    usual = found.enough() or (found.opinions[0] if found.opinions else None)
    outcomes = np.full(index.size, KEPT) if usual is None else outcomes_of(usual.weights)[index]
    legend = scatter(axes, points, outcomes, None)
    quiet(axes)
    axes.set_xlabel("projection on the top direction")
    axes.set_ylabel("on the second")
    title = "rows" if usual is None else f"rows at eps = {usual.eps:g}"
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(list(legend.values()), list(legend), frameon=False, fontsize=9)


def draw_bound_by_eps(axes: Any, found: Inspection) -> None:
    """The bias bound against eps and, on an axis of its own, the weight that is kept."""
    eps = [each.eps for each in found.opinions]
    bounds = [each.bias_bound if np.isfinite(each.bias_bound) else np.nan for each in found.opinions]
    axes.plot(eps, bounds, color=HONEST, marker="o", markersize=4)
    quiet(axes)
    axes.set_xlabel("eps")
    axes.set_ylabel("bias bound", color=HONEST)
    axes.set_ylim(bottom=0)
    kept = axes.twinx()
    kept.plot(
        eps, [100 * each.weight_kept for each in found.opinions], color=CORRUPT, marker="^", markersize=4
    )
    kept.set_ylabel("weight kept, %", color=CORRUPT)
    kept.set_ylim(0, 105)
    kept.spines[["top"]].set_visible(False)
    axes.set_title("what each eps would give", loc="left", fontsize=10)


def new_figure(size: tuple[float, float], dpi: int = 150) -> Any:
    """An empty matplotlib figure of this size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("pictures need matplotlib: pip install 'randeigen[plot]'") from None
    return Figure(figsize=size, dpi=dpi, layout="constrained")


def save(figure: Any, path: str | os.PathLike[str] | BinaryIO) -> None:
    """Write a figure as PNG, whole or not at all."""
    png = io.BytesIO()
    figure.savefig(png, format="png")
    if not isinstance(path, (str, os.PathLike)):
        path.write(png.getvalue())
        return
    with replacing(path) as file:
        file.write(png.getvalue())


def quiet(axes: Any) -> None:
    """A light grid behind the data, and no box around it."""
    axes.grid(color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def scatter(
    axes: Any, points: Array, outcomes: NDArray[np.str_], corrupt: Mask | None, size: float = 80
) -> dict[str, Any]:
    """Draw rows: shape and colour for honest or Byzantine, filling and cross for the outcome.

    Returns what the legend shows, by its text.
    """
    legend: dict[str, Any] = {}
    byzantine = np.zeros(len(points), dtype=bool) if corrupt is None else np.asarray(corrupt, dtype=bool)
    groups = (
        (~byzantine, "client" if corrupt is None else "honest", HONEST, "o"),
        (byzantine, "corrupt", CORRUPT, "^"),
    )
    for layer, (group, name, colour, shape) in enumerate(groups):
        for word in (KEPT, DOWN_WEIGHTED, LEFT_OUT):
            mask = group & (outcomes == word)
            if not mask.any():
                continue
            inside, edge = (colour, "white") if word == KEPT else ("none", colour)
            look = {"facecolors": inside, "edgecolors": edge, "linewidths": 0.8 if word == KEPT else 1.6}
            # Byzantine rows are drawn on top and larger, so that those among the honest ones are seen.
            mark = {"s": size * (1 + layer), "marker": shape, "zorder": 3 + layer}
            artists = [axes.scatter(*points[mask].T, **mark, **look)]
            if word == LEFT_OUT:
                cross = {"s": 1.6 * size, "marker": "x", "c": colour, "linewidths": 1.3, "zorder": 4 + layer}
                artists += [axes.scatter(*points[mask].T, **cross)]
            legend[f"{name}, {word} ({mask.sum()})"] = tuple(artists)
    return legend


def _magnify(axes: Any, points: Array) -> Any:
    """Show these points alone, with a margin."""
    if len(points) > 1:
        low, high = points.min(axis=0), points.max(axis=0)
        margin = 0.15 * (high - low) + np.finfo(float).tiny
        axes.set_xlim(low[0] - margin[0], high[0] + margin[0])
        axes.set_ylim(low[1] - margin[1], high[1] + margin[1])
    return axes
