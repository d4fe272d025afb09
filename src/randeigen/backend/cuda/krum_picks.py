"""Bulyan's picks on a GPU: the best row by Krum's score of those left, one after the other, in one launch.

A program has the distances of a few rows in its registers. A row's score leaves out the f+1 furthest of the
rows left: those from a place on in the order of its distances, which moves on when one of them is picked.
Scores are summed up afresh for each pick, and programs wait for one another to know the best of all.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from randeigen.backend.cuda.language import Launch, jit, tl, triton
from randeigen.backend.cuda.shared_top import meet
from randeigen.backend.cuda.tables import KEPT_SHAPES, processors
from randeigen.types import Array, Index

MAX_ROWS = 256  # rows: the distances of 16 of them to so many fit the registers of a program
MIN_CORRUPT = 3  # with fewer the last scores are those of two rows, equal, or leave out fewer than f+1
PROGRAM_ROWS, PROGRAM_WARPS = 16, 4  # rows of a program, and its warps
ROUNDING = 4e-15  # of a score, for each row: scores that differ by no more are as good as equal


def krum_picks(apart: Array, f: int, count: int, device: Any) -> Index | None:
    """The `count` rows that Krum picks by (n, n) distances, in order.

    None where two are as good as equal at some pick, or where this kernel does not do for so many rows.
    """
    import torch

    n = len(apart)
    lines, programs, launch = _plan(device, min(n, MAX_ROWS))
    if n > MAX_ROWS or f < MIN_CORRUPT or programs > processors(device):
        return None
    # One transfer: the distances, and the count of programs that have come to a meeting.
    numbers = np.zeros(n * n + 1)
    numbers[:-1] = apart.reshape(-1)
    given = torch.from_numpy(numbers).to(device, non_blocking=True)
    room = torch.empty(6 * programs + lines + 1, dtype=torch.float64, device=device)
    launch(given, room, n, f, count, ROUNDING * n)
    picked = room[6 * programs : 6 * programs + count + 1].cpu().numpy().astype(np.intp)
    return picked[1:] if picked[0] else None


@lru_cache(KEPT_SHAPES)
def _plan(device: Any, n: int) -> tuple[int, int, Launch]:
    lines = max(PROGRAM_ROWS, triton.next_power_of_2(n))
    rows = PROGRAM_ROWS if device.type == "cuda" else lines  # in Triton's interpreter none can wait
    programs = lines // rows
    constants = {"LINES": lines, "ROWS": rows, "PROGRAMS": programs}
    # They wait for one another.
    options = {"num_warps": PROGRAM_WARPS, "launch_cooperative_grid": programs > 1}
    return lines, programs, Launch(_picks_kernel, (programs,), device, constants, **options)


@jit
def _next_furthest(apart, c, left, limit, at):
    """Of each row the furthest of those left that is before its place: the distance, and which one it is."""
    before = left[None, :] & ((apart < limit[:, None]) | ((apart == limit[:, None]) & (c < at[:, None])))
    furthest = tl.max(tl.where(before, apart, -1.0), 1)
    return furthest, tl.max(tl.where(before & (apart == furthest[:, None]), c, -1), 1)


@jit(do_not_specialize=["n", "f", "count"])
def _picks_kernel(
    given, room, n, f, count, rounding: tl.float64,
    LINES: tl.constexpr, ROWS: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    counter = (given + n * n).to(tl.pointer_type(tl.int32), bitcast=True)
    r = program * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, LINES)
    c = column[None, :]
    every = tl.arange(0, PROGRAMS)
    out = room + 6 * PROGRAMS
    apart = tl.load(given + r[:, None] * n + c, mask=(r < n)[:, None] & (c < n), other=0.0)
    left, waiting = column < n, r < n
    limit, at = tl.sum(apart * 0.0, 1) + float("inf"), r * 0 + LINES
    for _ in range(f + 1):
        limit, at = _next_furthest(apart, c, left, limit, at)
    clear, meetings = 1.0, 0
    for gone in range(count):
        near = left[None, :] & ((apart < limit[:, None]) | ((apart == limit[:, None]) & (c < at[:, None])))
        scores = tl.where(waiting, tl.sum(tl.where(near, apart, 0.0), 1), float("inf"))
        least = tl.min(scores, 0)
        best = tl.min(tl.where(scores == least, r, LINES), 0)
        second = tl.min(tl.where(r == best, float("inf"), scores), 0)
        board = room + gone % 2 * 3 * PROGRAMS
        tl.store(board + program, least)
        tl.store(board + PROGRAMS + program, second)
        tl.store(board + 2 * PROGRAMS + program, best.to(tl.float64))
        meetings = meet(counter, meetings, PROGRAMS)
        each = tl.load(board + every, cache_modifier=".cg")
        seconds = tl.load(board + PROGRAMS + every, cache_modifier=".cg")
        bests = tl.load(board + 2 * PROGRAMS + every, cache_modifier=".cg").to(tl.int32)
        least = tl.min(each, 0)
        best = tl.min(tl.where(each == least, bests, LINES), 0)
        second = tl.min(tl.where(bests == best, seconds, each), 0)
        clear = tl.where(second <= least + rounding * least, 0.0, clear)
        if program == 0:
            tl.store(out + 1 + gone, best.to(tl.float64))
        left = left & (column != best)
        waiting = waiting & (r != best)
        its = tl.sum(tl.where(c == best, apart, 0.0), 1)
        was_far = (its > limit) | ((its == limit) & (best >= at))
        further, line = _next_furthest(apart, c, left, limit, at)
        limit, at = tl.where(was_far, further, limit), tl.where(was_far, line, at)
    if program == 0:
        tl.store(out, clear)
