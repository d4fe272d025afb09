"""FILTERING and NO-REGRET of Zhu et al. 2023 on whole rows: the honest variance must be given."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from randeigen.errors import BadParameter
from randeigen.rules.base import Facts, Rule, mean_of, normalised, smallest
from randeigen.rules.krum import krum_scores
from randeigen.rules.randeigen import NEGLIGIBLE_WEIGHT, far_outliers
from randeigen.types import Array, Decision, Geometry, Stop, Verdict

EXPANSION = 20.0  # Zhu et al.: a top variance up to sqrt(20) times the given one passes


@dataclass(frozen=True)
class KnownVarianceRule(Rule):
    """A rule that stops at λ ≤ sqrt(expansion)·sigma; sigma is the caller's claim about the honest rows."""

    sigma: float = math.nan
    expansion: float = EXPANSION
    family: ClassVar[str] = "Spectral filters"
    known_variance: ClassVar[str | None] = "sigma"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_variance_bound(self, self.sigma, self.expansion)


@dataclass(frozen=True)
class ZhuFiltering(KnownVarianceRule):
    """FILTERING of Zhu et al. on the whole vector: soft filtering until the top variance is about sigma.

    At most 2f rounds. While the top variance λ has λ² > expansion·sigma², cᵢ ← cᵢ·(1 − τᵢ/max τ), which
    drops the furthest row (Zhu, Wang, Pan, Xue, Nan, Wang and Song 2023, Algorithm 3). sigma is the largest
    honest *variance*, in squared units of the rows. Weighted covariance, as in their paper and code; the
    paper's authors run it on chunks of 1,000 coordinates.

    Cost: n²·d for the Gram matrix, then n² a round. Breaks down at half the rows. As good as sigma: too small
    and honest rows go, too large and Byzantine rows use the room up to sqrt(expansion)·sigma (HIDRA).
    """

    name: ClassVar[str] = "zhu-filtering"
    facts: ClassVar[Facts] = Facts(
        "Zhu, Wang, Pan, Xue, Nan, Wang, Song 2023",
        "n²·d, then n² a round",
        "1/2, if sigma is right",
        "Byzantine rows within sqrt(expansion)·sigma, known to the attacker (HIDRA)",
    )

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        return Decision(zhu_filter_weights(geometry, 2 * f, self.sigma, self.expansion))


@dataclass(frozen=True)
class NoRegret(KnownVarianceRule):
    """NO-REGRET of Zhu et al. on the whole vector: multiplicative weights under a cap.

    The f rows with the worst Krum scores go. Then, while the top variance λ has λ² > expansion·sigma²,
    cᵢ ← cᵢ·(1 − τᵢ/(2·D²)), D the diameter of those left, projected in relative entropy on the weights that
    sum to 1 and are nowhere above 1/((1 − eps)·n) (Zhu, Wang, Pan, Xue, Nan, Wang and Song 2023, Algorithm 2;
    Hopkins, Li and Zhang 2020). sigma as in `ZhuFiltering`. Their code lifts at least one row to the cap in
    every projection; this is the projection itself.

    Cost: n²·d for the Gram matrix, then n² a round, at most 2f rounds. Breaks down at half the rows. As good
    as sigma; and a step this small hardly moves the weights in 2f rounds: the pre-filter does most.
    """

    name: ClassVar[str] = "no-regret"
    facts: ClassVar[Facts] = Facts(
        "Zhu, Wang, Pan, Xue, Nan, Wang, Song 2023; Hopkins, Li, Zhang 2020",
        "n²·d, then n² a round",
        "1/2, if sigma is right",
        "Byzantine rows within sqrt(expansion)·sigma, known to the attacker (HIDRA)",
    )

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        return Decision(no_regret_weights(geometry, f, self.sigma, self.expansion))


def zhu_filter_weights(
    geometry: Geometry, rounds: int, sigma: float, expansion: float = EXPANSION
) -> Verdict:
    """FILTERING on one cloud (the whole vector, or a chunk of columns with a Gram matrix of its own)."""
    far = far_outliers(geometry, rounds // 2)
    w, spreads, stop = np.where(far, 0.0, geometry.prior_weights), [], Stop.MAX_ROUNDS
    for _ in range(rounds - int(far.sum())):
        top = geometry.top_direction(w)
        spreads.append(geometry.scale * math.sqrt(top.variance))
        if is_below_threshold(geometry, top.variance, sigma, expansion):
            stop = Stop.BELOW_THRESHOLD
            break
        left = shrunk(w, top.scores, geometry.prior_weights)
        if left is w or np.count_nonzero(left) == 0:
            stop = Stop.IDENTICAL_ROWS if left is w else Stop.TOO_FEW_ROWS
            break
        w = left
    last = max(len(spreads) - 1, 0)
    return Verdict(normalised(w), stop, spreads=tuple(spreads), answer_round=last, far_outliers=far)


def no_regret_weights(geometry: Geometry, f: int, sigma: float, expansion: float = EXPANSION) -> Verdict:
    """NO-REGRET on one cloud (the whole vector, or a chunk of columns with a Gram matrix of its own)."""
    n, apart = geometry.n, geometry.squared_distances()
    kept = smallest(krum_scores(np.sqrt(apart), n - f - 2), n - f) & (geometry.prior_weights > 0)
    w, spreads, stop = mean_of(geometry, kept), [], Stop.MAX_ROUNDS
    cap = w / (1 - f / n)
    squared_diameter = apart[np.ix_(kept, kept)].max(initial=0.0)
    for _ in range(2 * f * (n - f) // n):
        top = geometry.top_direction(w)
        spreads.append(geometry.scale * math.sqrt(top.variance))
        if squared_diameter <= 0 or is_below_threshold(geometry, top.variance, sigma, expansion):
            stop = Stop.BELOW_THRESHOLD
            break
        # No score is above the squared diameter; where both are no more than rounding, it may seem so.
        w = under_cap(w * (1 - 0.5 * np.minimum(top.scores, squared_diameter) / squared_diameter), cap)
    last = max(len(spreads) - 1, 0)
    return Verdict(w, stop, spreads=tuple(spreads), answer_round=last)


def shrunk(w: Array, scores: Array, prior: Array) -> Array:
    """The weights left after a soft removal; negligible ones are 0, or they would set the next maximum.

    `w` itself where no row is further out than the others; else at least one row has no weight any more.
    """
    live = w > 0
    furthest = scores.max(where=live, initial=0.0)
    if not furthest > 0:
        return w
    left = np.where(live, w * (1 - scores / furthest), 0.0)
    return np.where(left > NEGLIGIBLE_WEIGHT * prior, left, 0.0)


def is_below_threshold(geometry: Geometry, variance: float, sigma: float, expansion: float) -> bool:
    """Whether λ ≤ sqrt(expansion)·sigma in the caller's units; sigma is a variance."""
    return variance <= 0 or variance * geometry.scale * geometry.scale <= math.sqrt(expansion) * sigma


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


def check_variance_bound(rule: Rule, sigma: float, expansion: float) -> None:
    """Sigma is the caller's claim about the honest rows, so it has no default."""
    if not 0 <= sigma < math.inf:
        raise BadParameter(
            f"{type(rule).__name__} needs sigma, the largest variance honest rows have along any direction; "
            f"found sigma={sigma}. If it is not known, use RandEigen or CAF."
        )
    if not 0 < expansion < math.inf:
        raise BadParameter(f"expansion={expansion}; give how far above sigma² a squared variance may be.")
