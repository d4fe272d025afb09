"""FILTERING and NO-REGRET of Zhu et al. on many clouds at once; `zhu` has the same for one.

Every loop runs for the rounds that the rule allows at most. A cloud that is done, its top variance below the
threshold or its rows all alike, is left out of the rounds after.
"""

from __future__ import annotations

import math

from randeigen.backend.batched import (
    Flags,
    GeometryBatch,
    Numbers,
    along,
    in_order,
    medians,
    namespace,
    sorted_lines,
    where_true,
)
from randeigen.rules.randeigen import FAR_OUTLIER_RATIO, NEGLIGIBLE_WEIGHT


def filter_weights(batch: GeometryBatch, rounds: int, sigma: Numbers, expansion: float) -> Numbers:
    """(p, n) what `zhu_filter_weights` gives each cloud; `sigma` holds one variance for each."""
    xp, prior = namespace(batch.prior_weights), batch.prior_weights
    far = far_outliers_of_each(batch, rounds // 2)
    weights, rounds_left = xp.where(far, 0.0, prior), rounds - far.sum(1)
    busy = where_true(rounds_left > 0)
    batch = batch if len(busy) == batch.p else batch.take(busy)
    for past in range(1, rounds + 1):
        if not len(busy):
            break
        w, top = weights[busy], batch.top_directions(weights[busy])
        scores = xp.where(w > 0, top.projections**2, 0.0)
        furthest = xp.amax(scores, 1)
        left = w * (1 - scores / xp.where(furthest > 0, furthest, 1.0)[:, None])
        left = xp.where(left > NEGLIGIBLE_WEIGHT * prior[busy], left, 0.0)
        filtered = (top.variances > math.sqrt(expansion) * sigma[busy]) & (furthest > 0) & (left > 0).any(1)
        weights[busy] = xp.where(filtered[:, None], left, w)
        still = where_true(filtered & (rounds_left[busy] > past))
        if len(still) < len(busy):
            busy, batch = busy[still], batch.take(still)
    return weights / weights.sum(1)[:, None]


def no_regret_weights_of_each(batch: GeometryBatch, f: int, sigma: Numbers, expansion: float) -> Numbers:
    """(p, n) what `no_regret_weights` gives each cloud; `sigma` holds one variance for each."""
    xp, n, prior = namespace(batch.prior_weights), batch.n, batch.prior_weights
    apart = batch.squared_distances()
    # A row is at distance 0 from itself, which is the least.
    nearest = sorted_lines(apart**0.5)[:, :, 1 : 1 + max(n - f - 2, 1)]
    kept = in_order(in_order(nearest.sum(2))) < n - f  # by rank; of equal ones the first
    weights = xp.where(kept, prior, 0.0)
    weights = xp.where((weights > 0).any(1)[:, None], weights, prior)
    weights = weights / weights.sum(1)[:, None]
    cap = weights / (1 - f / n)
    both = (kept & (prior > 0))[:, :, None] & (kept & (prior > 0))[:, None, :]
    diameter = xp.amax(xp.where(both, apart, 0.0), (1, 2))  # squared
    busy = where_true(diameter > 0)
    batch = batch if len(busy) == batch.p else batch.take(busy)
    for _ in range(2 * f * (n - f) // n):
        if not len(busy):
            break
        w, top, most = weights[busy], batch.top_directions(weights[busy]), diameter[busy][:, None]
        filtered = (top.variances > math.sqrt(expansion) * sigma[busy]) & (top.variances > 0)
        left = _under_caps(w * (1 - 0.5 * xp.minimum(top.projections**2, most) / most), cap[busy])
        weights[busy] = xp.where(filtered[:, None], left, w)
        still = where_true(filtered)
        if len(still) < len(busy):
            busy, batch = busy[still], batch.take(still)
    return weights


def far_outliers_of_each(batch: GeometryBatch, f: int) -> Flags:
    """(p, n) what `far_outliers` says of each cloud."""
    squares = batch.squared_norms_from_pivot()
    far = squares > FAR_OUTLIER_RATIO * medians(squares)[:, None]
    return far & (far.sum(1) <= f)[:, None] & ((batch.prior_weights > 0) & ~far).any(1)[:, None]


def _under_caps(weights: Numbers, cap: Numbers) -> Numbers:
    """(p, n) what `under_cap` makes of each line: min(cap, θ·weights) with sum 1."""
    xp = namespace(weights)
    live = weights > 0
    order = in_order(-xp.where(live, weights / xp.where(live, cap, 1.0), 0.0))
    w, most, counts = along(weights, order), along(cap, order), along(live, order)
    most = xp.where(counts, most, 0.0)
    room = (
        1 - xp.cumsum(most, 1) + most
    )  # left for a row and those after it, once all before are at their cap
    rest = xp.flip(xp.cumsum(xp.flip(w, (1,)), 1), (1,))
    factor = room / xp.where(counts, rest, 1.0)
    fits = counts & (room > 0) & (factor * w <= most * (1 + 1e-12))
    first = xp.argmax(fits * xp.ones_like(w), 1)[:, None]
    theta = xp.where(fits.any(1)[:, None], along(factor, first), xp.inf)
    capped = xp.where(live, xp.minimum(cap, xp.where(live, theta * weights, 0.0)), 0.0)
    return capped / capped.sum(1)[:, None]
