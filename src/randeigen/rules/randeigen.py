"""RandEigen: the paper's spectral filter, repaired by one principle: return the best certified iterate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from randeigen.certificate import bound
from randeigen.errors import BadFraction
from randeigen.rules.base import TableRule, normalised
from randeigen.rules.filtering import PublishedRandEigen
from randeigen.types import Array, Geometry, Mask, Stop, Verdict

WILD = 1e8  # squared: a row 10,000 times further out than the median row is not weighed beside the others
NEGLIGIBLE = 1e-9  # of a row's own mass: less than this sets no maximum, no scale and no sum


@dataclass(frozen=True)
class RandEigen(TableRule):
    """The paper's loop, softened, with a certificate.

    Each round finds the widest direction of the weighted cloud and multiplies every row's weight by
    1 − sᵢ/max s, s being its squared distance from the mean along that direction: the expectation of
    removing it at random with that probability. Rounds go on until more weight is gone than twice what f
    rows can hold; the round with the least certified bias is the answer. Deterministic given the table.

    `removal="random"` flips the coins, as the paper does. `RandEigen.as_published` is the paper's own.

    Cost: two readings of the rows, n²·d; then n² a round, in at most n rounds. Breaks down at half the
    rows. Blind to rows that hide inside the honest spread: they move the mean by no more than the
    certificate says.
    """

    removal: str = "soft"

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
        """Filter round by round; return the round with the least certificate."""
        wild = far_out(geometry, f)
        mass = np.where(wild, 0.0, geometry.prior)
        floor = geometry.prior.sum() * (1 - 2 * f / geometry.n)
        trail = Trail(geometry, f, wild)
        while True:
            spread = geometry.widest(mass)
            trail.see(mass, spread.variance)
            stop = _ended(mass, spread.variance, f)
            if stop is None:
                chance = spread.scores / spread.scores.max()
                keep = 1 - chance if self.removal == "soft" else (rng.random(chance.size) >= chance) * 1.0
                left = np.where(mass * keep > NEGLIGIBLE * geometry.prior, mass * keep, 0.0)
                if left.sum() < floor or np.count_nonzero(left) < 2:
                    stop = Stop.BUDGET
            if stop is not None:
                return trail.verdict(stop)
            trail.lost(mass, left, spread.scores / spread.variance)
            mass = left


def _ended(mass: Array, variance: float, f: int) -> Stop | None:
    if f == 0:
        return Stop.DIRECT
    if np.count_nonzero(mass) < 2:
        return Stop.LONE
    return Stop.AGREE if variance <= 0 else None


def far_out(geometry: Geometry, f: int) -> Mask:
    """Rows so far out that float64 could not see the others beside them. Never more than f."""
    reach = geometry.reach()
    wild = reach > WILD * np.median(reach)
    # More of them than liars: some are honest, the honest spread is that wide, and they stay.
    return wild if wild.sum() <= f else np.zeros_like(wild)


class Trail:
    """What happened round by round, and which round was best."""

    def __init__(self, geometry: Geometry, f: int, wild: Mask) -> None:
        self.geometry, self.f, self.wild = geometry, f, wild
        self.spreads: list[float] = []
        self.bounds: list[float] = []
        self.best = 0
        self.weights = geometry.prior
        self.fell = np.zeros(geometry.n, dtype=np.intp)
        self.scores = np.zeros(geometry.n)
        self._most = np.zeros(geometry.n)
        self._told = (self.fell, self.scores)

    def see(self, mass: Array, variance: float) -> None:
        """A cloud was measured: remember it if no earlier one has a smaller certificate."""
        self.spreads.append(self.geometry.unit * float(np.sqrt(variance)))
        self.bounds.append(bound(self.geometry, mass, self.f, variance))
        if len(self.bounds) == 1 or self.bounds[-1] < self.bounds[self.best]:
            self.best, self.weights = len(self.bounds) - 1, mass
            self._told = (self.fell.copy(), self.scores.copy())

    def lost(self, before: Array, after: Array, scores: Array) -> None:
        """Weights shrank: note for each row the round in which it lost most."""
        loss = before - after
        more = loss > self._most
        self._most[more] = loss[more]
        self.fell[more] = len(self.spreads)
        self.scores[more] = scores[more]

    def verdict(self, stop: Stop) -> Verdict:
        """The best iterate, and the story up to it."""
        fell, scores = self._told
        return Verdict(
            normalised(self.weights),
            stop,
            spreads=tuple(self.spreads),
            bounds=tuple(self.bounds),
            chosen=self.best,
            fell=fell,
            scores=scores,
            wild=self.wild,
        )
