"""RandEigen's rounds on one cloud of up to 128 rows, in one launch.

The programs share each squaring of the covariance (`shared_top`); all else each of them does by itself, on
the same numbers to the bit, so that they go the same way.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.batched import FilterRounds, SoftFilter
from randeigen.backend.cuda.filter_steps import (
    averaged,
    away_from_median,
    kept_of,
    removed,
    rounding_of,
    stop_of,
    without_far,
)
from randeigen.backend.cuda.language import Launch, jit, tl
from randeigen.backend.cuda.order_statistics import heaviest, median
from randeigen.backend.cuda.shared_top import shape_for, shared_top
from randeigen.backend.cuda.spectral_filter import ONE_LEFT, Limits
from randeigen.backend.cuda.tables import KEPT_SHAPES
from randeigen.types import Array

USUAL_ROUNDS = 6  # rounds that are transferred at first: seldom there are more
SCALARS = 4  # numbers of a round beside its weights and projections: a multiple of 16 bytes
STOP_UNIT = 1024  # of the number that says how many rounds there were, and so many times why they ended


class Begun(NamedTuple):
    """Rounds that a GPU goes through."""

    n: int
    plan: _Plan
    room: Any  # on the device; the first numbers are what the rounds come to

    @property
    def first_lines(self) -> Any:
        """The rounds that are transferred at first, on the device."""
        return self.room[: USUAL_ROUNDS * self.plan.width]

    def rounds(self, lines: Array) -> FilterRounds:
        """What they came to, given the first lines on the host."""
        n, (each, width, *_) = self.n, self.plan
        stop, count = divmod(int(lines[2 * each + SCALARS - 1]), STOP_UNIT)
        if count > USUAL_ROUNDS:
            lines = self.room[: count * width].cpu().numpy()
        lines = lines.reshape(-1, width)[:count]
        weights, projections = lines[:, :n], lines[:, each : each + n]
        variances, allowances = lines[:, 2 * each : 2 * each + 2].T
        return FilterRounds(weights, projections, variances, allowances, stop)


def begin_rounds(gram: Any, prior: Array, f: int, rule: SoftFilter, limits: Limits) -> Begun:
    """Begin what RandEigen does on the (n+1, n+1) Gram matrix of n rows and the origin; no wait."""
    import torch

    n = len(prior)
    plan = _plan(gram.device, n, rule.patient + rule.hurried + 2)
    # One transfer: the prior weights, and the count of programs that have come to a meeting.
    numbers = np.zeros(n + 1)
    numbers[:n] = prior
    given = torch.from_numpy(numbers).to(gram.device, non_blocking=True)
    room = torch.empty(plan.room, dtype=torch.float64, device=gram.device)
    plan.launch(gram, given, room, n, f, *rule, *limits, ONE_LEFT)
    return Begun(n, plan, room)


class _Plan(NamedTuple):
    """Everything about a launch but its numbers."""

    lines: int
    width: int  # numbers of a round
    room: int  # numbers of work space
    launch: Launch


@lru_cache(KEPT_SHAPES)
def _plan(device: Any, n: int, rounds: int) -> _Plan:
    shape = shape_for(device, n)
    width = 2 * shape.lines + SCALARS
    constants = {"ROUNDS": rounds, "SCALARS": SCALARS, "STOP_UNIT": STOP_UNIT, **shape.constants()}
    launch = Launch(_rounds_kernel, (shape.programs,), device, constants, **shape.options())
    return _Plan(shape.lines, width, rounds * width + shape.room(), launch)


@jit
def _record(
    history, past, w, projected, variance, allowance, i, LINES: tl.constexpr, SCALARS: tl.constexpr
):  # fmt: skip
    line = history + past * (2 * LINES + SCALARS)
    if tl.program_id(0) == 0:
        tl.store(line + i, w)
        tl.store(line + LINES + i, projected)
        tl.store(line + 2 * LINES, variance)
        tl.store(line + 2 * LINES + 1, allowance)


@jit(do_not_specialize=["n", "f", "patient", "hurried"])
def _rounds_kernel(
    gram, given, history, n, f,
    patient, hurried, far_ratio: tl.float64, isotropy: tl.float64, negligible: tl.float64,
    restored: tl.float64, least_kept: tl.float64, centring: tl.float64, rounding: tl.float64,
    smallest: tl.float64, underflow: tl.float64, precision: tl.float64, floor: tl.float64,
    one_left: tl.float64, ROUNDS: tl.constexpr, SCALARS: tl.constexpr, STOP_UNIT: tl.constexpr,
    LINES: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr,
    PROGRAMS: tl.constexpr, SQUARINGS: tl.constexpr,
):  # fmt: skip
    i = tl.arange(0, LINES)
    counter = (given + n).to(tl.pointer_type(tl.int32), bitcast=True)
    room = history + ROUNDS * (2 * LINES + SCALARS)
    prior = tl.load(given + i, mask=i < n, other=0.0)
    squares = tl.load(gram + i * (n + 2), mask=i < n, other=0.0)
    total = tl.sum(prior, 0)
    held, _others = heaviest(prior, i, n, f)
    least_weight = tl.maximum(total - 2 * held * total, total / n)
    prior = without_far(squares, prior, i, n, f, far_ratio)
    w, least = prior, total * 0.0 + float("inf")
    summed, counted, pace = prior * 0.0, total * 0.0, total * 0.0
    past, stop, is_average, meetings = 0, 0, 0, 0
    # Of rows that the host has not looked at yet some may not be finite: then there are no rounds.
    going = (tl.sum(squares, 0) < float("inf")).to(tl.int32)
    while going > 0:
        variance, allowance, projected, own, mean_square, meetings = shared_top(
            gram, n, w, squares, i, room, counter, meetings, centring, rounding, one_left,
            LINES, TILE, STRIP, COLUMNS, PROGRAMS, SQUARINGS,
        )  # fmt: skip
        _record(history, past, w, projected, variance, allowance, i, LINES, SCALARS)
        if is_average == 1:
            going = 0
        else:
            hidden = rounding_of(mean_square, w, squares, smallest, underflow, precision, floor)
            summed, counted, least = averaged(
                summed, counted, least, variance, hidden, w, prior, i, n, f, restored
            )
            room_left = tl.sum(w, 0) - least_weight
            away = away_from_median(projected, w, i)
            typical = median(own, i, w > 0)
            stop = stop_of(variance, typical, hidden, away, w, room_left, f, isotropy, negligible)
            if stop == 0:
                if past == patient:
                    pace = room_left / hurried
                w = removed(w, away, own, variance, i, room_left, tl.minimum(pace, room_left), negligible)
                going = tl.where(past < patient + hurried, 1, 0)
            else:
                w = kept_of(summed / counted, prior, least_kept)
                is_average = 1
                going = tl.where(past > 0, 1, 0)  # the average of one round is that round
        past += 1
    if tl.program_id(0) == 0:
        tl.store(history + 2 * LINES + SCALARS - 1, total * 0.0 + past + STOP_UNIT * stop)
