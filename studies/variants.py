"""Neighbours of the default rule: the same loop with one or more of its parts exchanged.

They exist to be measured beside it (docs/departures.md). With nothing exchanged this is the default again.
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

    centre: Literal["median", "mean"] = "median"  # distances along the widest direction are from here
    sharpness: float = 1.5  # a row loses the share (distance / largest distance) ** sharpness
    short_last: bool = True  # the last round takes only what the budget of mass still allows
    restored: float = 1.5  # masses are raised by this factor, up to the prior, before they count
    choose: Literal["blend", "certificate", "variance"] = "blend"  # or the round with the least of it
    trace: float = MIN_RELATIVE_WEIGHT  # of the heaviest row: less than this in the answer is none

    def weigh(self, geometry: Geometry, f: int, rng: Generator) -> Verdict:
        """Filter, then choose or blend."""
        masses, variances = self.rounds(geometry, f)
        bounds = [bound(geometry, c, f, v) for c, v in zip(masses, variances, strict=True)]
        say = self.say(np.array(masses), np.array(variances), np.array(bounds))
        mass = say @ np.minimum(geometry.prior_weights, self.restored * np.array(masses))
        mass = without_negligible(mass, self.trace)
        # No bounds: those of the rounds are not that of their blend.
        return Verdict(mass / mass.sum(), Stop.BUDGET, spreads=tuple(np.sqrt(variances)))

    def rounds(self, geometry: Geometry, f: int) -> tuple[list[Array], list[float]]:
        """The masses before each round and the widest variance under them."""
        masses: list[Array] = []
        variances: list[float] = []
        mass, floor = (
            geometry.prior_weights,
            float(geometry.prior_weights.sum()) - 2 * corruptible(geometry.prior_weights, f)[0],
        )
        while mass.sum() >= floor - NEGLIGIBLE_WEIGHT:
            spread = geometry.top_direction(mass)
            masses.append(mass)
            variances.append(spread.variance)
            room = float(mass.sum()) - floor
            if room <= NEGLIGIBLE_WEIGHT * mass.sum() or spread.variance <= geometry.rounding_error(mass):
                break
            share = self.share(spread, mass)
            if not share.any():
                break
            if self.short_last:
                share = share * min(1.0, room / float(mass @ share))
            mass = without_negligible(mass * (1 - share))
        return masses, variances

    def share(self, spread: TopDirection, mass: Array) -> Array:
        """(n,) what each row loses."""
        live = mass > 0
        middle = 0.0 if self.centre == "mean" else weighted_median(spread.projections[live], mass[live])
        away = np.where(live, abs(spread.projections - middle), 0.0)
        return np.asarray((away / max(away.max(), TINY)) ** self.sharpness)

    def say(self, masses: Array, variances: Array, bounds: Array) -> Array:
        """(rounds,) how much each counts."""
        judged = variances if self.choose == "variance" else bounds
        least = judged.min()
        if self.choose == "blend" and 0 < least < np.inf:
            return np.asarray((least / bounds) ** 8 * (masses.sum(axis=1) / masses[0].sum()) ** 2)
        return np.asarray(np.arange(judged.size) == judged.argmin(), dtype=float)


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
