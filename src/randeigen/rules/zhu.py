"""FILTERING and NO-REGRET of Zhu et al. 2023 on whole rows: they are told the honest variance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from randeigen.errors import BadFraction
from randeigen.rules.base import Facts, TableRule, mean_of, normalised, smallest
from randeigen.rules.krum import krum_scores
from randeigen.rules.randeigen import NEGLIGIBLE_WEIGHT, far_outliers
from randeigen.types import Array, Geometry, Stop, Verdict

EXPANSION = 20.0  # Zhu et al.: a widest variance up to sqrt(20) times the promised one passes


@dataclass(frozen=True)
class KnownVarianceRule(TableRule):
    """A rule that stops at λ ≤ sqrt(expansion)·sigma; sigma is a promise about the honest rows."""

    sigma: float = math.nan
    expansion: float = EXPANSION

    def __post_init__(self) -> None:
        """Refuse a missing promise."""
        super().__post_init__()
        check_variance_bound(self, self.sigma, self.expansion)


@dataclass(frozen=True)
class ZhuFiltering(KnownVarianceRule):
    """FILTERING of Zhu et al. on the whole vector: soft filtering until the cloud is as narrow as promised.

    At most 2f rounds. While the widest variance λ has λ² > expansion·sigma², cᵢ ← cᵢ·(1 − τᵢ/max τ), which
    drops the furthest row (Zhu, Wang, Pan, Xue, Nan, Wang and Song 2023, Algorithm 3). sigma is the largest
    honest *variance*, in squared units of the rows. Weighted covariance, as in their paper and code; the
    paper's authors run it on chunks of 1,000 coordinates.

    Cost: n²·d for the table, then n² a round. Breaks down at half the rows. As good as sigma: too small and
    honest rows go, too large and liars use the room up to sqrt(expansion)·sigma (the HIDRA attack).
    """

    facts: ClassVar[Facts] = Facts(
        "Zhu, Wang, Pan, Xue, Nan, Wang, Song 2023",
        "n²·d, then n² a round",
        "1/2, if sigma is right",
        "liars within sqrt(expansion)·sigma, known to the attacker (HIDRA)",
    )

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """Algorithm 3."""
        return zhu_filter_weights(geometry, 2 * f, self.sigma, self.expansion)


@dataclass(frozen=True)
class NoRegret(KnownVarianceRule):
    """NO-REGRET of Zhu et al. on the whole vector: multiplicative weights under a cap.

    The f rows with the worst Krum scores go. Then, while the widest variance λ has λ² > expansion·sigma²,
    cᵢ ← cᵢ·(1 − τᵢ/(2·D²)), D the diameter of those left, projected in relative entropy on the weights that
    sum to 1 and are nowhere above 1/((1 − eps)·n) (Zhu, Wang, Pan, Xue, Nan, Wang and Song 2023, Algorithm 2;
    Hopkins, Li and Zhang 2020). sigma as in `ZhuFiltering`. Their code lifts at least one row to the cap in
    every projection; this is the projection itself.

    Cost: n²·d for the table, then n² a round, at most 2f rounds. Breaks down at half the rows. As good as
    sigma; and with a step this small 2f rounds hardly move the weights: most of the work is the pre-filter's.
    """

    facts: ClassVar[Facts] = Facts(
        "Zhu, Wang, Pan, Xue, Nan, Wang, Song 2023; Hopkins, Li, Zhang 2020",
        "n²·d, then n² a round",
        "1/2, if sigma is right",
        "liars within sqrt(expansion)·sigma, known to the attacker (HIDRA)",
    )

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """Algorithm 2."""
        return no_regret_weights(geometry, f, self.sigma, self.expansion)


def zhu_filter_weights(
    geometry: Geometry, rounds: int, sigma: float, expansion: float = EXPANSION
) -> Verdict:
    """FILTERING on one cloud (the whole vector, or a chunk of coordinates with a table of its own)."""
    wild = far_outliers(geometry, rounds // 2)
    mass, spreads, stop = np.where(wild, 0.0, geometry.prior_weights), [], Stop.ROUNDS
    for _ in range(rounds - int(wild.sum())):
        spread = geometry.top_direction(mass)
        spreads.append(geometry.unit * math.sqrt(spread.variance))
        if narrow(geometry, spread.variance, sigma, expansion):
            stop = Stop.NARROW
            break
        left = shrunk(mass, spread.scores, geometry.prior_weights)
        if left is mass or np.count_nonzero(left) == 0:
            stop = Stop.AGREE if left is mass else Stop.LONE
            break
        mass = left
    last = max(len(spreads) - 1, 0)
    return Verdict(normalised(mass), stop, spreads=tuple(spreads), chosen=last, far_outliers=wild)


def no_regret_weights(geometry: Geometry, f: int, sigma: float, expansion: float = EXPANSION) -> Verdict:
    """NO-REGRET on one cloud (the whole vector, or a chunk of coordinates with a table of its own)."""
    n, between = geometry.n, geometry.squared_distances()
    kept = smallest(krum_scores(np.sqrt(between), n - f - 2), n - f) & (geometry.prior_weights > 0)
    mass, spreads, stop = mean_of(geometry, kept), [], Stop.ROUNDS
    cap = mass / (1 - f / n)
    diameter = between[np.ix_(kept, kept)].max(initial=0.0)
    for _ in range(2 * f * (n - f) // n):
        spread = geometry.top_direction(mass)
        spreads.append(geometry.unit * math.sqrt(spread.variance))
        if diameter <= 0 or narrow(geometry, spread.variance, sigma, expansion):
            stop = Stop.NARROW
            break
        # No score is above the squared diameter; where both are rounding's own, it could seem so.
        mass = under_cap(mass * (1 - 0.5 * np.minimum(spread.scores, diameter) / diameter), cap)
    last = max(len(spreads) - 1, 0)
    return Verdict(mass, stop, spreads=tuple(spreads), chosen=last)


def shrunk(mass: Array, scores: Array, prior: Array) -> Array:
    """The mass left after a soft removal; what is negligible goes, or it would set the next scale.

    The very same mass where no row is further out than the others; else at least one row's is gone.
    """
    live = mass > 0
    furthest = scores.max(where=live, initial=0.0)
    if not furthest > 0:
        return mass
    left = np.where(live, mass * (1 - scores / furthest), 0.0)
    return np.where(left > NEGLIGIBLE_WEIGHT * prior, left, 0.0)


def narrow(geometry: Geometry, variance: float, sigma: float, expansion: float) -> bool:
    """Whether the cloud is as narrow as honest rows were promised to be; sigma is a variance."""
    return variance <= 0 or variance * geometry.unit * geometry.unit <= math.sqrt(expansion) * sigma


def under_cap(weights: Array, cap: Array) -> Array:
    """min(cap, θ·weights) with sum 1: the nearest such weights in relative entropy."""
    live = np.flatnonzero(weights)
    order = live[np.argsort(-weights[live] / cap[live], kind="stable")]
    w, most = weights[order], cap[order]
    room = 1 - np.cumsum(most) + most  # left for a row and those after it, once all before are at their cap
    factor = room / np.cumsum(w[::-1])[::-1]
    fits = np.flatnonzero((room > 0) & (factor * w <= most * (1 + 1e-12)))
    theta = factor[fits[0]] if fits.size else np.inf
    capped = np.zeros_like(weights)
    capped[live] = np.minimum(cap[live], theta * weights[live])
    return normalised(capped)


def check_variance_bound(rule: TableRule, sigma: float, expansion: float) -> None:
    """Sigma is a promise about the honest rows, so it has no default."""
    if not 0 <= sigma < math.inf:
        raise BadFraction(
            f"{type(rule).__name__} needs sigma, the largest variance honest rows have along any direction; "
            f"found sigma={sigma}. If it is not known, use RandEigen or CAF."
        )
    if not 0 < expansion < math.inf:
        raise BadFraction(f"expansion={expansion}; give how far above sigma² a squared variance may be.")
