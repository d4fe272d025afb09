"""RandEigen on many clouds at once: round by round as `randeigen` does on one, for all that are not done."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.batched import (
    BatchVerdict,
    Flags,
    GeometryBatch,
    Indices,
    Numbers,
    TopDirections,
    along,
    in_order,
    integer_zeros,
    namespace,
    where_true,
)
from randeigen.part_certificate import bounds_of_parts, held_by_heaviest
from randeigen.rules.randeigen import (
    ISOTROPY_TOLERANCE,
    MIN_RELATIVE_WEIGHT,
    NEGLIGIBLE_WEIGHT,
    RESTORED_FACTOR,
    SHARPNESS,
    soft_filter,
)
from randeigen.rules.zhu_batched import far_outliers_of_each
from randeigen.types import Stop

# In the order in which they are asked for; a cloud that meets none goes on.
STOPS = (Stop.MAX_ROUNDS, Stop.DIRECT, Stop.TOO_FEW_ROWS, Stop.IDENTICAL_ROWS, Stop.ISOTROPIC, Stop.BUDGET)
REASONS = tuple(str(stop) for stop in STOPS)


class _Round(NamedTuple):
    """What a round found of the clouds that were not done before it."""

    index: Indices
    weights: Numbers  # (k, n) before the round
    bounds: Numbers  # (k,)


def decide_each(batch: GeometryBatch, f: int) -> BatchVerdict:
    """What `RandEigen.decide` makes of each cloud, with soft removal."""
    xp, constants = namespace(batch.prior_weights), soft_filter(batch.n)
    rounds_at_most = constants.patient, constants.hurried
    if at_once := batch.filtered(f, constants):
        return BatchVerdict(*at_once, REASONS)
    prior = xp.where(far_outliers_of_each(batch, f), 0.0, batch.prior_weights)
    if xp is not np or f == 0:
        return _decided(batch, prior, f, rounds_at_most)
    # Of most words most clients have none: all rows but a few far ones are the pivot, and that is all.
    settled = ~((prior > 0) & (batch.squared_norms_from_pivot() > 0)).any(1) & ((prior > 0).sum(1) > 1)
    going = np.flatnonzero(~settled)
    if len(going) == batch.p:
        return _decided(batch, prior, f, rounds_at_most)
    zeros = np.zeros(batch.p)
    tops = TopDirections(zeros, np.zeros_like(prior), zeros.copy(), zeros.copy())
    weights = prior / prior.sum(1)[:, None]
    codes = np.full(batch.p, STOPS.index(Stop.IDENTICAL_ROWS))
    if len(going):
        verdict = _decided(batch.take(going), prior[going], f, rounds_at_most)
        weights[going], codes[going] = verdict.weights, verdict.codes
        for values, of_going in zip(tops, verdict.tops, strict=True):
            values[going] = of_going
    return BatchVerdict(weights, codes, tops, REASONS)


def _decided(batch: GeometryBatch, prior: Numbers, f: int, rounds_at_most: tuple[int, int]) -> BatchVerdict:
    """The same after far outliers have lost their weight."""
    xp, everything, n = namespace(prior), batch, batch.n
    total = batch.prior_weights.sum(1)
    floor = xp.maximum(total - 2 * held_by_heaviest(batch.prior_weights, f).heaviest * total, total / n)
    patient, hurried = rounds_at_most
    stops = integer_zeros(total)
    index, w, rounds = where_true(total > -1), prior, list[_Round]()  # all of them
    tops = top = batch.top_directions(w)  # under the weights that each cloud ends with
    pace = total * 0
    for past in range(patient + hurried + 1):
        top = top if past == 0 else batch.top_directions(w)
        hidden = batch.rounding_errors(w)
        visible = xp.clip(top.variances + hidden, 0, None)
        rounds.append(_Round(index, w, bounds_of_parts(held_by_heaviest(w, f), visible)))
        room, share = w.sum(1) - floor, _removal_shares(top, w)
        code = _stops(hidden, w, top, share, room, f)
        stops[index] = code
        going = where_true(code == 0)
        if not len(going):
            break
        if len(going) < len(index):
            batch, index, w, share, room = (
                batch.take(going),
                index[going],
                w[going],
                share[going],
                room[going],
            )
            floor, pace, top = floor[going], pace[going], TopDirections(*(part[going] for part in top))
        if past == patient:
            pace = room / hurried
        removal = xp.minimum(pace, room)
        slow = where_true((w * share).sum(1) < removal)
        if len(slow):
            share[slow] = _hurried(share[slow], batch.take(slow), top.variances[slow], w[slow], removal[slow])
        share = share * xp.clip(room / (w * share).sum(1), None, 1.0)[:, None]
        w = w * (1 - share)
        w = xp.where(w > NEGLIGIBLE_WEIGHT * xp.amax(w, 1)[:, None], w, 0.0)
    weights = _average(prior, rounds)
    changed = where_true((weights != prior).any(1))
    if len(changed):
        for values, of_changed in zip(
            tops, everything.take(changed).top_directions(weights[changed]), strict=True
        ):
            values[changed] = of_changed
    return BatchVerdict(weights / weights.sum(1)[:, None], stops, tops, REASONS)


def _stops(hidden: Numbers, w: Numbers, top: TopDirections, share: Numbers, room: Numbers, f: int) -> Any:
    """(k,) the number of the first stop that each cloud meets; 0 where it goes on.

    `hidden` is how much of a variance rounding can hide.
    """
    code = integer_zeros(room)
    if f == 0:
        return code + 1
    met = (
        (w > 0).sum(1) < 2,
        (top.variances <= hidden) | ~(share > 0).any(1),
        top.variances <= ISOTROPY_TOLERANCE * top.typical_row_variances,
        room <= NEGLIGIBLE_WEIGHT * w.sum(1),
    )
    for number, condition in reversed(list(enumerate(met, 2))):
        code[condition] = number
    return code


def _removal_shares(top: TopDirections, w: Numbers) -> Numbers:
    """(k, n) the fraction of its weight each row loses: 1 for the furthest from the weighted median."""
    xp = namespace(w)
    away = xp.where(w > 0, abs(top.projections - _weighted_medians(top.projections, w)[:, None]), 0.0)
    furthest = xp.amax(away, 1)[:, None]
    return (away / xp.where(furthest > 0, furthest, 1.0)) ** SHARPNESS


def _weighted_medians(values: Numbers, w: Numbers) -> Numbers:
    """(k,) of the rows that have weight; the midpoint on a tie."""
    xp = namespace(w)
    order = in_order(xp.where(w > 0, values, xp.inf))
    sums = xp.cumsum(along(w, order), 1)
    half, tie = sums[:, -1:] / 2, 1e-12 * sums[:, -1:]
    live = (w > 0).sum(1)[:, None]
    low, high = (sums < half - tie).sum(1)[:, None], (sums < half + tie).sum(1)[:, None]
    high = xp.minimum(high, xp.clip(live - 1, 0, None))
    return (along(values, along(order, low)) + along(values, along(order, high)))[:, 0] / 2


def _hurried(share: Numbers, batch: GeometryBatch, variances: Numbers, w: Numbers, pace: Numbers) -> Numbers:
    """(k, n) what `hurried_share` gives each cloud."""
    xp = namespace(w)
    weights = w / w.sum(1)[:, None]
    own = weights * batch.squared_distances_from_means(weights)
    out = xp.maximum(share ** (2 / SHARPNESS), own / variances[:, None])
    out = xp.where(w > 0, out, -1.0)
    order = in_order(-out)
    sums = xp.cumsum(along(w, order), 1)
    at = xp.minimum((sums < pace[:, None]).sum(1), xp.clip((w > 0).sum(1) - 1, 0, None))[:, None]
    last = along(out, along(order, at))
    beyond: Flags = out > last
    equal: Flags = out == last
    held, among = xp.where(beyond, w, 0.0).sum(1), xp.where(equal, w, 0.0).sum(1)
    part = xp.clip(xp.clip(pace - held, 0, None) / among, None, 1.0)[:, None]
    taken = xp.where(beyond, 1.0, xp.where(equal, part, 0.0))
    return xp.maximum(share, xp.where(w > 0, taken, 0.0))


def _average(prior: Numbers, rounds: list[_Round]) -> Numbers:
    """(p, n) the average of each cloud's rounds, by their certificates and the weight they still have."""
    xp, total = namespace(prior), prior.sum(1)
    least = total * 0 + xp.inf
    for each in rounds:
        least[each.index] = xp.minimum(least[each.index], each.bounds)
    summed, counted = xp.zeros_like(prior), total * 0
    usual = (least > 0) & (least < xp.inf)
    for index, weights, bounds in rounds:
        low, ordinary = least[index], usual[index]
        ratio = xp.where(ordinary, low, 1.0) / xp.where(ordinary, bounds, 1.0)
        left = weights.sum(1) / total[index]
        count = xp.where(ordinary, ratio**8 * left**2, 1.0 * (bounds <= low))
        summed[index] += count[:, None] * xp.minimum(prior[index], RESTORED_FACTOR * weights)
        counted[index] += count
    average = summed / counted[:, None]
    kept = average / xp.where(prior > 0, prior, 1.0)
    return xp.where(kept > MIN_RELATIVE_WEIGHT * xp.amax(kept, 1)[:, None], average, 0.0)
