"""Variants of the default rule: the same loop with one or more of its parts exchanged.

They are measured beside it (docs/departures.md). With nothing exchanged this is the default again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator

from randeigen.certificate import bound, corruptible
from randeigen.rules.randeigen import (
    MIN_RELATIVE_WEIGHT,
    NEGLIGIBLE_WEIGHT,
    weighted_median,
    without_negligible,
)
from randeigen.types import Array, Geometry, Stop, TopDirection, Verdict

TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class SoftFilter:
    """A soft spectral filter, part by part."""

    centre: Literal["median", "mean"] = "median"  # distances along the top direction are from here
    sharpness: float = 1.5  # a row loses the share (distance / largest distance) ** sharpness of its weight
    short_last: bool = True  # the last round removes only what is left of the budget
    restored: float = 1.5  # weights are raised by this factor, up to the prior weights, in the answer
    choose: Literal["blend", "certificate", "variance"] = "blend"  # or the round with the least of either
    trace: float = MIN_RELATIVE_WEIGHT  # weights below this fraction of the largest become 0

    def weigh(self, geometry: Geometry, f: int, rng: Generator) -> Verdict:
        """Filter, then choose a round or blend them."""
        history, variances = self.rounds(geometry, f)
        bounds = [bound(geometry, c, f, v) for c, v in zip(history, variances, strict=True)]
        shares = self.round_weights(np.array(history), np.array(variances), np.array(bounds))
        w = shares @ np.minimum(geometry.prior_weights, self.restored * np.array(history))
        w = without_negligible(w, self.trace)
        # No bounds: those of the rounds are not that of their blend.
        return Verdict(w / w.sum(), Stop.BUDGET, spreads=tuple(np.sqrt(variances)))

    def rounds(self, geometry: Geometry, f: int) -> tuple[list[Array], list[float]]:
        """The weights before each round and the top variance under them."""
        history: list[Array] = []
        variances: list[float] = []
        w, floor = (
            geometry.prior_weights,
            float(geometry.prior_weights.sum()) - 2 * corruptible(geometry.prior_weights, f)[0],
        )
        while w.sum() >= floor - NEGLIGIBLE_WEIGHT:
            spread = geometry.top_direction(w)
            history.append(w)
            variances.append(spread.variance)
            room = float(w.sum()) - floor
            if room <= NEGLIGIBLE_WEIGHT * w.sum() or spread.variance <= geometry.rounding_error(w):
                break
            share = self.share(spread, w)
            if not share.any():
                break
            if self.short_last:
                share = share * min(1.0, room / float(w @ share))
            w = without_negligible(w * (1 - share))
        return history, variances

    def share(self, spread: TopDirection, w: Array) -> Array:
        """(n,) the share of its weight that each row loses."""
        live = w > 0
        middle = 0.0 if self.centre == "mean" else weighted_median(spread.projections[live], w[live])
        away = np.where(live, abs(spread.projections - middle), 0.0)
        return np.asarray((away / max(away.max(), TINY)) ** self.sharpness)

    def round_weights(self, history: Array, variances: Array, bounds: Array) -> Array:
        """(rounds,) the weight of each round in the answer."""
        criterion = variances if self.choose == "variance" else bounds
        least = criterion.min()
        if self.choose == "blend" and 0 < least < np.inf:
            return np.asarray((least / bounds) ** 8 * (history.sum(axis=1) / history[0].sum()) ** 2)
        return np.asarray(np.arange(criterion.size) == criterion.argmin(), dtype=float)


VARIANTS = {
    "least certificate": SoftFilter("mean", 2.0, False, 1.0, "certificate", NEGLIGIBLE_WEIGHT),
    "least eigenvalue": SoftFilter("mean", 2.0, False, 1.0, "variance", NEGLIGIBLE_WEIGHT),
    "scores squared": SoftFilter("mean", 4.0, False, 1.0, "certificate", NEGLIGIBLE_WEIGHT),
    "least certificate, from the median": SoftFilter(
        "median", 2.0, False, 1.0, "certificate", NEGLIGIBLE_WEIGHT
    ),
    "default without the blend": SoftFilter(choose="certificate"),
    "default from the mean": SoftFilter(centre="mean"),
}
