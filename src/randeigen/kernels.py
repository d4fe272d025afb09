"""The one product that costs anything: a block of columns times itself, on the library that holds it."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from randeigen.blocks import bordered, doubled, host, median_of_columns, middle, parts, pieces
from randeigen.threads import each
from randeigen.types import Array, Block, Mask

Pivot: TypeAlias = tuple[int, int, int]  # three rows, whose middle it is


def products(block: Block, pivot_rows: Pivot | None = None) -> Array:
    """(n+1, n+1) inner products of the rows, the origin last, from the middle of three rows if given."""
    if _on_gpu(block):
        from randeigen import cuda

        return cuda.products(block, pivot_rows)
    inner, to_origin, origin = np.zeros((block.shape[0], block.shape[0])), np.zeros(block.shape[0]), 0.0
    for table, edge, corner in each(lambda part: _products(part, pivot_rows), parts(block)):
        inner += table
        to_origin += edge
        origin += corner
    return bordered(inner, to_origin, origin)


def _products(part: Any, pivot_rows: Pivot | None) -> tuple[Any, Any, Any]:
    """What each part of the columns adds to the table, to its border and to its corner."""
    if pivot_rows is None:
        return part @ part.T, 0.0, 0.0  # of a table with itself numpy does only half the work
    pivot = middle(*(part[i] for i in pivot_rows))
    shifted = part - pivot
    return shifted @ shifted.T, shifted @ -pivot, pivot @ pivot


def exact_lines(block: Block, index: list[int], pivot_rows: Pivot | None = None) -> Array:
    """(m, n+1) the lines of `products` for a few rows, in float64: for rows whose squares overflow."""
    lines: Any = 0.0
    for piece in pieces(block):
        exact, pivot = doubled(piece), 0.0
        if pivot_rows is not None:
            pivot = middle(*(exact[i] for i in pivot_rows))
            exact = exact - pivot
        few = exact[index]
        to_origin = np.zeros((len(index), 1)) if pivot_rows is None else host(few @ -pivot)[:, None]
        lines = lines + np.hstack((host(few @ exact.T), to_origin))
    return np.asarray(lines)


def careful_products(block: Block, dead: Mask) -> tuple[Array, int]:
    """`products` in float64, from the median of each column, in units of 4**exponent.

    The scale is set by the median row, so that honest numbers of any size can be squared.
    """
    exact = doubled(block)
    exact[np.flatnonzero(dead).tolist()] = 0.0
    pivot = median_of_columns(exact[np.flatnonzero(~dead).tolist()])
    exact -= pivot
    exact[np.flatnonzero(dead).tolist()] = 0.0
    reach = host(abs(exact).max(1) if isinstance(exact, np.ndarray) else abs(exact).amax(1))
    exponent = scale_exponent(reach[~dead])
    exact, pivot = exact * 2.0**-exponent, pivot * 2.0**-exponent
    return bordered(host(exact @ exact.T), host(exact @ -pivot), host(pivot @ pivot)), exponent


def scale_exponent(reach: Array) -> int:
    """0 while the squares of typical numbers fit a float64 with room to spare, else what brings them to 1."""
    typical = float(np.median(reach)) if reach.size else 0.0
    exponent = math.frexp(typical)[1] if math.isfinite(typical) else 0
    return max(-1000, min(exponent, 1000)) if abs(exponent) > 300 else 0


def _on_gpu(block: Block) -> bool:
    return not isinstance(block, np.ndarray) and block.is_cuda
