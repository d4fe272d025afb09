"""RandEigen: the paper's spectral filter, softened, where every round has a say by its certificate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from randeigen.backend.arrays import median
from randeigen.certificate import bound, corruptible
from randeigen.errors import BadFraction
from randeigen.rules.base import Facts, TableRule, normalised
from randeigen.rules.published import PublishedRandEigen
from randeigen.types import Array, Geometry, Mask, Spread, Stop, Verdict

FAR_OUTLIER_RATIO = (
    1e8  # squared: a row 10,000 times further out than the median row is not weighed beside the others
)
NEGLIGIBLE_WEIGHT = 1e-9  # of the heaviest row: less than this sets no maximum, no scale and no sum
MIN_RELATIVE_WEIGHT = (
    0.05  # of the best kept share: less than this in the blend of all rounds is none; `kept` means kept
)
# No weights can bring the widest variance below what single rows make it, and more than half of them make
# it nearly this wide: the certificate is within 5% of the best there is. Common where d is millions.
ISOTROPY_TOLERANCE = 1.1
# Found on the grid of docs/departures.md; their neighbours do about as well.
SHARPNESS = 1.5  # of the removal: a row loses the share (distance / largest distance) ** SHARPNESS
RESTORED_FACTOR = 1.5  # a row that kept two thirds of its mass is in doubt no more and gets all of it back
# Rows that each stand out along a direction of their own are found one a round. After so many rounds, more
# than ordinary clouds take, each of the next takes an equal part of what may still go. Of many rows, where
# rounds are dear, sooner: measured biases stay what they were.
MANY_ROWS = 160  # rows
PATIENT_ROUNDS, PATIENT_ROUNDS_OF_MANY = (
    (32, 16),
    (8, 8),
)  # rounds as they come, and hurried ones; for up to so many rows, and above
MAX_REDRAWS = 8  # of the coins, until one row at least is left; after that their expectation


@dataclass(frozen=True)
class RandEigen(TableRule):
    """The paper's loop, softened, with a certificate.

    Each round finds the widest direction of the weighted cloud and takes from every row the share
    (tᵢ/max t)^1.5 of its mass, t being its distance from the weighted median along that direction: about
    the expectation of removing it at random, as the paper does. Rounds go on until as much mass is gone
    as twice the f heaviest rows hold. The answer blends all rounds: round r counts left²/bound⁸, with
    `left` the share of mass it still has and `bound` its certificate, so that rounds nobody could have
    biased much decide, and no liar gains by making two of them nearly tie. Deterministic given the table.

    `removal="random"` flips the coins, as the paper does. `RandEigen.as_published` is the paper's own.

    Cost: two readings of the rows, n²·d; then n² a round, about five rounds, at most 50 (18 above 160
    rows): after 32 (8) each takes an equal part of the mass that may still go. Breaks down at half the
    rows. Blind to rows that hide inside the honest spread: they move the mean by no more than the
    certificate says.
    """

    removal: str = "soft"
    facts: ClassVar[Facts] = Facts(
        paper="Lee, Kolluri, Saxena, Chang 2025 (repaired: docs/departures.md)",
        cost="n²·d + n² a round, about 5 rounds",
        breakdown="1/2",
        blind_to="rows inside the honest spread: no more than the certificate",
    )

    def __post_init__(self) -> None:
        """Refuse unknown ways of removal."""
        super().__post_init__()
        if self.removal not in ("soft", "random"):
            raise BadFraction(f'removal={self.removal!r}; choose "soft" or "random".')

    @staticmethod
    def as_published(eps: float) -> PublishedRandEigen:
        """Algorithm 3 line by line, to be compared with; its docstring says how it ends."""
        return PublishedRandEigen(eps)

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """Filter round by round, then blend the rounds."""
        wild = far_outliers(geometry, f)
        mass = np.where(wild, 0.0, geometry.prior_weights)
        floor, pace = _floor(geometry.prior_weights, f), 0.0
        calm, hurry = PATIENT_ROUNDS if geometry.n <= MANY_ROWS else PATIENT_ROUNDS_OF_MANY
        trail = FilterHistory(geometry, mass, f, wild)
        for past in range(calm + hurry + 1):
            spread = geometry.top_direction(mass)
            trail.see(mass, spread.variance)
            room = float(mass.sum()) - floor
            share = removal_share(spread, mass)
            if stop := _ended(geometry, mass, spread, share, room, f):
                break
            if past == calm:
                pace = room / hurry
            if mass @ share < min(pace, room):
                share = hurried(share, geometry, spread, mass, min(pace, room))
            share *= min(1.0, room / float(mass @ share))  # the last round takes what the budget allows
            left = thrown(mass, share, rng) if self.removal == "random" else mass * (1 - share)
            left = without_negligible(left)
            trail.lost(mass, left, spread)
            mass = left
        else:  # by coins alone: what they take is right on average only
            stop = Stop.ROUNDS
        return trail.verdict(stop, spread)


def removal_share(spread: Spread, mass: Array) -> Array:
    """(n,) the share of its mass each row loses: 1 for the farthest from the weighted median, if one is."""
    live = mass > 0
    away = np.where(live, abs(spread.places - weighted_median(spread.places[live], mass[live])), 0.0)
    furthest = away.max()
    return np.asarray((away / furthest) ** SHARPNESS) if furthest > 0 else np.zeros_like(away)


def hurried(share: Array, geometry: Geometry, spread: Spread, mass: Array, pace: float) -> Array:
    """(n,) at least that share, and of the rows furthest out as much as makes the loss `pace`.

    Furthest out along the widest direction, or along a direction of their own: a row of weight w at squared
    distance s from the mean gives its own direction the variance w·s, and will be the widest in its turn.
    """
    weights = mass / mass.sum()
    apart = geometry.squared_distances() @ weights  # squared distances from the mean, plus the whole variance
    own = weights * np.maximum(apart - weights @ apart / 2, 0.0)
    out = np.maximum(share ** (2 / SHARPNESS), own / spread.variance)
    live = np.flatnonzero(mass)
    order = live[np.argsort(-out[live])]
    last = out[order[min(int(mass[order].cumsum().searchsorted(pace)), order.size - 1)]]
    beyond, equal = float(mass[out > last].sum()), float(mass[out == last].sum())
    part = min(max(pace - beyond, 0.0) / equal, 1.0)  # rows equally far out lose alike
    return np.asarray(np.maximum(share, np.where(out > last, 1.0, np.where(out == last, part, 0.0))))


def thrown(mass: Array, share: Array, rng: np.random.Generator) -> Array:
    """What coins leave of the rows, each gone with its share for a chance; never nothing."""
    for _ in range(MAX_REDRAWS):
        left = np.where(rng.random(share.size) < share, 0.0, mass)
        if left.any():
            return left
    return mass * (1 - share)


def weighted_median(places: Array, mass: Array) -> float:
    """The midpoint on a tie, so that turning the axis round changes nothing."""
    order = places.argsort()
    sums = mass[order].cumsum()
    tie = 1e-12 * sums[-1]
    low, high = sums.searchsorted((sums[-1] / 2 - tie, sums[-1] / 2 + tie))
    return float(places[order[low]] + places[order[min(high, order.size - 1)]]) / 2


def without_negligible(mass: Array, trace: float = NEGLIGIBLE_WEIGHT) -> Array:
    """The same with traces set to 0: what is not quite gone must not set a scale."""
    return np.where(mass > trace * mass.max(), mass, 0.0)


def far_outliers(geometry: Geometry, f: int) -> Mask:
    """Rows so far out that float64 could not see the others beside them. Never more than f."""
    reach = geometry.squared_norms_from_pivot()
    wild = reach > FAR_OUTLIER_RATIO * median(reach)
    # More of them than liars: some are honest, the honest spread is that wide, and they stay. So they do
    # where nobody else has any mass.
    return wild if wild.sum() <= f and geometry.prior_weights[~wild].any() else np.zeros_like(wild)


def _floor(prior: Array, f: int) -> float:
    """The mass that is left when as much is gone as twice the f heaviest rows hold: a row's at least."""
    total = float(prior.sum())
    return max(total - 2 * corruptible(prior, f)[0], total / prior.size)


def _ended(geometry: Geometry, mass: Array, spread: Spread, share: Array, room: float, f: int) -> Stop | None:
    if f == 0:
        return Stop.DIRECT
    if np.count_nonzero(mass) < 2:
        return Stop.LONE
    # What is left of the variance is noise and judges nobody, or along its direction all rows are one point.
    if spread.variance <= geometry.rounding_error(mass) or not share.any():
        return Stop.AGREE
    if spread.variance <= ISOTROPY_TOLERANCE * spread.alone:
        return Stop.ROUND
    return Stop.BUDGET if room <= NEGLIGIBLE_WEIGHT * mass.sum() else None


class FilterHistory:
    """What happened round by round, and the verdict the rounds come to."""

    def __init__(self, geometry: Geometry, prior: Array, f: int, wild: Mask) -> None:
        self.geometry, self.prior_weights, self.f, self.far_outliers = geometry, prior, f, wild
        self.masses: list[Array] = []
        self.spreads: list[float] = []
        self.bounds: list[float] = []
        self.dropped_in_round = np.zeros(geometry.n, dtype=np.intp)
        self.scores = np.zeros(geometry.n)
        self._most = np.zeros(geometry.n)

    def see(self, mass: Array, variance: float) -> None:
        """A cloud was measured."""
        self.masses.append(mass)
        self.spreads.append(self.geometry.unit * math.sqrt(variance))
        self.bounds.append(bound(self.geometry, mass, self.f, variance))

    def lost(self, before: Array, after: Array, spread: Spread) -> None:
        """Mass shrank: note for each row the round in which it lost most."""
        more = before - after > self._most
        self._most[more] = (before - after)[more]
        self.dropped_in_round[more] = len(self.masses)
        self.scores[more] = spread.scores[more] / spread.variance

    def verdict(self, stop: Stop, spread: Spread) -> Verdict:
        """The blend of all rounds, measured once more so that it has a certificate of its own.

        `spread` is that of the last round.
        """
        mass = self._blend()
        if len(self.masses) > 1 or not np.array_equal(mass, self.masses[0]):
            spread = self.geometry.top_direction(mass)
            self.see(mass, spread.variance)
        self.bounds[-1] = bound(self.geometry, mass, self.f, spread.variance + spread.allowance)
        whole = mass >= self.prior_weights
        return Verdict(
            normalised(mass),
            stop,
            spreads=tuple(self.spreads),
            bounds=tuple(self.bounds),
            chosen=len(self.bounds) - 1,
            dropped_in_round=np.where(whole, 0, self.dropped_in_round),
            scores=np.where(whole, 0.0, self.scores),
            far_outliers=self.far_outliers,
        )

    def _blend(self) -> Array:
        bounds, masses = np.array(self.bounds), np.array(self.masses)
        least = bounds.min()
        if 0 < least < np.inf:
            say = (least / bounds) ** 8 * (masses.sum(axis=1) / self.prior_weights.sum()) ** 2
        else:
            say = (bounds <= least).astype(float)
        blend = say @ np.minimum(self.prior_weights, RESTORED_FACTOR * masses) / say.sum()
        # Beside its prior: a row is not dropped for having been light from the start.
        kept = np.divide(blend, self.prior_weights, out=np.zeros_like(blend), where=self.prior_weights > 0)
        return np.where(kept > MIN_RELATIVE_WEIGHT * kept.max(), blend, 0.0)
