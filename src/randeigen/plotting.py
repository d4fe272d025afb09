"""Pictures of a verdict. matplotlib is imported when one is drawn, never before."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randeigen.certificate import DOWN_WEIGHTED, KEPT, LEFT_OUT, outcomes_of
from randeigen.errors import MissingExtra
from randeigen.pages import GENERATOR
from randeigen.principal_plane import PrincipalPlane
from randeigen.rows.write import replacing
from randeigen.types import Array, Mask, Weights

if TYPE_CHECKING:
    from randeigen.inspection import Inspection

# Okabe and Ito's palette: distinct with any common colour blindness; shapes differ too.
HONEST, CORRUPT, ANSWER = "#0072B2", "#D55E00", "#000000"
MARKERS = ("*", "P", "X", "D")
# A picture of this width with text of this size can be read where it is 350 pixels wide, on a phone.
WIDTH, TEXT = 4.4, 10.0  # inches, points
TITLE_CHARACTERS = 46  # of a line
SAME_POINT = 1e-3  # of what is shown: points that are this near are one mark

__all__ = ["draw_bound_by_eps", "draw_inspected_rows", "draw_rows"]


def draw_clients(
    path: str | os.PathLike[str],
    rows: ArrayLike,
    weights: Weights,
    *,
    corrupt: Mask | None = None,
    marks: Mapping[str, ArrayLike] | None = None,
    title: str = "What was left out",
) -> None:
    """Write a picture of `draw_rows`; where some rows are kept and some not, those below, magnified."""
    kept = outcomes_of(weights) == KEPT
    zoomed = bool(0 < np.count_nonzero(kept) < len(kept))  # else there is nothing to magnify
    figure = new_figure((WIDTH, 8.2 if zoomed else 4.6))
    panels = figure.subplots(1 + zoomed, 1, height_ratios=(3, 2)[: 1 + zoomed], squeeze=False)[:, 0]
    plane = PrincipalPlane.of(rows)
    legend = _draw(panels[0], plane, weights, corrupt, marks)
    panels[0].set_title("all updates", loc="left", fontsize=TEXT)
    if zoomed:
        _draw(panels[1], plane, weights, corrupt, marks, magnified=True)
        panels[1].set_title("the kept ones, magnified", loc="left", fontsize=TEXT)
        (left, right), (bottom, top) = panels[1].get_xlim(), panels[1].get_ylim()
        panels[0].indicate_inset((left, bottom, right - left, top - bottom), edgecolor="0.4")
    figure.suptitle(textwrap.fill(title, TITLE_CHARACTERS), x=0.01, ha="left", fontsize=TEXT + 1)
    position = {"loc": "outside lower left", "frameon": False, "fontsize": TEXT}
    figure.legend(list(legend.values()), list(legend), **position)
    save(figure, path)


def draw_rows(
    axes: Any,
    rows: ArrayLike,
    weights: Weights,
    *,
    corrupt: Mask | None = None,
    marks: Mapping[str, ArrayLike] | None = None,
    magnified: bool = False,
    legend: bool = True,
) -> dict[str, Any]:
    """Draw rows in the plane of their top two directions: hollow if down-weighted, crossed if left out.

    Rows at one place are one mark, with their number beside it.

    Parameters:
        axes: matplotlib's.
        rows: (n, d), finite.
        weights: (n,) of each row in the answer.
        corrupt: (n,) which rows are Byzantine, where that is known.
        marks: further points of d numbers by their names, such as means; four at most.
        magnified: whether the axes end where the kept rows do.
        legend: whether a legend is drawn.

    Returns:
        What the legend shows, by its text.

    Raises:
        BadRows: there are fewer than two rows, or they are not finite.

    Examples:
        >>> import numpy as np, randeigen
        >>> from matplotlib.figure import Figure
        >>> from randeigen.plotting import draw_rows
        >>> rows = np.random.default_rng(0).standard_normal((20, 50))
        >>> rows[:3] += 4
        >>> axes = Figure().subplots()
        >>> sorted(draw_rows(axes, rows, randeigen.aggregate(rows, f=3).weights))
        ['client, kept (17)', 'client, left out (3)']
    """
    handles = _draw(axes, PrincipalPlane.of(rows), weights, corrupt, marks, magnified=magnified)
    if legend:
        axes.legend(list(handles.values()), list(handles), frameon=False, fontsize=TEXT)
    return handles


def _draw(
    axes: Any,
    plane: PrincipalPlane,
    weights: Weights,
    corrupt: Mask | None,
    marks: Mapping[str, ArrayLike] | None,
    *,
    magnified: bool = False,
) -> dict[str, Any]:
    points, outcomes = plane.points, outcomes_of(weights)
    close = points[outcomes == KEPT] if magnified else points
    span = float(np.ptp(close, axis=0).max()) if len(close) else 0.0
    handles = scatter(axes, points, outcomes, corrupt, span=span)
    for shape, (name, mark) in zip(MARKERS, (marks or {}).items(), strict=False):
        x, y = plane.project(mark)
        handles[name] = axes.scatter(x, y, s=150, marker=shape, c=ANSWER, edgecolors="white", zorder=5)
    quiet(axes)
    axes.set_xlabel("projection on the top direction of all updates", fontsize=TEXT)
    axes.set_ylabel("on the second", fontsize=TEXT)
    axes.locator_params(axis="x", nbins=5)  # more labels would touch on a phone
    if magnified:
        _magnify(axes, close)
    return handles


def draw_inspection(path: str | os.PathLike[str] | BinaryIO, inspection: Inspection) -> None:
    """Draw an inspection: rows in the plane of their top two directions; bound and weight against eps."""
    figure = new_figure((WIDTH, 7.6))
    rows, curve = figure.subplots(2, 1, height_ratios=(3, 2))
    draw_inspected_rows(rows, inspection)
    draw_bound_by_eps(curve, inspection)
    save(figure, path)


def draw_inspected_rows(axes: Any, inspection: Inspection) -> None:
    """Draw the rows of an inspection in the plane of their top two directions, those left out crossed.

    Parameters:
        axes: matplotlib's.
        inspection: what `randeigen.inspect` returned.

    Examples:
        >>> import numpy as np, randeigen
        >>> from matplotlib.figure import Figure
        >>> from randeigen.plotting import draw_inspected_rows
        >>> rows = np.random.default_rng(0).standard_normal((20, 50))
        >>> draw_inspected_rows(Figure().subplots(), randeigen.inspect(rows))
    """
    index, points = inspection.plane()
    usual = inspection.enough() or (inspection.opinions[0] if inspection.opinions else None)
    outcomes = np.full(index.size, KEPT) if usual is None else outcomes_of(usual.weights)[index]
    legend = scatter(axes, points, outcomes, None)
    quiet(axes)
    axes.set_xlabel("projection on the top direction", fontsize=TEXT)
    axes.set_ylabel("on the second", fontsize=TEXT)
    title = "rows" if usual is None else f"rows at eps = {usual.eps:g}"
    axes.set_title(title, loc="left", fontsize=TEXT)
    axes.legend(list(legend.values()), list(legend), frameon=False, fontsize=TEXT)


def draw_bound_by_eps(axes: Any, inspection: Inspection) -> None:
    """Draw the bias bound against eps and, on an axis of its own, the weight that is kept.

    Parameters:
        axes: matplotlib's.
        inspection: what `randeigen.inspect` returned.

    Examples:
        >>> import numpy as np, randeigen
        >>> from matplotlib.figure import Figure
        >>> from randeigen.plotting import draw_bound_by_eps
        >>> axes = Figure().subplots()
        >>> draw_bound_by_eps(axes, randeigen.inspect(np.eye(12)))
        >>> axes.get_xlabel()
        'eps'
    """
    eps = [each.eps for each in inspection.opinions]
    bounds = [each.bias_bound if np.isfinite(each.bias_bound) else np.nan for each in inspection.opinions]
    axes.plot(eps, bounds, color=HONEST, marker="o", markersize=4)
    quiet(axes)
    axes.set_xlabel("eps", fontsize=TEXT)
    axes.set_ylabel("bias bound", color=HONEST, fontsize=TEXT)
    axes.set_ylim(bottom=0)
    kept = axes.twinx()
    kept.plot(
        eps, [100 * each.weight_kept for each in inspection.opinions], color=CORRUPT, marker="^", markersize=4
    )
    kept.set_ylabel("weight kept, %", color=CORRUPT, fontsize=TEXT)
    kept.set_ylim(0, 105)
    kept.spines[["top"]].set_visible(False)
    axes.set_title("what each eps would give", loc="left", fontsize=TEXT)


def new_figure(size: tuple[float, float], dpi: int = 220) -> Any:
    """An empty matplotlib figure of this size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("pictures need matplotlib: pip install 'randeigen[plot]'") from None
    return Figure(figsize=size, dpi=dpi, layout="constrained")


def save(figure: Any, path: str | os.PathLike[str] | BinaryIO) -> None:
    """Write a figure as PNG, whole or not at all."""
    png = io.BytesIO()
    figure.savefig(png, format="png", metadata={"Software": GENERATOR})
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
    axes: Any,
    points: Array,
    outcomes: NDArray[np.str_],
    corrupt: Mask | None,
    size: float = 60,
    span: float | None = None,
    numbered: int = 2,
) -> dict[str, Any]:
    """Draw rows: shape and colour for honest or Byzantine, filling and cross for the outcome.

    Rows at one place are one mark, with their number if they are `numbered` or more; `span` is the extent of
    what is shown. Returns what the legend shows, by its text.
    """
    span = float(np.ptp(points, axis=0).max()) if span is None else span
    middle = (points[:, 0].min() + points[:, 0].max()) / 2 if len(points) else 0.0
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
            points_apart, numbers = _distinct_points(points[mask], SAME_POINT * span)
            artists = [axes.scatter(*points_apart.T, **mark, **look)]
            if word == LEFT_OUT:
                cross = {"s": 1.6 * size, "marker": "x", "c": colour, "linewidths": 1.3, "zorder": 4 + layer}
                artists += [axes.scatter(*points_apart.T, **cross)]
            many = numbers >= numbered
            for point, number in zip(points_apart[many], numbers[many], strict=True):
                _number_beside(axes, point, number, colour, leftwards=point[0] > middle)
            legend[f"{name}, {word} ({mask.sum()})"] = tuple(artists)
    return legend


def _number_beside(axes: Any, point: Array, number: int, colour: str, leftwards: bool) -> None:
    style = {"textcoords": "offset points", "fontsize": TEXT, "color": colour, "zorder": 6}
    side, offset = ("right", -6) if leftwards else ("left", 6)  # so that it stays within the axes
    axes.annotate(f"×{number}", point, (offset, 5), ha=side, annotation_clip=True, **style)


def _distinct_points(points: Array, near: float) -> tuple[Array, NDArray[np.intp]]:
    """The points that have none before them within `near`, and how many are at each."""
    left, first, numbers = np.arange(len(points)), [], []
    while left.size:
        close = np.abs(points[left] - points[left[0]]).max(axis=1) <= near
        first.append(left[0])
        numbers.append(np.count_nonzero(close))
        left = left[~close]
    return points[first], np.array(numbers, dtype=np.intp)


def _magnify(axes: Any, points: Array) -> Any:
    """Show these points alone, with a margin."""
    if len(points) > 1:
        low, high = points.min(axis=0), points.max(axis=0)
        margin = 0.15 * (high - low) + np.finfo(float).tiny
        axes.set_xlim(low[0] - margin[0], high[0] + margin[0])
        axes.set_ylim(low[1] - margin[1], high[1] + margin[1])
    return axes
