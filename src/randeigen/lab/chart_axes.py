"""The axes of charts: what they show, where a value goes, and the ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Scale: TypeAlias = Literal["linear", "log", "symlog"]

SYMLOG_DECADES = 3.0  # of the largest magnitude that a signed logarithmic axis shows; the rest is linear


@dataclass(frozen=True)
class Axis:
    """What an axis shows, from where to where."""

    label: str
    scale: Scale = "linear"
    low: float | None = None
    high: float | None = None
    percent: bool = False
    whole: bool = False  # whether its numbers are counts, such as rounds


def placed_on(
    axis: Axis, values: Sequence[float], start: float, end: float
) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    """Where a value goes, and the ticks."""
    low = min(values) if axis.low is None else axis.low
    high = max(values) if axis.high is None else axis.high
    if axis.scale == "log":
        values = [v for v in values if v > 0] or [1.0]
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        high = max(high, low + 1)
        every = max(1, (high - low) // 5)
        ticks = [(10.0**p, _power(p)) for p in range(low, high + 1, every)]
        shape: Callable[[float], float] = lambda v: math.log10(max(v, 10.0**low))  # noqa: E731
        return _placed(shape, low, high, start, end), ticks
    if axis.scale == "symlog":
        top = max(abs(low), abs(high)) or 1.0
        unit = top * 10.0**-SYMLOG_DECADES
        shape = lambda v: math.copysign(math.log10(1 + abs(v) / unit), v)  # noqa: E731
        steps = [top * 10.0**-k for k in range(3)]
        spots = [v for v in (*[-s for s in steps], 0.0, *reversed(steps)) if low <= v <= high]
        return _placed(shape, shape(low), shape(high), start, end), [(v, _plain(v, 1)) for v in spots]
    if high <= low:
        low, high = low - 0.5, high + 0.5
    spots = _nice(low, high, least=1.0 if axis.whole else 0.0)
    return _placed(lambda v: v, low, high, start, end), [
        (v, f"{100 * v:.3g}%" if axis.percent else _plain(v)) for v in spots
    ]


def _placed(
    shape: Callable[[float], float], low: float, high: float, start: float, end: float
) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda v: start + (shape(v) - low) / span * (end - start)


def _nice(low: float, high: float, count: int = 5, least: float = 0.0) -> list[float]:
    """Round numbers between these, at least so far apart."""
    raw = max((high - low) / count, least)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, *([] if least else [2.5]), 5, 10) if size * m >= raw)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, first + 2 * count) if k * step <= high + 1e-9 * step]


def _plain(value: float, digits: int = 4) -> str:
    value = float(f"{value:.{digits}g}")
    return f"{value:,.0f}" if 10 <= abs(value) < 1e6 and value == round(value) else f"{value:.{digits}g}"


def _power(p: int) -> str:
    return f"{10.0**p:g}" if -3 <= p <= 3 else f"1e{p}"
