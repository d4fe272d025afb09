"""Charts of a run as SVG inside a page: clients × rounds, and numbers over rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from randeigen.bridges.verdicts import ABSENT, PROVEN, UNJUDGED, Node, NodeVerdict, RoundVerdict
from randeigen.certificate import LEFT_OUT

MAX_NODES = 60  # lines of the map; the nodes excluded most come first
MAX_COLUMNS = 120  # columns of the map; beyond, a column stands for several rounds
CELL, GAP, LABEL = 18, 2, 172  # pixels
# Pixels of a line chart and of its margins; on a phone it is no smaller, so that its text can be read.
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 350, 180, 52, 34, 8
COLOURS = ("var(--blue)", "var(--orange)", "var(--soft)")

STYLE = """<style>
:root { --blue: #2a6fb0; --orange: #c4621a; --red: #b3261e; --empty: #f0f1f3 }
@media (prefers-color-scheme: dark) {
  :root { --blue: #6cb0ee; --orange: #f0954f; --red: #f2857c; --empty: #24282d } }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif }
svg .soft { fill: var(--soft) }
svg .grid { stroke: var(--line); stroke-width: 1 }
.key { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; font-size: .9rem; color: var(--soft) }
.key svg { vertical-align: -4px; margin-right: .35rem }
.charts { display: grid; gap: 1rem 2rem; 
  grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)) }
.charts svg[viewBox] { width: 100%; max-width: 34rem; height: auto }
.charts .key { margin: 0 }
.charts .key svg { vertical-align: 0 }
.reasons td:last-child { white-space: normal; min-width: 15rem }
</style>"""


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str
    points: Sequence[tuple[int, float]]  # round, value


def heat_map(rounds: Sequence[RoundVerdict], nodes: Sequence[Node]) -> str:
    """Clients × rounds: how much weight each had, and how it was excluded."""
    step = max(1, math.ceil(len(rounds) / MAX_COLUMNS))
    columns = [rounds[start : start + step] for start in range(0, len(rounds), step)]
    rows = nodes[:MAX_NODES]
    width = LABEL + len(columns) * CELL + 4
    height = len(rows) * CELL + 24
    parts = [f'<svg width="{width}" height="{height}" role="img" aria-label="weights of clients by round">']
    for line, node in enumerate(rows):
        y = line * CELL
        parts.append(
            f'<text x="{LABEL - 8}" y="{y + 13}" text-anchor="end">{escape(short_name(node))}</text>'
        )
        for at, group in enumerate(columns):
            parts.append(_cell(LABEL + at * CELL, y, node, group))
    every = max(1, math.ceil(len(columns) / 12))
    for at in range(0, len(columns), every):
        x, y = LABEL + at * CELL + CELL // 2, len(rows) * CELL + 15
        parts.append(f'<text class="soft" x="{x}" y="{y}" text-anchor="middle">{columns[at][0].round}</text>')
    return '<div class="wide">' + "".join(parts) + "</svg></div>"


def _cell(x: int, y: int, node: Node, group: Sequence[RoundVerdict]) -> str:
    """One square: its depth is the share of weight; a sign in it says how a reply was excluded."""
    verdicts = [(verdict, verdict.nodes[node]) for verdict in group if node in verdict.nodes]
    if not verdicts:
        return ""
    share = sum(share_of(verdict, each) for verdict, each in verdicts) / len(verdicts)
    worst = min((each for _, each in verdicts), key=lambda each: (each.weight > 0, each.weight))
    tips = [f"round {v.round}: {e.outcome}, {share_of(v, e):.2f} of an even share" for v, e in verdicts[:3]]
    text = f"{node}\n" + "\n".join(tips) + (f"\n{worst.reason}" if worst.reason else "")
    return f"<g><title>{escape(text)}</title>{square(x, y, share, worst.outcome)}</g>"


def square(x: int, y: int, share: float, outcome: str) -> str:
    """A cell of the map."""
    size = CELL - GAP
    svg = f'<rect x="{x}" y="{y}" width="{size}" height="{size}" rx="2" fill="var(--empty)"/>'
    if outcome in PROVEN:
        svg += f'<path d="M{x + 4} {y + 4}l8 8m0 -8l-8 8" stroke="var(--red)" stroke-width="2.2"/>'
    elif outcome in ABSENT:
        svg += f'<path d="M{x + 4} {y + 8}h8" stroke="var(--soft)" stroke-width="2.2"/>'
    elif outcome == LEFT_OUT:
        svg += (
            f'<circle cx="{x + 8}" cy="{y + 8}" r="4" fill="none" stroke="var(--orange)" stroke-width="2.2"/>'
        )
    elif outcome == UNJUDGED:
        svg += f'<text class="soft" x="{x + 8}" y="{y + 12}" text-anchor="middle">?</text>'
    else:
        depth = 0.15 + 0.85 * min(share, 1.2) / 1.2
        svg += f'<rect x="{x}" y="{y}" width="{size}" height="{size}" rx="2" fill="var(--blue)"'
        svg += f' fill-opacity="{depth:.2f}"/>'
    return svg


def share_of(verdict: RoundVerdict, node: NodeVerdict) -> float:
    """A node's weight in even shares of the nodes that have weight."""
    return node.weight * len(verdict.kept)


def key() -> str:
    """What the signs of the map mean."""
    signs: Mapping[str, tuple[float, str]] = {
        "an even share of the weight": (1.0, "kept"),
        "a fifth of it": (0.2, "kept"),
        "left out by the rule": (0, LEFT_OUT),
        "faulty or not finite: no honest client sends it": (0, "faulty"),
        "failed or silent": (0, "silent"),
        "round declined": (0, UNJUDGED),
    }
    frame = f'<svg width="{CELL - GAP}" height="{CELL - GAP}">'
    items = [f"<span>{frame}{square(0, 0, *sign)}</svg>{escape(text)}</span>" for text, sign in signs.items()]
    return f'<p class="key">{"".join(items)}<span>empty: not asked</span></p>'


def line_chart(series: Sequence[Series], first: int, last: int, text: str) -> str:
    """Numbers over rounds; what is not finite leaves a gap."""
    values = [value for each in series for _, value in each.points if math.isfinite(value)]
    if not values:
        return ""
    low, high, ticks = scale(min(0.0, *values), max(values))
    span_x, span_y = WIDTH - LEFT - 12, HEIGHT - BOTTOM - TOP

    def point(number: int, value: float) -> tuple[float, float]:
        x = LEFT + (span_x * (number - first) / (last - first) if last > first else span_x / 2)
        return x, TOP + span_y * (1 - (value - low) / (high - low))

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(text)}">']
    for tick in ticks:
        y = point(first, tick)[1]
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - 12}"/>')
        parts.append(f'<text class="soft" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:.4g}</text>')
    step = 1 if last - first <= 10 else 5 * math.ceil((last - first) / 40)
    between = [number for number in range(0, last + 1, step) if first + step // 2 < number < last - step // 2]
    for number in sorted({first, last, *(between if step > 1 else range(first, last))}):
        x = point(number, low)[0]
        parts.append(f'<text class="soft" x="{x:.1f}" y="{HEIGHT - 14}" text-anchor="middle">{number}</text>')
    names = []
    for each, colour in zip(series, COLOURS, strict=False):
        points = [point(number, value) for number, value in each.points if math.isfinite(value)]
        path = "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in points)
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.6" fill="{colour}"/>' for px, py in points[:60]]
        mark = f'<svg width="10" height="10"><rect width="10" height="10" rx="2" fill="{colour}"/></svg>'
        names.append(f"<span>{mark}{escape(each.name)}</span>")
    legend, drawing = f'<p class="key">{"".join(names)}</p>', f"{''.join(parts)}</svg>"
    return f"<figure>{legend}{drawing}<figcaption>{escape(text)}</figcaption></figure>"


def scale(low: float, high: float) -> tuple[float, float, list[float]]:
    """Round limits, and a few round numbers between them."""
    span = high - low or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10, 20) if span / (factor * step) <= 5)
    first, last = math.floor(low / step), math.ceil((low + span) / step)
    return first * step, last * step, [count * step for count in range(first, last + 1)]


def short_name(node: Node) -> str:
    """A node's name as it fits beside the map."""
    text = str(node)
    return text if len(text) <= 20 else f"{text[:9]}…{text[-9:]}"
