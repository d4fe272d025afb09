"""Charts as inline SVG: sharp at any size, in the colours of the page around them, without a library."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape

from randeigen.lab.chart_axes import Axis, placed_on

WIDTH, HEIGHT = 380, 270
LEFT, RIGHT, TOP, BOTTOM = 76, 12, 36, 62  # margins: labels, title, the legend under the axis
CHARACTER, LINE, KEY = 7.6, 18, 24  # of the legend: widths of a letter and of what is before a name, height
COLOURS = 7  # classes c0 to c6 in STYLE
DASHES = ("", "6 3", "2 2", "8 3 2 3", "1 3", "10 4", "4 1")

# Okabe and Ito's palette, distinct with any common colour blindness; black becomes white on dark paper.
STYLE = """
.chart { max-width: 100%; height: auto; font: 13.5px system-ui, sans-serif; overflow: visible }
.chart text { fill: var(--ink) } .chart .soft { fill: var(--soft) }
.chart .grid { stroke: var(--line); stroke-width: 1 } .chart .axis { stroke: var(--soft); stroke-width: 1 }
.chart path { fill: none; stroke-width: 2 } .chart .mark { stroke-width: 1.2; fill-opacity: .55 }
.chart .bar, .chart .key { fill-opacity: .55; stroke-width: 1 }
.chart .band { stroke: none; fill-opacity: .16 }
.c0 { stroke: #0072b2; fill: #0072b2 } .c1 { stroke: #d55e00; fill: #d55e00 }
.c2 { stroke: #009e73; fill: #009e73 } .c3 { stroke: #cc79a7; fill: #cc79a7 }
.c4 { stroke: #e69f00; fill: #e69f00 } .c5 { stroke: #56b4e9; fill: #56b4e9 }
.c6 { stroke: var(--ink); fill: var(--ink) }
"""


@dataclass(frozen=True)
class Series:
    """A line, or marks; `half_widths` draw a band about a line."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    marks: bool = False
    half_widths: Sequence[float] | None = None


def chart(
    title: str, series: Sequence[Series], x: Axis, y: Axis, width: int = WIDTH, height: int = HEIGHT
) -> str:
    """Lines and marks over two axes. One that has no point here leaves the colours of the others alone."""
    usable = {index: one for index, one in enumerate(_usable(each, x, y) for each in series) if one.x}
    if not usable:
        return _empty(title, width, height)
    to_x, ticks_x = placed_on(x, [v for one in usable.values() for v in one.x], LEFT, width - RIGHT)
    ends = [v for one in usable.values() for v in _interval_ends(one)]
    to_y, ticks_y = placed_on(y, ends, height - BOTTOM, TOP)
    parts = _frame(title, x, y, ticks_x, ticks_y, to_x, to_y, width, height)
    size = width - LEFT - RIGHT, height - TOP - BOTTOM
    for index, one in usable.items():
        colour = f"c{index % COLOURS}"
        points = [(to_x(a), to_y(b)) for a, b in zip(one.x, one.y, strict=True)]
        if one.half_widths is not None and len(points) > 1:
            parts.append(_inside(f'<polygon class="band {colour}" points="{_band(one, to_x, to_y)}"/>', size))
        if one.marks:
            parts += [_mark(index, colour, a, b) for a, b in points]
        elif len(points) == 1:
            parts.append(
                f'<circle class="mark {colour}" cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3"/>'
            )
        else:
            line = " ".join(f"{'L' if i else 'M'}{a:.1f} {b:.1f}" for i, (a, b) in enumerate(points))
            parts.append(_line(index, line))
    keys = {one.name: partial(_key_of_series, index, one) for index, one in usable.items()}
    legend, height = _legend(keys, width, height)
    return _svg(title, [*parts, *legend], width, height)


def histogram(
    title: str,
    groups: Mapping[str, Sequence[float]],
    x: Axis,
    bins: int = 30,
    width: int = WIDTH,
    height: int = HEIGHT,
) -> str:
    """The distributions of some groups of numbers, each scaled to the share of its own group."""
    values = [v for group in groups.values() for v in group if math.isfinite(v)]
    if not values:
        return _empty(title, width, height)
    to_x, ticks_x = placed_on(x, values, LEFT, width - RIGHT)
    low, high = to_x(min(values)), to_x(max(values))
    step = max((high - low) / bins, 1e-9)
    shares = {}
    for name, group in groups.items():
        counts = [0] * bins
        for value in group:
            counts[min(int((to_x(value) - low) / step), bins - 1)] += 1
        shares[name] = [count / max(len(group), 1) for count in counts]
    top = max(max(each) for each in shares.values())
    y = Axis("share of the group", low=0.0, high=top, percent=True)
    to_y, ticks_y = placed_on(y, [0.0, top], height - BOTTOM, TOP)
    parts = _frame(title, x, y, ticks_x, ticks_y, to_x, to_y, width, height)
    for index, each in enumerate(shares.values()):
        for i, share in enumerate(each):
            if share:
                box = f'x="{low + i * step:.1f}" y="{to_y(share):.1f}" width="{step:.2f}"'
                parts.append(f'<rect class="bar c{index}" {box} height="{to_y(0.0) - to_y(share):.1f}"/>')
    keys = {name: partial(_key_of_group, index) for index, name in enumerate(groups)}
    legend, height = _legend(keys, width, height)
    return _svg(title, [*parts, *legend], width, height)


def _usable(one: Series, x: Axis, y: Axis) -> Series:
    """The series without points that an axis cannot show."""
    bands = one.half_widths if one.half_widths is not None else [0.0] * len(one.x)
    kept = [
        (a, b, h)
        for a, b, h in zip(one.x, one.y, bands, strict=True)
        if math.isfinite(a)
        and math.isfinite(b)
        and (x.scale != "log" or a > 0)
        and (y.scale != "log" or b > 0)
    ]
    xs, ys, halves = ([point[i] for point in kept] for i in range(3))
    return Series(one.name, xs, ys, one.marks, halves if one.half_widths is not None else None)


def _interval_ends(one: Series) -> list[float]:
    halves = one.half_widths or [0.0] * len(one.y)
    return [v + s * h for v, h in zip(one.y, halves, strict=True) for s in (-1, 1)]


def _frame(
    title: str,
    x: Axis,
    y: Axis,
    ticks_x: Sequence[tuple[float, str]],
    ticks_y: Sequence[tuple[float, str]],
    to_x: Callable[[float], float],
    to_y: Callable[[float], float],
    width: int,
    height: int,
) -> list[str]:
    floor, right = height - BOTTOM, width - RIGHT
    parts = [f'<text x="4" y="16" font-weight="600">{escape(title)}</text>']
    for value, text in ticks_y:
        at = to_y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(
            f'<text class="soft" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{escape(text)}</text>'
        )
    for value, text in ticks_x:
        at = to_x(value)
        parts.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{floor}" y2="{floor + 4}"/>')
        parts.append(
            f'<text class="soft" x="{at:.1f}" y="{floor + 16}" text-anchor="middle">{escape(text)}</text>'
        )
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{floor}" y2="{floor}"/>')
    across, down = (LEFT + right) / 2, (TOP + floor) / 2
    parts.append(_label(f'x="{across}" y="{floor + 31}"', x.label))
    parts.append(_label(f'transform="translate(12 {down}) rotate(-90)"', y.label))
    return parts


def _label(position: str, text: str) -> str:
    return f'<text class="soft" {position} text-anchor="middle">{escape(text)}</text>'


def _mark(index: int, colour: str, a: float, b: float) -> str:
    if index % 2:
        return f'<path class="mark {colour}" d="M{a - 4:.1f} {b + 3:.1f}h8l-4 -7z"/>'
    return f'<circle class="mark {colour}" cx="{a:.1f}" cy="{b:.1f}" r="3.2"/>'


def _key_of_mark(index: int, x: float, y: float) -> str:
    shape = "h8l-4 -7z" if index % 2 else "a4 4 0 1 0 8 0a4 4 0 1 0 -8 0"
    return f'<path class="key c{index % COLOURS}" d="M{x + 5:.1f} {y + 3 * (index % 2):.1f}{shape}"/>'


def _band(one: Series, to_x: Callable[[float], float], to_y: Callable[[float], float]) -> str:
    halves = one.half_widths or ()
    up = [(to_x(a), to_y(b + h)) for a, b, h in zip(one.x, one.y, halves, strict=True)]
    down = [(to_x(a), to_y(b - h)) for a, b, h in zip(one.x, one.y, halves, strict=True)]
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in (*up, *reversed(down)))


def _inside(part: str, size: tuple[int, int]) -> str:
    """What of a part lies between the axes."""
    width, height = size
    box = f'x="{LEFT}" y="{TOP}" width="{width}" height="{height}" viewBox="{LEFT} {TOP} {width} {height}"'
    return f"<svg {box}>{part}</svg>"


def _line(index: int, path: str) -> str:
    dash = DASHES[index % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path class="c{index % COLOURS}" d="{path}"{dashed}/>'


def _key_of_series(index: int, one: Series, x: float, y: float) -> str:
    """What stands for a series in the legend: its mark, or a piece of its line."""
    if one.marks:
        return _key_of_mark(index, x, y)
    return _line(index, f"M{x:.1f} {y:.1f}h19")


def _key_of_group(index: int, x: float, y: float) -> str:
    return f'<rect class="key c{index}" x="{x + 2:.1f}" y="{y - 5:.1f}" width="14" height="10"/>'


def _legend(
    keys: Mapping[str, Callable[[float, float], str]], width: int, height: int
) -> tuple[list[str], int]:
    """The names under the axis, on as many lines as they need, and the height of the chart with them."""
    parts, x, y = [], 4.0, height - 10
    for name, key in keys.items():
        room = KEY + CHARACTER * len(name)
        if x > 4 and x + room > width:
            x, y = 4.0, y + LINE
        parts.append(key(x, y - 4))
        parts.append(f'<text x="{x + KEY:.1f}" y="{y}">{escape(name)}</text>')
        x += room + 8
    return parts, y + 10


def _svg(title: str, parts: Sequence[str], width: int, height: int) -> str:
    head = f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}"'
    return f'<svg class="chart" {head}>{"".join(parts)}</svg>'


def _empty(title: str, width: int, height: int) -> str:
    middle = f'<text class="soft" x="{width / 2}" y="{height / 2}" text-anchor="middle">not run yet</text>'
    return _svg(
        title, [f'<text x="4" y="16" font-weight="600">{escape(title)}</text>', middle], width, height
    )
