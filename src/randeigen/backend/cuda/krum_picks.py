"""Bulyan's picks on a GPU: the best row by Krum's score of those left, one after the other, without the host.

A row's score leaves out the f+1 furthest of the rows left: those from a place on in the order of its
distances. A launch finds the orders, a program for each row. Another is one program with a thread for each
row, which takes a distance from its score for each pick, as the host does: the distance to the row picked
where that is among the nearest, else that of the last of these, and the place moves on.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.cuda.language import Launch, jit, tl, triton
from randeigen.backend.cuda.tables import KEPT_SHAPES
from randeigen.types import Array, Index

MAX_ROWS = 256  # rows: a thread each, and their order is found among all pairs of distances
MIN_ROWS = 32  # as many as a warp has threads
MIN_CORRUPT = 3  # with fewer the last scores are those of two rows, equal, or leave out fewer than f+1
ORDER_WARPS, PAIRS_AT_ONCE = 4, 4096  # of a program that orders a row, and the pairs it compares at once
AHEAD = 8  # places of an order that a thread looks at to find the next row that is left
ROUNDING = 2e-15  # of a row's first score, for each row: scores that differ by no more are as good as equal


def krum_picks(apart: Array, f: int, count: int, device: Any) -> Index | None:
    """The `count` rows that Krum picks by (n, n) distances, in order.

    None where two are as good as equal at some pick, or where this kernel does not do for so many rows.
    """
    import torch

    n = len(apart)
    if n > MAX_ROWS or f < MIN_CORRUPT:
        return None
    plan = _plan(device, n)
    given = torch.from_numpy(np.array(apart)).to(device, non_blocking=True)
    scores = torch.empty(plan.lines, dtype=torch.float64, device=device)
    orders = torch.empty((2 * plan.lines + 1, plan.lines), dtype=torch.int32, device=device)
    picked = torch.empty(count + 1, dtype=torch.int32, device=device)
    plan.order(given, scores, orders, n, f)
    plan.pick(given, scores, orders, picked, n, f, count, ROUNDING * n)
    clear, *rows = picked.tolist()
    return np.array(rows, np.intp) if clear else None


class _Plan(NamedTuple):
    """Both launches for so many rows."""

    lines: int
    order: Launch
    pick: Launch


@lru_cache(KEPT_SHAPES)
def _plan(device: Any, n: int) -> _Plan:
    lines = max(MIN_ROWS, triton.next_power_of_2(n))
    ordered = {"LINES": lines, "AT_ONCE": min(PAIRS_AT_ONCE // lines, lines)}
    picked = {"LINES": lines, "AHEAD": AHEAD}
    return _Plan(
        lines,
        Launch(_order_kernel, (n,), device, ordered, num_warps=ORDER_WARPS),
        Launch(_picks_kernel, (1,), device, picked, num_warps=lines // 32),
    )


@jit(do_not_specialize=["n", "f"])
def _order_kernel(given, scores, orders, n, f, LINES: tl.constexpr, AT_ONCE: tl.constexpr):
    """Of a row: which others follow each other in its order, the place of each, and its first score."""
    row = tl.program_id(0)
    c = tl.arange(0, LINES)
    apart = tl.load(given + row * n + c, mask=c < n, other=0.0)
    apart = tl.where(apart >= 0, apart, float("inf"))  # what is no number has a place too
    rank = tl.zeros((LINES,), tl.int32)
    for start in range(0, n, AT_ONCE):
        k = start + tl.arange(0, AT_ONCE)
        other = tl.load(given + row * n + k, mask=k < n, other=0.0)[None, :]
        other = tl.where(other >= 0, other, float("inf"))
        nearer = (other < apart[:, None]) | ((other == apart[:, None]) & (k[None, :] < c[:, None]))
        rank += tl.sum((nearer & (k < n)[None, :]).to(tl.int32), 1)
    tl.store(orders + row * LINES + rank, c, mask=c < n)
    tl.store(orders + (LINES + c) * LINES + row, rank, mask=c < n)
    tl.store(scores + row, tl.sum(tl.where((c < n) & (rank < n - f - 1), apart, 0.0), 0))


@jit
def _better(least, row, second, other_least, other_row, other_second):
    """The least of two scores, the first row that has it, and the least of the others."""
    first = (least < other_least) | ((least == other_least) & (row < other_row))
    return (
        tl.where(first, least, other_least),
        tl.where(first, row, other_row),
        tl.minimum(tl.where(first, other_least, least), tl.minimum(second, other_second)),
    )


@jit(do_not_specialize=["n", "f", "count"])
def _picks_kernel(
    given, scores, orders, picked, n, f, count, rounding: tl.float64,
    LINES: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    r = tl.arange(0, LINES)
    steps = tl.arange(0, AHEAD)[None, :]
    waiting = r < n
    first = tl.load(scores + r, mask=waiting, other=0.0)
    # What a score is at least; it is at most twice its rounding more.
    least = tl.where(waiting, first - rounding * first, float("inf"))
    far = r * 0 + n - f - 1  # where those too far to count begin
    gone = orders + 2 * LINES * LINES
    tl.store(gone + r, r * 0)
    tl.debug_barrier()
    clear = (tl.sum(first, 0) < float("inf")).to(tl.int32)
    nothing = tl.full((LINES,), float("inf"), tl.float64)
    for pick in range(count):
        lowest, best, second = tl.reduce((least, r, nothing), 0, _better)
        width = 2 * rounding * tl.load(scores + best)
        clear = tl.where(second > lowest + width, clear, 0)
        tl.store(picked + 1 + pick, best)
        tl.store(gone + best, 1)
        tl.debug_barrier()
        waiting = waiting & (r != best)
        its = tl.load(given + best * n + r, mask=waiting, other=0.0)
        beyond = waiting & (tl.load(orders + (LINES + best) * LINES + r, mask=waiting, other=0) >= far)
        least = tl.where(waiting, tl.where(beyond, least, least - its), float("inf"))
        moving = beyond
        while tl.max(moving.to(tl.int32), 0) > 0:
            at = far[:, None] - 1 - steps
            looked = moving[:, None] & (at >= 0)
            line = tl.load(orders + r[:, None] * LINES + at, mask=looked, other=0)
            is_left = looked & (tl.load(gone + line, mask=looked, other=1) == 0)
            last_left = tl.max(tl.where(is_left, at, -1), 1)
            far = tl.where(moving, tl.where(last_left >= 0, last_left, far - AHEAD), far)
            moving = moving & (last_left < 0) & (far > 0)
        last = tl.load(orders + r * LINES + far, mask=beyond & (far >= 0), other=0)
        least -= tl.load(given + r * n + last, mask=beyond, other=0.0)
    tl.store(picked, clear)
