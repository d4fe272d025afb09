"""RandEigen's rounds that a GPU goes through: when they may begin, and the verdict from them.

What `FilterHistory` makes of rounds one by one is made of all of them at once here.
"""

from __future__ import annotations

import math
import sys

import numpy as np

from randeigen.backend.batched import FilterRounds, RoundsAhead
from randeigen.certificate import bound
from randeigen.rules.base import Rule, normalised
from randeigen.rules.randeigen import WHOLE_WEIGHT, RandEigen, soft_filter
from randeigen.rules.randeigen_batched import STOPS
from randeigen.types import Array, Geometry, Mask, Statistic, Verdict

EXACT = 1e-12  # of a variance: LAPACK's own rounding, for which nothing is allowed either


def rounds_ahead(rule: Rule, n: int) -> RoundsAhead | None:
    """The rounds that will be asked for on n usable rows: by this rule, or by its certificate."""
    # A rule that looks at columns alone is certified by rounds.
    by_columns = rule.statistic() is Statistic.NONE and not rule.weighs_rows()
    by_rounds = rule.removal == "soft" if type(rule) is RandEigen else by_columns
    return RoundsAhead(rule.assumed_corrupt(n), soft_filter(n)) if by_rounds else None


def verdict_of(rounds: FilterRounds, geometry: Geometry, prior: Array, f: int, far: Mask) -> Verdict:
    """The verdict on rows of these prior weights, those far out without any."""
    weights, variances = rounds.weights, rounds.variances.tolist()
    w, allowance = weights[-1], float(rounds.allowances[-1])
    bounds = [bound(geometry, each, f, top) for each, top in zip(weights, variances, strict=True)]
    if allowance > EXACT * variances[-1]:
        bounds[-1] = bound(geometry, w, f, variances[-1] + allowance)
    dropped_in_round, scores = np.zeros(w.size, np.intp), np.zeros(w.size)
    if len(weights) > 2:
        # In each round but the last, which takes nothing; what comes after it is the average.
        losses = weights[:-2] - weights[1:-1]
        most = losses.argmax(axis=0)
        lost = (losses.max(axis=0) > 0) & (w < WHOLE_WEIGHT * prior)
        own = rounds.projections[most, np.arange(w.size)] ** 2 / rounds.variances[most]
        dropped_in_round = np.where(lost, most + 1, 0)
        scores = np.where(lost, np.minimum(own, sys.float_info.max), 0.0)
    return Verdict(
        normalised(w),
        STOPS[rounds.stop],
        spreads=tuple(geometry.scale * math.sqrt(each) for each in variances),
        bounds=tuple(bounds),
        answer_round=len(bounds) - 1,
        dropped_in_round=dropped_in_round,
        scores=scores,
        far_outliers=far,
    )
