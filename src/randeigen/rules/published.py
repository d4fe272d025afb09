"""The paper's own loops: rows are removed at random by their projections on the top direction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from randeigen.errors import BadParameter
from randeigen.rules.base import Facts, Rule, normalised, scores_in_variances
from randeigen.types import Array, Decision, Geometry, GeometryKind, Stop, TopDirection, Verdict

CONVERGENCE_TOLERANCE = 1e-5  # relative change of the eigenvalue that the paper calls convergence
EPS_JL = EPS_P = 0.1  # the paper's errors of the projection and of power iteration
MIN_EPS_P = 1e-3  # with which power iteration makes some 4,000 steps
MIN_EPS_JL = 0.01  # the projection has ln(d)/eps_jl² columns, and no geometry has more than here
ASSUMED_COLUMNS = 2**18  # d where inner products alone are known: the paper's CNN


@dataclass(frozen=True)
class Filtering(Rule):
    """Randomized filtering with a known bound on the honest variance (the paper's Algorithm 2).

    Removes row i with probability |pᵢ|/max|p|, p being the projections on the top direction, until the top
    variance is below `gamma` (in squared units of the rows) or 2·eps·n rounds are over. The answer is only
    as good as gamma: too small and honest rows go, too large and Byzantine rows stay. Cost as RandEigen.
    """

    gamma: float = math.nan
    name: ClassVar[str] = "filtering"
    family: ClassVar[str] = "Spectral filters"
    known_variance: ClassVar[str | None] = "gamma"
    facts: ClassVar[Facts] = Facts(
        paper="Diakonikolas, Kane 2023 (the paper's Algorithm 2)",
        cost="n²·d + n² a round, 2·eps·n rounds",
        breakdown="1/12 in theory",
        blind_to="anything that keeps the top variance below gamma",
    )

    def __post_init__(self) -> None:
        """Refuse a missing gamma: it is the caller's claim about the honest rows, so it has no default."""
        super().__post_init__()
        if not self.gamma >= 0:
            raise BadParameter(
                f"Filtering needs gamma, the largest variance honest rows have along any direction; "
                f"found gamma={self.gamma}. If it is not known, use RandEigen or Filtering.converging."
            )

    @staticmethod
    def converging(eps: float | None = None, f: int | None = None) -> ConvergingFiltering:
        """Algorithm 4: stops when the eigenvalue settles instead of at a threshold."""
        return ConvergingFiltering(eps, f)

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        def should_stop(spreads: list[float], left: int) -> Stop | None:
            square = spreads[-1] * spreads[-1]  # of 1e200 this is infinite, where ** 2 is an error
            return Stop.BELOW_THRESHOLD if square < self.gamma else None

        rounds = _rounds(self, geometry.n, f)
        return Decision(remove_at_random(geometry, rounds, geometry.top_direction, should_stop, rng))


@dataclass(frozen=True)
class ConvergingFiltering(Rule):
    """Randomized filtering that stops when the top eigenvalue settles (the paper's Algorithm 4).

    It exists for the paper's analysis and shares the end of Algorithm 3, see `PublishedRandEigen`.
    """

    name: ClassVar[str] = "converging"
    family: ClassVar[str] = "Spectral filters"
    facts: ClassVar[Facts] = Facts(
        paper="Lee, Kolluri, Saxena, Chang 2025, Algorithm 4",
        cost="n²·d + n² a round, 2·eps·n rounds",
        breakdown="1/12 in theory; removes all rows from eps = 1/5",
        blind_to="nothing in particular: it throws away honest rows too",
    )

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        should_stop = _published_end(geometry.n, self.eps if self.eps is not None else f / geometry.n)
        rounds = _rounds(self, geometry.n, f)
        return Decision(remove_at_random(geometry, rounds, geometry.top_direction, should_stop, rng))


@dataclass(frozen=True)
class PublishedRandEigen(Rule):
    """Algorithm 3 line by line: Gaussian sketch, power iteration, removal by |p|/max|p|, last iterate.

    Known end: the relative change of the eigenvalue never falls to 1e-5 on real or Gaussian rows, so the
    floor of (1 − 5·eps)·n rows is the only brake, and a round can jump far below it. Without any attack it
    leaves about 60 of 100 rows at eps = 0.05 and 40 at 0.10; at eps ≥ 0.2 the floor is 0 and it removes
    all. Measured in docs/departures.md. Here to be compared with; use `RandEigen`.

    `eps_jl` is the error of the projection, which has ln(d)/eps_jl² columns, and `eps_p` that of power
    iteration, which makes ln(4k)/(2·ln(1/(1 − eps_p))) steps in the k columns of the sketch, or, on exact
    inner products, of a sketch of as many columns as the rows have. Both are 0.1 in the paper's experiments.
    `native` lets a GPU draw the projection itself, which saves the time to draw it on the host; a seed then
    gives the same answer on that kind of device alone. `law` draws the sketch of n rows from its distribution
    given their Gram matrix: the same algorithm with other coins, without the d·k numbers of the projection.
    """

    eps_jl: float = EPS_JL
    eps_p: float = EPS_P
    native: bool = False
    law: bool = False
    name: ClassVar[str] = "published"
    family: ClassVar[str] = "Spectral filters"
    facts: ClassVar[Facts] = Facts(
        paper="Lee, Kolluri, Saxena, Chang 2025, Algorithm 3 as printed",
        cost="n·k·d, k = 100·ln d, + n·k a step",
        breakdown="1/12 in theory; removes all rows from eps = 1/5",
        blind_to="nothing in particular: it throws away honest rows too",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not MIN_EPS_JL <= self.eps_jl < 1:
            raise BadParameter(
                f"eps_jl={self.eps_jl}; give the error of the projection, in [{MIN_EPS_JL:g}, 1)."
            )
        if not MIN_EPS_P <= self.eps_p < 1:
            raise BadParameter(f"eps_p={self.eps_p}; give that of power iteration, in [{MIN_EPS_P:g}, 1).")
        if self.native and self.law:
            raise BadParameter(
                "native=True and law=True: a sketch drawn by its law has no projection; give one."
            )

    @property
    def geometry(self) -> GeometryKind:
        # The name of a geometry takes parameters as the name of a rule does.
        given = [f"eps_jl={self.eps_jl!r}"] if self.eps_jl != EPS_JL else []
        given += [f"{way}=true" for way in ("native", "law") if getattr(self, way)]
        return cast(GeometryKind, ":".join(["gaussian", *([",".join(given)] if given else [])]))

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        """Algorithm 3 from line 4 on; the sketch of lines 1 to 3 is the geometry."""
        steps = power_steps(self._width(geometry), self.eps_p)

        def top_direction(weights: Array) -> TopDirection:
            return geometry.top_direction_by_power_iteration(weights, steps, rng)

        should_stop = _published_end(geometry.n, self.eps if self.eps is not None else f / geometry.n)
        rounds = _rounds(self, geometry.n, f)
        return Decision(remove_at_random(geometry, rounds, top_direction, should_stop, rng))

    def _width(self, geometry: Geometry) -> int:
        """k: the columns of the sketch; where there is none, those that a sketch of so many columns has."""
        if geometry.coordinates is not None:
            return int(geometry.coordinates.shape[1])
        d = geometry.columns or ASSUMED_COLUMNS
        return max(1, math.ceil(math.log(d) / self.eps_jl**2))


def power_steps(k: int, eps_p: float) -> int:
    """N: the steps after which power iteration in k dimensions is off by eps_p, as the paper counts them.

    >>> power_steps(1248, 0.1), power_steps(691, 0.1)
    (41, 38)
    """
    return math.ceil(abs(math.log(4 * k) / (2 * math.log1p(-eps_p))))


def remove_at_random(
    geometry: Geometry,
    rounds: int,
    top_direction: Callable[[Array], TopDirection],
    should_stop: Callable[[list[float], int], Stop | None],
    rng: np.random.Generator,
) -> Verdict:
    """The loop Algorithms 2, 3 and 4 share; they differ in when they stop and how they find the direction."""
    w, stop = geometry.prior_weights.copy(), Stop.MAX_ROUNDS
    spreads: list[float] = []
    dropped_in_round, scores = np.zeros(geometry.n, dtype=np.intp), np.zeros(geometry.n)
    for now in range(1, rounds + 1):
        top = top_direction(w)
        spreads.append(geometry.scale * math.sqrt(top.variance))
        if top.variance <= 0 or not top.projections.any():
            stop = Stop.IDENTICAL_ROWS
            break
        if reason := should_stop(spreads, int(np.count_nonzero(w))):
            stop = reason
            break
        distance = abs(top.projections)
        removed = (w > 0) & (rng.random(geometry.n) < distance / distance.max())
        if removed[w > 0].all():
            stop = Stop.EMPTY
            break
        dropped_in_round[removed], scores[removed] = now, scores_in_variances(top)[removed]
        w = np.where(removed, 0.0, w)
    return Verdict(
        normalised(w),
        stop,
        spreads=tuple(spreads),
        answer_round=max(len(spreads) - 1, 0),
        dropped_in_round=dropped_in_round,
        scores=scores,
    )


def _published_end(n: int, eps: float) -> Callable[[list[float], int], Stop | None]:
    def should_stop(spreads: list[float], left: int) -> Stop | None:
        change = spreads[-1] / spreads[-2] if len(spreads) > 1 and spreads[-2] > 0 else math.inf
        if abs(change * change - 1) <= CONVERGENCE_TOLERANCE:
            return Stop.CONVERGED
        return Stop.FLOOR if left <= (1 - 5 * eps) * n else None

    return should_stop


def _rounds(rule: Rule, n: int, f: int) -> int:
    return math.floor(2 * n * rule.eps + 1e-9) if rule.eps is not None else 2 * f
