"""Balancing hypotheses: an answer not far from any set of rows that may be the honest one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from randeigen.certificate import corruptible
from randeigen.errors import BadParameter
from randeigen.rules.base import Facts, Rule, normalised
from randeigen.rules.randeigen import RandEigen, far_outliers
from randeigen.types import Array, Decision, Geometry, Stop, TopDirection, Verdict, Weights

# How much a hypothesis prefers to remove rows on one side of the top direction; at ±1 it spares the other.
PREFERENCES = (1.0, -1.0, 0.6, -0.6, 0.3, -0.3)
STEPS_OF_PREFERENCE = 6  # eigenproblems of a hypothesis that prefers one side
STEPS_WITHOUT = 3  # where no side is preferred, one step removes at most the rest divided by this
NEAR_TOP_RATIO = 0.5  # of the largest score: rows below it are left to the next step
MAX_VARIANCE_RATIO = 100.0  # sets of more than so many times the least variance hardly matter and are skipped
MAX_PENALTY = 1e100  # times its width: a wide hypothesis is held back by no more than this
MAX_LIMIT = 1e100  # widths that an answer may be off by: a larger tolerance lets everything pass as well
LINE_TOLERANCE = 1e-6  # relative variance outside the top direction up to which rows count as on a line
SAME_POINT = 1e-6  # of the rows' range on a line: answers this close are one, whatever their weights
TIE = 1e-9  # relative: scores this close are equal, and what is removed is shared between them
MIN_WIDTH_RATIO = 1e-9  # of the largest width: no hypothesis counts as narrower
MAX_NEWTON_STEPS, REFINEMENT_STEPS, BISECTION_STEPS = 100, 100, 50


class Hypotheses(NamedTuple):
    """Sets of rows that may be the honest ones."""

    weights: Array  # (J, n) lines summing to 1: the weights of each one's mean
    widths: Array  # (J,) standard deviation along its top direction


@dataclass(frozen=True)
class Balanced(Rule):
    """RandEigen's answer, moved as little as needed to be near every set of rows that may be the honest one.

    Any n − f rows may be the honest ones. A hypothesis is such a set S, with its mean μ and its width σ, the
    standard deviation along its top direction. There are clouds in which every answer is sqrt(f/(n − 2f))·σ
    off for some hypothesis: no rule can promise less. A filter ends near the narrowest one, up to twice as
    far from a wider one. Here the least t is found with |answer − μ| ≤ t·σ for all hypotheses, and
    RandEigen's weights are mixed with those of that answer until none is further off than t, or than
    `tolerance` times that bound. `tolerance=0` is the answer of least t itself.

    Rows on a line (d = 1, or a Gram matrix of rank one): the f + 1 windows of the sorted rows are all the
    hypotheses that matter, and the bound is met exactly. Otherwise hypotheses are made by removing f rows
    along the top direction of those left, again and again, each preferring one side of it by another amount.
    A width counts as σ·(σ/least σ)^`wide_penalty`: above 0, sets that keep far rows pull less. Deterministic
    given the Gram matrix.

    For one average of rows that come in groups (surveys, sensors, a minority of clients), not for training
    round after round: it gives an honest minority its part, and to a corrupt one that looks like it too.

    Cost: n²·d for the Gram matrix, then about 40 eigenproblems of n², at most n + f + 40. Breaks down at half
    the rows. Blind to Byzantine rows inside the honest spread, and to a corrupt minority like an honest one.
    """

    tolerance: float = 0.9
    wide_penalty: float = 0.0
    name: ClassVar[str] = "balanced"
    family: ClassVar[str] = "Spectral filters"
    facts: ClassVar[Facts] = Facts(
        paper="this package (docs/departures.md)",
        cost="n²·d, then about 40 eigenproblems of n²",
        breakdown="1/2",
        blind_to="a corrupt minority no further out than an honest one may be",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("tolerance", self.tolerance), ("wide_penalty", self.wide_penalty)):
            if not 0 <= value < math.inf:
                raise BadParameter(f"{name}={value}; give a number from 0.")

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        """Filter, list the hypotheses, and mix in the answer between them as far as needed."""
        far = far_outliers(geometry, f)
        filtered = RandEigen(f=f).weigh(geometry, f, rng)
        live = np.flatnonzero(np.where(far, 0.0, geometry.prior_weights) > 0)
        left = min(f - int(far.sum()), (live.size - 1) // 2)
        cloud = geometry.take(live)
        first = cloud.top_direction(cloud.prior_weights)
        if left <= 0 or first.variance <= cloud.rounding_error(cloud.prior_weights):
            return Decision(filtered)
        held, rest = corruptible(cloud.prior_weights, left)
        bound = math.sqrt(held / (rest - held)) if rest > held else math.inf
        start = normalised(filtered.weights[live])
        if is_line(cloud, first.variance):
            weights, fraction = balance_on_line(
                first.projections, cloud.prior_weights, left, start, self._limit(bound)
            )
        elif first.variance * (rest - held) <= first.typical_row_variance * rest:
            # The plain mean is within sqrt(held/rest·variance) of every hypothesis, and none is much narrower
            # than its typical row alone makes it: that meets the bound, and a filter removes next to nothing.
            return Decision(filtered)
        else:
            sets = hypotheses(cloud, left, first)
            weights, fraction = self._balance(cloud, sets, start, self._limit(bound))
        if fraction <= 0:
            return Decision(filtered)
        whole = np.zeros(geometry.n)
        whole[live] = normalised(weights)
        note = f"{fraction:.0%} of the way from the filter's answer to the one between all hypotheses"
        spreads = (*filtered.spreads, geometry.scale * math.sqrt(geometry.top_direction(whole).variance))
        return Decision(
            Verdict(
                whole,
                Stop.BALANCED,
                spreads=spreads,
                answer_round=len(spreads) - 1,
                far_outliers=far,
                notes=(note,),
            )
        )

    def _limit(self, bound: float) -> float:
        return min(self.tolerance * bound, MAX_LIMIT) if math.isfinite(bound) else 0.0

    def _balance(
        self, geometry: Geometry, sets: Hypotheses, start: Weights, limit: float
    ) -> tuple[Weights, float]:
        """The start mixed with the answer of least t until no hypothesis is beyond the limit, and how far."""
        lines = np.vstack((sets.weights, start))
        apart = geometry.combine_rows(np.hstack((lines, np.zeros((len(lines), 1))))).squared_distances()
        noise = math.sqrt(geometry.rounding_error(geometry.prior_weights))
        widths = np.maximum(sets.widths, max(MIN_WIDTH_RATIO * float(sets.widths.max()), noise))
        with np.errstate(over="ignore"):  # a large penalty forbids what is wider
            widths = widths * np.minimum((widths / widths.min()) ** self.wide_penalty, MAX_PENALTY)
        mixture, least = nearest_to_all(apart[:-1, :-1], widths)
        if off_by(apart, np.append(mixture, 0.0))[-1] <= noise:
            return start, 0.0  # the filter's answer is that one, to rounding
        limit = max(limit, least * (1 + TIE))

        def within(share: float) -> bool:
            point = np.append(share * mixture, 1 - share)
            return bool((off_by(apart, point)[:-1] <= limit * widths).all())

        share = least_share(within)
        return (1 - share) * start + share * (mixture @ sets.weights), share


def is_line(geometry: Geometry, variance: float) -> bool:
    """Whether all rows lie on one line, but for rounding."""
    w = normalised(geometry.prior_weights)
    centre = float(geometry.combine_rows(np.append(w, 0.0)[None]).squared_norms_from_pivot()[0])
    beyond = float(w @ geometry.squared_norms_from_pivot()) - centre - variance
    return beyond <= LINE_TOLERANCE * variance + geometry.rounding_error(w)


def balance_on_line(
    projections: Array, prior: Array, f: int, start: Weights, limit: float
) -> tuple[Weights, float]:
    """The same where rows are numbers: all windows of n − f sorted rows are hypotheses."""
    order = projections.argsort(kind="stable")
    x, m = projections[order], prior[order]
    sums = np.zeros((3, x.size + 1))
    np.cumsum((m, m * x, m * x * x), axis=1, out=sums[:, 1:])
    total, first, second = sums[:, x.size - f :] - sums[:, : f + 1]
    means = first / total
    widths = np.sqrt(np.maximum(second / total - means**2, 0.0))
    widths = np.maximum(widths, MIN_WIDTH_RATIO * max(float(widths.max()), float(np.ptp(x))))
    least, low, high = 0.0, 0, 0
    for _ in range(MAX_NEWTON_STEPS):  # to the least t at which all intervals meet: there two of them touch
        low, high = int((means + least * widths).argmin()), int((means - least * widths).argmax())
        gap, both = float(means[high] - means[low]), float(widths[high] + widths[low])
        if gap <= least * (1 + TIE) * both:  # so it is where rows are one point, of no width
            break
        least = gap / both
    part = float(widths[high] / both) if both else 0.5
    window = np.arange(x.size) - np.array([[low], [high]])
    inside = np.where((window >= 0) & (window < x.size - f), m, 0.0)
    between = np.array([part, 1 - part]) @ (inside / inside.sum(axis=1, keepdims=True))
    limit = max(limit, least * (1 + TIE))
    begin, end = float(start[order] @ x), float(between @ x)
    if abs(begin - end) <= SAME_POINT * np.ptp(x):
        return start, 0.0
    share = least_share(
        lambda share: bool((abs((1 - share) * begin + share * end - means) <= limit * widths).all())
    )
    mixed = (1 - share) * start[order] + share * between
    group = np.append(0, np.cumsum(np.diff(x) > TIE * np.ptp(x)))  # equal rows share what they have
    mixed = m * (np.bincount(group, mixed) / np.bincount(group, m))[group]
    weights = np.empty_like(mixed)
    weights[order] = mixed
    return weights, share


def hypotheses(geometry: Geometry, f: int, first: TopDirection) -> Hypotheses:
    """Sets of n − f rows, made by removing what is furthest out, with all degrees of side preference."""
    whole = np.ones(geometry.n)
    path = [(whole, float(f), first)]
    while path[-1][1] > TIE * f and len(path) <= f:
        path.append(_step(geometry, *path[-1], 0.0, None, STEPS_WITHOUT if len(path) < f else 1))
    narrow = path[-1]
    sets = [narrow]
    # Rows that are far out whatever the preference are removed once, for all.
    base = next(one for one in path if one[2].variance <= MAX_VARIANCE_RATIO * narrow[2].variance)
    for preference in PREFERENCES if base[1] > 0 else ():
        one = base
        for k in range(STEPS_OF_PREFERENCE):
            if one[1] <= TIE * f or one[2].variance <= 0:
                break
            one = _step(geometry, *one, preference, base[2].projections, STEPS_OF_PREFERENCE - k)
        sets.append(one)
    weights = np.array([normalised(share * geometry.prior_weights) for share, _, _ in sets])
    return Hypotheses(weights, np.array([math.sqrt(top.variance) for _, _, top in sets]))


def _step(
    geometry: Geometry,
    share: Array,
    left: float,
    top: TopDirection,
    preference: float,
    side: Array | None,
    parts: int,
) -> tuple[Array, float, TopDirection]:
    """Remove rows far out along the top direction, at most this part of what is `left`: all if it is 1."""
    along = top.projections
    if side is not None and (share * geometry.prior_weights * along) @ side < 0:
        along = -along
    scores = np.where(along > 0, (1 + preference) * along, (preference - 1) * along)
    scores = np.where(share > 0, scores, -1.0)
    near = float(share[scores >= NEAR_TOP_RATIO * scores.max()].sum())
    amount = left if parts <= 1 else min(math.ceil(left / parts), max(near, 1.0), left)
    share = without(share, scores, amount)
    return share, left - amount, geometry.top_direction(share * geometry.prior_weights)


def without(share: Array, scores: Array, amount: float) -> Array:
    """What is left once `amount` rows' worth of the largest scores are gone; equal scores lose alike."""
    order = np.argsort(-scores, kind="stable")
    reached = int(np.cumsum(share[order]).searchsorted(amount * (1 - TIE)))
    cut = float(scores[order[min(reached, order.size - 1)]])
    above, tied = scores > cut * (1 + TIE), abs(scores - cut) <= TIE * cut
    kept = 1 - (amount - share[above].sum()) / share[tied].sum()
    return np.where(above, 0.0, np.where(tied, share * (kept if kept > TIE else 0.0), share))


def off_by(apart: Array, mixtures: Array) -> Array:
    """Distances of J points from mixtures (..., J) of them, from their squared mutual distances."""
    towards = mixtures @ apart
    inner = (mixtures * towards).sum(axis=-1, keepdims=True) / 2
    return np.asarray(np.sqrt(np.maximum(towards - inner, 0.0)))


def nearest_to_all(apart: Array, widths: Array) -> tuple[Array, float]:
    """The mixture of points with the least largest distance in units of their widths, and that distance."""
    count = widths.size
    i, j = np.triu_indices(count)
    pairs = (np.eye(count)[i] * widths[j, None] + np.eye(count)[j] * widths[i, None]) / 2
    pairs /= pairs.sum(axis=1, keepdims=True)
    worst = (off_by(apart, pairs) / widths).max(axis=1)
    best, least = pairs[worst.argmin()], float(worst.min())  # two points decide, most often
    mixture = best
    for k in range(REFINEMENT_STEPS if count > 2 else 0):  # a step towards the one that is worst off
        off = off_by(apart, mixture) / widths
        furthest = int(off.argmax())
        if off[furthest] < least:
            best, least = mixture, float(off[furthest])
        mixture = mixture + (np.eye(count)[furthest] - mixture) / (k + 8)
    return best, least


def least_share(within: Callable[[float], bool]) -> float:
    """How far to go, by halving, on a straight way that ends within a convex limit; 0 if it begins there."""
    if within(0.0):
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if within(middle) else (middle, high)
    return high
