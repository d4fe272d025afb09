"""RandEigen's rounds on one cloud of up to 128 rows in one launch: its top directions, round by round.

A few programs share each squaring of the covariance, a tile each, and wait for one another before the next;
all else each of them does by itself, on the same numbers to the bit, so that they go the same way. The host
goes through the same rounds afterwards and takes a direction from here where its weights are those it was
found for: nothing but time depends on this kernel.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.batched import SoftFilter
from randeigen.backend.cuda.filter_steps import (
    averaged,
    away_from_median,
    heaviest,
    kept_of,
    median_of,
    removed,
    rounding_of,
    stop_of,
    without_far,
)
from randeigen.backend.cuda.language import Launch, jit, tl, triton
from randeigen.backend.cuda.spectral_filter import MAX_SQUARINGS, ONE_LEFT, Limits
from randeigen.backend.cuda.tables import KEPT_SHAPES
from randeigen.types import Array

ROUNDS = 16  # rounds that are recorded; what comes after them the host finds by itself
TILE = 32  # lines and columns of the tile that a program squares
STRIP = 32  # columns that it multiplies at once
SCALARS = 4  # numbers of a round beside its weights and projections
MATRICES = 3  # the covariance, and two powers of it, each made of the other
VECTORS = 2  # of each program's own


class Round(NamedTuple):
    """The top direction under some weights."""

    weights: Array  # (n,)
    projections: Array  # (n,)
    variance: float
    typical_row_variance: float
    allowance: float


def rounds_of(gram: Any, prior: Array, f: int, rule: SoftFilter, limits: Limits) -> list[Round]:
    """What RandEigen finds round by round in the (n+1, n+1) Gram matrix of n rows and the origin.

    Last, where there is more than one round, that of their average.
    """
    import torch

    n = len(prior)
    plan = _plan(gram.device, n)
    # One transfer: the prior weights, and the count of programs that have come to a meeting.
    numbers = np.zeros(n + 1)
    numbers[:n] = prior
    given = torch.from_numpy(numbers).to(gram.device, non_blocking=True)
    room = torch.empty(plan.room, dtype=torch.float64, device=gram.device)
    history = torch.empty((ROUNDS + 1, plan.width), dtype=torch.float64, device=gram.device)
    plan.launch(gram, given, room, history, n, f, *rule, *limits, ONE_LEFT)
    lines = history.cpu().numpy()
    count = int(lines[0, -1])  # of the rounds, in every line that was written
    return [_round(line, n, plan.lines) for line in lines[:count]]


def _round(line: Array, n: int, lines: int) -> Round:
    variance, typical, allowance = line[2 * lines : 2 * lines + 3].tolist()
    return Round(line[:n], line[lines : lines + n], variance, typical, allowance)


class _Plan(NamedTuple):
    """Everything about a launch but its numbers."""

    lines: int
    width: int  # numbers of a round
    room: int  # numbers of work space
    launch: Launch


@lru_cache(KEPT_SHAPES)
def _plan(device: Any, n: int) -> _Plan:
    lines = max(TILE, triton.next_power_of_2(n))
    # In Triton's interpreter, which has no GPU, one program comes after the other, and none can wait.
    programs = (lines // TILE) ** 2 if device.type == "cuda" else 1
    constants = {"LINES": lines, "TILE": TILE, "STRIP": STRIP, "ROUNDS": ROUNDS, "SCALARS": SCALARS,
                 "PROGRAMS": programs, "SQUARINGS": MAX_SQUARINGS}  # fmt: skip
    launch = Launch(_rounds_kernel, (programs,), device, constants, num_warps=4)
    return _Plan(lines, 2 * lines + SCALARS, MATRICES * lines**2 + VECTORS * programs * lines, launch)


@jit
def meet(counter, meetings, PROGRAMS: tl.constexpr):
    """Wait until every program has come here; what they have stored can be loaded then."""
    tl.debug_barrier()
    if PROGRAMS > 1:
        tl.atomic_add(counter, 1, sem="release", scope="gpu")
        while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < (meetings + 1) * PROGRAMS:
            pass
        tl.debug_barrier()
    return meetings + 1


@jit
def _times(matrix, stride, n, mine, vector, i, LINES: tl.constexpr, STRIP: tl.constexpr):
    """(LINES,) the first n lines and columns of a symmetric matrix, times a vector."""
    tl.debug_barrier()
    tl.store(mine + i, vector)
    tl.debug_barrier()
    total = tl.zeros((LINES,), tl.float64)
    for start in range(0, LINES, STRIP):
        c = start + tl.arange(0, STRIP)
        inside = (i < n)[:, None] & (c < n)[None, :]
        x = tl.load(matrix + c[None, :] * stride + i[:, None], mask=inside, other=0.0, cache_modifier=".cg")
        total += tl.sum(x * tl.load(mine + c, cache_modifier=".cg")[None, :], 1)
    return total


@jit
def _top(
    gram, n, w, squares, i, room, mine, counter, meetings, centring, rounding, one_left,
    LINES: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr, PROGRAMS: tl.constexpr,
    SQUARINGS: tl.constexpr,
):  # fmt: skip
    """Variance, allowance, projections on the top direction, what each row alone adds, the mean square."""
    program = tl.program_id(0)
    SIDE: tl.constexpr = LINES // TILE
    w = w / tl.sum(w, 0)
    mean_square = tl.sum(w * squares, 0)
    to_mean = _times(gram, n + 1, n, mine, w, i, LINES, STRIP)
    to_mean -= tl.sum(w * to_mean, 0) / 2
    root = tl.sqrt(w)
    own = (squares - 2 * to_mean) * w
    trace = tl.sum(own, 0)
    value, allowance, projections = tl.maximum(trace, 0.0), trace * 0.0, w * 0.0
    if trace > centring * mean_square:
        tl.debug_barrier()
        tl.store(mine + i, to_mean)
        tl.store(mine + LINES + i, root)
        meetings = meet(counter, meetings, PROGRAMS)  # no other program reads the last matrix any more
        for tile in range(program, SIDE * SIDE, PROGRAMS):
            r, c = tile // SIDE * TILE + tl.arange(0, TILE), tile % SIDE * TILE + tl.arange(0, TILE)
            inside = (r < n)[:, None] & (c < n)[None, :]
            x = tl.load(gram + r[:, None] * (n + 1) + c[None, :], mask=inside, other=0.0)
            x -= tl.load(mine + r, cache_modifier=".cg")[:, None]
            x -= tl.load(mine + c, cache_modifier=".cg")[None, :]
            x *= tl.load(mine + LINES + r, cache_modifier=".cg")[:, None]
            x *= tl.load(mine + LINES + c, cache_modifier=".cg")[None, :]
            tl.store(room + r[:, None] * LINES + c[None, :], tl.where(inside, x / trace, 0.0))
        meetings = meet(counter, meetings, PROGRAMS)
        logarithm, share, size = trace * 0.0, trace * 0.0, trace * 0.0 + 1.0
        done, exponent, power = 0, 1.0, 0
        while (done < SQUARINGS) & (share < 1 - one_left):
            other = (1 + done % 2) * LINES * LINES
            for tile in range(program, SIDE * SIDE, PROGRAMS):
                r, c = tile // SIDE * TILE + tl.arange(0, TILE), tile % SIDE * TILE + tl.arange(0, TILE)
                total = tl.zeros((TILE, TILE), tl.float64)
                for start in range(0, LINES, STRIP):
                    k = start + tl.arange(0, STRIP)
                    left = tl.load(room + power + r[:, None] * LINES + k[None, :], cache_modifier=".cg")
                    right = tl.load(room + power + k[:, None] * LINES + c[None, :], cache_modifier=".cg")
                    total += tl.dot(left, right, input_precision="ieee", out_dtype=tl.float64)
                tl.store(room + other + r[:, None] * LINES + c[None, :], total / (size * size))
            meetings = meet(counter, meetings, PROGRAMS)
            power = other
            share = tl.sum(tl.load(room + power + i * (LINES + 1), cache_modifier=".cg"), 0)
            size = share
            exponent = exponent * 2
            logarithm += tl.log(share) / exponent
            done += 1
        most = tl.exp(logarithm) * (1 + rounding)
        # The line with the largest diagonal entry holds at least 1/sqrt(n) of the top eigenvector.
        at = tl.argmax(tl.load(room + power + i * (LINES + 1), cache_modifier=".cg"), 0)
        vector = tl.load(room + power + at * LINES + i, cache_modifier=".cg")
        vector = vector / tl.sqrt(tl.sum(vector * vector, 0))
        for _ in tl.static_range(2):  # products of the matrix itself take out rounding
            vector = _times(room, LINES, LINES, mine, vector, i, LINES, STRIP)
            vector = vector / tl.sqrt(tl.sum(vector * vector, 0))
        image = _times(room, LINES, LINES, mine, vector, i, LINES, STRIP)
        top = tl.sum(image * vector, 0)
        value, allowance = top * trace, tl.maximum(most - top, 0.0) * trace
        projections = image * trace / tl.where(w > 0, root * tl.sqrt(value), float("inf"))
    return value, allowance, projections, own, mean_square, meetings


@jit
def _record(
    history, past, w, projected, variance, typical, allowance, i, LINES: tl.constexpr, SCALARS: tl.constexpr
):  # fmt: skip
    line = history + past * (2 * LINES + SCALARS)
    if tl.program_id(0) == 0:
        tl.store(line + i, w)
        tl.store(line + LINES + i, projected)
        tl.store(line + 2 * LINES, variance)
        tl.store(line + 2 * LINES + 1, typical)
        tl.store(line + 2 * LINES + 2, allowance)


@jit(do_not_specialize=["n", "f", "patient", "hurried"])
def _rounds_kernel(
    gram, given, room, history, n, f,
    patient, hurried, far_ratio: tl.float64, isotropy: tl.float64, negligible: tl.float64,
    restored: tl.float64, least_kept: tl.float64, centring: tl.float64, rounding: tl.float64,
    smallest: tl.float64, underflow: tl.float64, precision: tl.float64, floor: tl.float64,
    one_left: tl.float64, LINES: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr,
    ROUNDS: tl.constexpr, SCALARS: tl.constexpr, PROGRAMS: tl.constexpr, SQUARINGS: tl.constexpr,
):  # fmt: skip
    i = tl.arange(0, LINES)
    counter = (given + n).to(tl.pointer_type(tl.int32), bitcast=True)
    mine = room + 3 * LINES * LINES + tl.program_id(0) * 2 * LINES
    prior = tl.load(given + i, mask=i < n, other=0.0)
    squares = tl.load(gram + i * (n + 2), mask=i < n, other=0.0)
    total = tl.sum(prior, 0)
    held, _others = heaviest(prior, i, n, f)
    least_weight = tl.maximum(total - 2 * held * total, total / n)
    prior = without_far(squares, prior, i, n, f, far_ratio)
    w, least = prior, total * 0.0 + float("inf")
    summed, counted, pace = prior * 0.0, total * 0.0, total * 0.0
    past, stop, meetings = 0, 0, 0
    while (stop == 0) & (past < ROUNDS) & (past <= patient + hurried):
        variance, allowance, projected, own, mean_square, meetings = _top(
            gram, n, w, squares, i, room, mine, counter, meetings, centring, rounding, one_left,
            LINES, TILE, STRIP, PROGRAMS, SQUARINGS,
        )  # fmt: skip
        typical = median_of(own, i, w > 0)
        _record(history, past, w, projected, variance, typical, allowance, i, LINES, SCALARS)
        hidden = rounding_of(mean_square, w, squares, smallest, underflow, precision, floor)
        summed, counted, least = averaged(
            summed, counted, least, variance, hidden, w, prior, i, n, f, restored
        )
        room_left = tl.sum(w, 0) - least_weight
        away = away_from_median(projected, w, i)
        stop = stop_of(variance, typical, hidden, away, w, room_left, f, isotropy, negligible)
        if stop == 0:
            if past == patient:
                pace = room_left / hurried
            w = removed(w, away, own, variance, i, room_left, tl.minimum(pace, room_left), negligible)
        past += 1
    if (stop > 0) & (past > 1):
        w = kept_of(summed / counted, prior, least_kept)
        variance, allowance, projected, own, mean_square, meetings = _top(
            gram, n, w, squares, i, room, mine, counter, meetings, centring, rounding, one_left,
            LINES, TILE, STRIP, PROGRAMS, SQUARINGS,
        )  # fmt: skip
        typical = median_of(own, i, w > 0)
        _record(history, past, w, projected, variance, typical, allowance, i, LINES, SCALARS)
        past += 1
    if tl.program_id(0) == 0:
        tl.store(history + 2 * LINES + SCALARS - 1, total * 0.0 + past)
