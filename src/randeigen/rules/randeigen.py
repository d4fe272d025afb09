"""RandEigen: the paper's spectral filter, softened, its rounds averaged by their certificates."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from randeigen.backend.arrays import median
from randeigen.backend.batched import BatchVerdict, DeviceCloud, GeometryBatch, SoftFilter
from randeigen.backend.random_streams import Stream
from randeigen.certificate import bound, corruptible
from randeigen.rules.base import Facts, Rule, normalised, scores_in_variances
from randeigen.rules.published import EPS_JL, EPS_P, PublishedRandEigen
from randeigen.types import Array, Decision, Geometry, Mask, Statistic, Stop, TopDirection, Verdict

# Squared: a row 10,000 times further out than the median row is not weighed beside the others.
FAR_OUTLIER_RATIO = 1e8
NEGLIGIBLE_WEIGHT = 1e-9  # of the heaviest row: a lower weight sets no maximum, no scale and no sum
WHOLE_WEIGHT = 1 - 1e-9  # of its prior weight: a row that has as much lost none, but for rounding
# Of the largest fraction that a row kept of its prior weight: one that kept less has weight 0 in the answer.
MIN_RELATIVE_WEIGHT = 0.05
# Stop when the top variance λ is at most 1.1 · median_i wᵢ‖xᵢ − μ‖². A single row alone gives its own
# direction wᵢ‖xᵢ − μ‖², so no weights can get much lower, and the certificate is within about 5% of the best
# there is. Common where d is millions.
ISOTROPY_TOLERANCE = 1.1
# SHARPNESS and RESTORED_FACTOR were chosen on the grid of docs/departures.md; nearby values do about as well.
SHARPNESS = 1.5  # a row loses the fraction (distance / largest distance) ** SHARPNESS of its weight
RESTORED_FACTOR = 1.5  # weights times this, up to the prior one: two thirds are made a whole again
# Rows that are each far out in a direction of their own are removed one a round. After the patient rounds,
# more than ordinary clouds take, each further one takes an equal part of the weight that may still go. Above
# MANY_ROWS rows, where rounds are expensive, this begins sooner: measured biases stay what they were.
MANY_ROWS = 160
PATIENT_AND_HURRIED_ROUNDS = (32, 16)
PATIENT_AND_HURRIED_ROUNDS_OF_MANY = (8, 8)
UNUSED_COINS = np.random.default_rng(0)  # for a rule that draws nothing
MAX_REDRAWS = 8  # random removals tried until at least one row is left; after that their expectation


@dataclass(frozen=True)
class RandEigen(Rule):
    """The paper's loop, softened, with a certificate.

    Each round finds the top direction of the weighted cloud and takes from every row the fraction
    (tᵢ/max t)^1.5 of its weight, t being its distance from the weighted median along that direction: about
    the expectation of removing it at random, as the paper does. Rounds go on until as much weight is gone
    as twice the f heaviest rows hold. The answer averages all rounds: round r counts left²/bound⁸, with
    `left` the fraction of the weight it still has and `bound` its certificate. So the rounds that f corrupt
    rows can have moved least decide, and nothing is gained by making two of them nearly tie. Deterministic
    given the Gram matrix.

    `removal="random"` removes rows at random, as the paper does. `RandEigen.as_published` is the paper's own.

    Cost: two readings of the rows, n²·d; then n² a round, about five rounds, at most 50 (18 above 160
    rows): after 32 (8) each takes an equal part of the weight that may still go. Breaks down at half the
    rows. Blind to Byzantine rows inside the honest spread: they move the mean by no more than the
    certificate says.
    """

    removal: Literal["soft", "random"] = "soft"
    name: ClassVar[str] = "randeigen"
    family: ClassVar[str] = "The default"
    facts: ClassVar[Facts] = Facts(
        paper="Lee, Kolluri, Saxena, Chang 2025 (repaired: docs/departures.md)",
        cost="n²·d + n² a round, about 5 rounds",
        breakdown="1/2",
        blind_to="rows inside the honest spread: no more than the certificate",
    )

    @staticmethod
    def as_published(
        eps: float | None = None, eps_jl: float = EPS_JL, eps_p: float = EPS_P, *, f: int | None = None
    ) -> PublishedRandEigen:
        """Algorithm 3 line by line, to be compared with; its docstring says how it ends."""
        return PublishedRandEigen(eps, f, eps_jl=eps_jl, eps_p=eps_p)

    def statistic(self) -> Statistic:
        return Statistic.DIRECTIONS

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        """Filter round by round, then average the rounds."""
        far = far_outliers(geometry, f)
        w = np.where(far, 0.0, geometry.prior_weights) if np.count_nonzero(far) else geometry.prior_weights
        floor, pace = _floor(geometry.prior_weights, f), 0.0
        patient, hurried, *_ = constants = soft_filter(geometry.n)
        if isinstance(geometry, DeviceCloud) and self.removal == "soft":
            from randeigen.rules.randeigen_on_device import verdict_of  # built on what is here

            if rounds := geometry.filtered_rounds(f, constants):
                return Decision(verdict_of(rounds, geometry, w, f, far))
        history = FilterHistory(geometry, w, f, far)
        for past in range(patient + hurried + 1):
            total = float(w.sum())
            room, rounding = total - floor, geometry.rounding_error(w)
            is_last = room <= NEGLIGIBLE_WEIGHT * total  # then no direction is filtered along
            top = geometry.top_variance(w) if is_last else geometry.top_direction(w, ISOTROPY_TOLERANCE)
            history.add_round(w, top.variance, rounding)
            if stop := _stop(w, top, rounding, room / total, f):
                break
            share = removal_share(top, w)
            if not np.count_nonzero(share):  # all rows have the same projection
                stop = Stop.IDENTICAL_ROWS
                break
            if past == patient:
                pace = room / hurried
            if (taken := float(w.dot(share))) < min(pace, room):
                share = hurried_share(share, geometry, top, w, min(pace, room))
                taken = float(w.dot(share))
            share *= min(1.0, room / taken)  # the last round takes what the budget allows
            left = removed_at_random(w, share, rng) if self.removal == "random" else w * (1.0 - share)
            left = without_negligible(left)
            history.add_removal(w, left, top)
            w = left
        else:  # only where removal is random: its amount is right on average only
            stop = Stop.MAX_ROUNDS
        return Decision(history.verdict(stop, top))

    def decide_each(self, batch: GeometryBatch, f: int) -> BatchVerdict | None:
        from randeigen.rules import randeigen_batched  # which takes its constants from here

        return randeigen_batched.decide_each(batch, f) if self.removal == "soft" else None


def soft_filter(n: int) -> SoftFilter:
    """The constants of the rounds, for n rows."""
    rounds = PATIENT_AND_HURRIED_ROUNDS_OF_MANY if n > MANY_ROWS else PATIENT_AND_HURRIED_ROUNDS
    constants = FAR_OUTLIER_RATIO, ISOTROPY_TOLERANCE, NEGLIGIBLE_WEIGHT, RESTORED_FACTOR, MIN_RELATIVE_WEIGHT
    return SoftFilter(*rounds, *constants)


def coins_for(rule: Rule, seed: int) -> np.random.Generator:
    """The random numbers of one call; a rule that draws none is spared the seeding, which takes a while."""
    draws = type(rule) is not RandEigen or rule.removal != "soft"
    return np.random.default_rng([seed, Stream.RULE]) if draws else UNUSED_COINS


def reference_verdict(decision: Decision, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
    """RandEigen's verdict, for a decision that gives rows no weights: its certificate leans on this mean.

    Where too little was measured for a certificate it is that of the plain mean.
    """
    if geometry.partial:
        return Verdict(normalised(geometry.prior_weights), Stop.DIRECT)
    verdict = RandEigen(f=f).weigh(geometry, f, rng)
    if not decision.with_rounds:
        verdict = Verdict(verdict.weights, verdict.stop)
    return replace(verdict, notes=(*verdict.notes, *decision.notes))


def removal_share(top: TopDirection, w: Array) -> Array:
    """(n,) the fraction of its weight each row loses: 1 for the furthest from the weighted median."""
    if np.count_nonzero(w) == w.size:
        away = abs(top.projections - weighted_median(top.projections, w))
    else:
        live = w > 0
        away = np.where(live, abs(top.projections - weighted_median(top.projections[live], w[live])), 0.0)
    furthest = away.max()
    return np.asarray((away / furthest) ** SHARPNESS) if furthest > 0 else np.zeros(w.size)


def hurried_share(share: Array, geometry: Geometry, top: TopDirection, w: Array, pace: float) -> Array:
    """(n,) at least that share, and of the rows furthest out as much as makes the loss `pace`.

    Furthest out along the top direction, or along a direction of their own: a row of weight w at squared
    distance s from the mean gives its own direction the variance w·s, which will be the top one in its turn.
    """
    own = w / w.sum() * geometry.squared_distances_from_mean(w)
    out = np.maximum(share ** (2 / SHARPNESS), own / top.variance)
    live = np.flatnonzero(w)
    order = live[np.argsort(-out[live])]
    last = out[order[min(int(w[order].cumsum().searchsorted(pace)), order.size - 1)]]
    beyond, equal = float(w[out > last].sum()), float(w[out == last].sum())
    part = min(max(pace - beyond, 0.0) / equal, 1.0)  # rows equally far out lose alike
    return np.asarray(np.maximum(share, np.where(out > last, 1.0, np.where(out == last, part, 0.0))))


def removed_at_random(w: Array, share: Array, rng: np.random.Generator) -> Array:
    """The weights after each row was removed with its share as the probability; never all zero."""
    for _ in range(MAX_REDRAWS):
        left = np.where(rng.random(share.size) < share, 0.0, w)
        if left.any():
            return left
    return w * (1 - share)


def weighted_median(values: Array, w: Array) -> float:
    """The midpoint on a tie, so that reversing the axis changes nothing."""
    order = values.argsort()
    sums = w[order].cumsum()
    tie = 1e-12 * sums[-1]
    low, high = sums.searchsorted((sums[-1] / 2 - tie, sums[-1] / 2 + tie))
    return float(values[order[low]] + values[order[min(high, order.size - 1)]]) / 2


def without_negligible(w: Array, least: float = NEGLIGIBLE_WEIGHT) -> Array:
    """The same with weights below `least` of the heaviest set to 0: they must not set a scale."""
    return np.where(w > least * w.max(), w, 0.0)


def far_outliers(geometry: Geometry, f: int) -> Mask:
    """Rows so far out that in float64 the others' distances would vanish beside theirs. Never more than f."""
    squares = geometry.squared_norms_from_pivot()
    far = squares > FAR_OUTLIER_RATIO * median(squares)
    if not np.count_nonzero(far):
        return far
    # If there are more than f, some are honest, so the honest spread is that wide and none is left out. Nor
    # is any where no other row has prior weight.
    return far if far.sum() <= f and geometry.prior_weights[~far].any() else np.zeros_like(far)


def _floor(prior: Array, f: int) -> float:
    """The weight that is left when as much is gone as twice the f heaviest rows hold: one row's at least."""
    total = float(prior.sum())
    return max(total - 2 * corruptible(prior, f)[0], total / prior.size)


def _stop(w: Array, top: TopDirection, rounding: float, room: float, f: int) -> Stop | None:
    """Why no round follows: `room` is the fraction of the weight that may still go."""
    if f == 0:
        return Stop.DIRECT
    if np.count_nonzero(w) < 2:
        return Stop.TOO_FEW_ROWS
    if top.variance <= rounding:  # what is left of the variance is rounding
        return Stop.IDENTICAL_ROWS
    if top.variance <= ISOTROPY_TOLERANCE * top.typical_row_variance:
        return Stop.ISOTROPIC
    return Stop.BUDGET if room <= NEGLIGIBLE_WEIGHT else None


class FilterHistory:
    """What happened round by round, and the verdict the rounds come to."""

    def __init__(self, geometry: Geometry, prior: Array, f: int, far: Mask) -> None:
        self.geometry, self.prior_weights, self.f, self.far_outliers = geometry, prior, f, far
        self.weights: list[Array] = []  # before each round; they need not sum to 1
        self.spreads: list[float] = []
        self.bounds: list[float] = []
        self.dropped_in_round = np.zeros(geometry.n, dtype=np.intp)
        self.scores = np.zeros(geometry.n)
        self._largest_loss = np.zeros(geometry.n)

    def add_round(self, w: Array, variance: float, rounding: float) -> None:
        """Record the weights before a round, their top variance and what rounding can hide of it."""
        self.weights.append(w)
        self.spreads.append(self.geometry.scale * math.sqrt(variance))
        self.bounds.append(bound(self.geometry, w, self.f, variance, rounding))

    def add_removal(self, before: Array, after: Array, top: TopDirection) -> None:
        """Record for each row the round in which it lost most weight."""
        loss = before - after
        more = loss > self._largest_loss
        np.copyto(self._largest_loss, loss, where=more)
        self.dropped_in_round[more] = len(self.weights)
        np.copyto(self.scores, scores_in_variances(top), where=more)

    def verdict(self, stop: Stop, top: TopDirection) -> Verdict:
        """The average of all rounds, measured once more so that it has a certificate of its own.

        `top` is the top direction of the last round.
        """
        w = self._average()
        if len(self.weights) > 1:
            top = self.geometry.top_variance(w)
            self.add_round(w, top.variance, self.geometry.rounding_error(w))
        if top.allowance:
            self.bounds[-1] = bound(self.geometry, w, self.f, top.variance + top.allowance)
        whole = w >= WHOLE_WEIGHT * self.prior_weights
        self.dropped_in_round[whole] = 0
        self.scores[whole] = 0.0
        return Verdict(
            normalised(w),
            stop,
            spreads=tuple(self.spreads),
            bounds=tuple(self.bounds),
            answer_round=len(self.bounds) - 1,
            dropped_in_round=self.dropped_in_round,
            scores=self.scores,
            far_outliers=self.far_outliers,
        )

    def _average(self) -> Array:
        if len(self.weights) == 1:
            return self.weights[0]
        weights, prior = np.array(self.weights), self.prior_weights
        least, before = min(self.bounds), float(prior.sum())
        if 0 < least < math.inf:
            left = (total / before for total in weights.sum(axis=1).tolist())
            counts = [(least / each) ** 8 * share**2 for each, share in zip(self.bounds, left, strict=True)]
        else:
            counts = [float(each <= least) for each in self.bounds]
        restored = np.minimum(prior, RESTORED_FACTOR * weights)
        average = np.array(counts).dot(restored) / sum(counts)
        # Relative to its prior weight: a row is not dropped for having been light from the start.
        if np.count_nonzero(prior) == prior.size:
            kept = average / prior
        else:
            kept = np.divide(average, prior, out=np.zeros(prior.size), where=prior > 0)
        return np.where(kept > MIN_RELATIVE_WEIGHT * kept.max(), average, 0.0)
