"""The paper's own loops: remove rows at random by their distance along the widest direction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from randeigen.errors import BadFraction
from randeigen.geometry.projection import jl_width
from randeigen.rules.base import Facts, TableRule, normalised
from randeigen.types import Array, Geometry, Spread, Stop, Verdict

CONVERGENCE_TOLERANCE = 1e-5  # relative change of the eigenvalue that the paper calls convergence
EPS_P = 0.1  # the paper's error of power iteration


@dataclass(frozen=True)
class Filtering(TableRule):
    """Randomized filtering with a known bound on the honest variance (the paper's Algorithm 2).

    Removes row i with probability |pᵢ|/max|p|, p being the projections on the widest direction, until the
    widest variance is below `gamma` (in squared units of the rows) or 2·eps·n rounds are over. The answer is
    only as good as gamma: too small and honest rows go, too large and liars stay. Cost as RandEigen.
    """

    gamma: float = math.nan
    facts: ClassVar[Facts] = Facts(
        paper="Diakonikolas, Kane 2023 (the paper's Algorithm 2)",
        cost="n²·d + n² a round, 2·eps·n rounds",
        breakdown="1/12 in theory",
        blind_to="anything that keeps the widest variance below gamma",
    )

    def __post_init__(self) -> None:
        """Refuse a missing threshold: it is a promise about the honest rows, so it has no default."""
        super().__post_init__()
        if not self.gamma >= 0:
            raise BadFraction(
                f"Filtering needs gamma, the largest variance honest rows have along any direction; "
                f"found gamma={self.gamma}. If it is not known, use RandEigen or Filtering.converging."
            )

    @staticmethod
    def converging(eps: float | None = None, f: int | None = None) -> ConvergingFiltering:
        """Algorithm 4: stops when the eigenvalue settles instead of at a threshold."""
        return ConvergingFiltering(eps, f)

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """Algorithm 2."""

        def ended(spreads: list[float], left: int) -> Stop | None:
            square = spreads[-1] * spreads[-1]  # of 1e200 this is infinite, where ** 2 is an error
            return Stop.NARROW if square < self.gamma else None

        return remove_at_random(geometry, _rounds(self, geometry.n, f), geometry.top_direction, ended, rng)


@dataclass(frozen=True)
class ConvergingFiltering(TableRule):
    """Randomized filtering that stops when the top eigenvalue settles (the paper's Algorithm 4).

    It exists for the paper's analysis and shares the end of Algorithm 3, see `PublishedRandEigen`.
    """

    facts: ClassVar[Facts] = Facts(
        paper="Lee, Kolluri, Saxena, Chang 2025, Algorithm 4",
        cost="n²·d + n² a round, 2·eps·n rounds",
        breakdown="1/12 in theory; removes all rows from eps = 1/5",
        blind_to="nothing in particular: it throws away honest rows too",
    )

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """Algorithm 4: exact eigenvectors, published stopping."""
        ended = _published_end(geometry.n, self.eps if self.eps is not None else f / geometry.n)
        return remove_at_random(geometry, _rounds(self, geometry.n, f), geometry.top_direction, ended, rng)


@dataclass(frozen=True)
class PublishedRandEigen(TableRule):
    """Algorithm 3 line by line: Gaussian sketch, power iteration, removal by |p|/max|p|, last iterate.

    Known end: the relative change of the eigenvalue never falls to 1e-5 on real or Gaussian rows, so the
    floor of (1 − 5·eps)·n rows is the only brake, and a round can jump far below it. Without any attack it
    leaves about 60 of 100 rows at eps = 0.05 and 40 at 0.10; at eps ≥ 0.2 the floor is 0 and it removes
    everybody. Measured in docs/departures.md. Here to be compared with; use `RandEigen`.
    """

    geometry: ClassVar[str] = "gaussian"
    facts: ClassVar[Facts] = Facts(
        paper="Lee, Kolluri, Saxena, Chang 2025, Algorithm 3 as printed",
        cost="n·k·d, k = 100·ln d, + n·k a step",
        breakdown="1/12 in theory; removes all rows from eps = 1/5",
        blind_to="nothing in particular: it throws away honest rows too",
    )

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """Algorithm 3 from line 4 on; the sketch of lines 1 to 3 is the geometry."""
        k = getattr(geometry, "points", np.empty((0, jl_width(2**18)))).shape[1]
        steps = math.ceil(abs(math.log(4 * k) / (2 * math.log(1 - EPS_P))))

        def widest(weights: Array) -> Spread:
            return geometry.top_direction_by_power_iteration(weights, steps, rng)

        ended = _published_end(geometry.n, self.eps if self.eps is not None else f / geometry.n)
        return remove_at_random(geometry, _rounds(self, geometry.n, f), widest, ended, rng)


def remove_at_random(
    geometry: Geometry,
    rounds: int,
    widest: Callable[[Array], Spread],
    ended: Callable[[list[float], int], Stop | None],
    rng: np.random.Generator,
) -> Verdict:
    """The loop Algorithms 2, 3 and 4 share; they differ in when they stop and how they find the direction."""
    mass, stop = geometry.prior_weights.copy(), Stop.ROUNDS
    spreads: list[float] = []
    fell, scores = np.zeros(geometry.n, dtype=np.intp), np.zeros(geometry.n)
    for now in range(1, rounds + 1):
        spread = widest(mass)
        spreads.append(geometry.unit * math.sqrt(spread.variance))
        if spread.variance <= 0 or not spread.places.any():
            stop = Stop.AGREE
            break
        if reason := ended(spreads, int(np.count_nonzero(mass))):
            stop = reason
            break
        distance = abs(spread.places)
        goes = (mass > 0) & (rng.random(geometry.n) < distance / distance.max())
        if goes[mass > 0].all():
            stop = Stop.EMPTY
            break
        fell[goes], scores[goes] = now, spread.scores[goes] / spread.variance
        mass = np.where(goes, 0.0, mass)
    last = max(len(spreads) - 1, 0)
    return Verdict(
        normalised(mass), stop, spreads=tuple(spreads), chosen=last, dropped_in_round=fell, scores=scores
    )


def _published_end(n: int, eps: float) -> Callable[[list[float], int], Stop | None]:
    def ended(spreads: list[float], left: int) -> Stop | None:
        change = spreads[-1] / spreads[-2] if len(spreads) > 1 and spreads[-2] > 0 else math.inf
        if abs(change * change - 1) <= CONVERGENCE_TOLERANCE:
            return Stop.CONVERGED
        return Stop.FLOOR if left <= (1 - 5 * eps) * n else None

    return ended


def _rounds(rule: TableRule, n: int, f: int) -> int:
    return math.floor(2 * n * rule.eps + 1e-9) if rule.eps is not None else 2 * f
