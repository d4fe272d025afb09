"""What passes between the rooms: rows, geometry, verdict, aggregate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]  # host numbers of the small space
Weights: TypeAlias = NDArray[np.float64]  # (n,) non-negative, sums to 1
Mask: TypeAlias = NDArray[np.bool_]  # (n,)
Block: TypeAlias = Any  # (n, b) numpy array or torch tensor, float32 or float64, not to be written to
Progress: TypeAlias = Callable[[str, int, int], None]  # (stage, columns done, columns in all)
GeometryKind: TypeAlias = Literal["auto", "gram", "sketch", "gaussian"]
OnExcess: TypeAlias = Literal["raise", "drop"]


class Answer(Protocol):
    """Where the second pass writes, and how it goes back into the caller's form."""

    def write(self, columns: slice, values: Any) -> float:
        """Store the answer for some columns; how far rounding to the answer's dtype moved it."""

    def place(self, columns: slice, like: Any) -> Any:
        """The answer's own memory for these columns, if it holds numbers like these; else None."""

    def finish(self, weights: Weights) -> Any:
        """The whole answer; `weights` settle what is carried, not averaged (integers)."""


class Rows(Protocol):
    """n rows of d numbers, seen strip by strip, whatever holds them."""

    n: int
    d: int
    lost: Mapping[int, str]  # rows that could not be read, and why: they count as corrupt

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        """All n rows, some columns at a time, in order; may be called again for another pass."""

    def answer(self) -> Answer:
        """A fresh place for the result, in the caller's own form."""


class Spread(NamedTuple):
    """The widest direction of a weighted cloud."""

    variance: float  # along it
    places: Array  # (n,) signed distance from the mean along it; 0 for rows of no weight
    alone: float = 0.0  # the variance that the typical row gives its own direction, all by itself
    allowance: float = 0.0  # no direction is wider than `variance` by more than this

    @property
    def scores(self) -> Array:
        """(n,) squared distance from the mean along it."""
        return self.places**2


class Geometry(Protocol):
    """All a rule may know of n rows: their mutual positions, never their columns."""

    @property
    def n(self) -> int:
        """How many rows."""

    @property
    def unit(self) -> float:
        """Lengths here times `unit` are lengths in the caller's numbers."""

    @property
    def prior_weights(self) -> Array:
        """(n,) mass of each row before any judgement; ones unless the caller weighted them."""

    @property
    def distortion(self) -> float:
        """0 if exact; else the variance along a fixed direction is at least 1 − this of the true one."""

    @property
    def partial(self) -> bool:
        """Whether no more was measured than the rule `needs`: enough to answer, not to certify."""

    def top_direction(self, weights: Array) -> Spread:
        """The widest direction of the cloud under these (unnormalised) weights."""

    def top_direction_by_power_iteration(
        self, weights: Array, steps: int, rng: np.random.Generator
    ) -> Spread:
        """The same by the paper's power iteration, as far as it gets."""

    def squared_distances(self) -> Array:
        """(n, n) squared distances, never negative."""

    def squared_distances_from(self, row: int) -> Array:
        """(n,) squared distances from one row."""

    def squared_norms_from_pivot(self) -> Array:
        """(n,) squared distances from a point near the rows: how far out each is, to a factor."""

    def distance_between(self, weights_a: Array, weights_b: Array) -> float:
        """Length of Σ (aᵢ − bᵢ)·xᵢ, the rows measured from the caller's origin; no sum need be 1."""

    def rounding_error(self, weights: Array) -> float:
        """How much of the widest variance rounding can hide."""

    def squared_norms(self) -> Array:
        """(n,) squared distances from the origin of the caller's numbers."""

    def take(self, index: NDArray[np.intp]) -> Geometry:
        """The same cloud with only these rows."""

    def combine_rows(self, matrix: Array) -> Geometry:
        """The cloud of m combinations of the rows and, last, the origin: (m, n+1), lines summing to 1."""

    def with_prior_weights(self, prior: Array) -> Geometry:
        """The same cloud with other masses."""


class Rule(Protocol):
    """Geometry in, weights out. `f` rows of those shown may be corrupt; coins come from `rng`."""

    @property
    def geometry(self) -> str:
        """The geometry this rule is defined on, or "auto"."""

    def assumed_corrupt(self, n: int) -> int:
        """How many of n rows this rule assumes corrupt."""

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """The judgement."""


class BlockRule(Rule, Protocol):
    """A rule that works column by column. Its `weigh` gives the mean that its certificate leans on."""

    @property
    def chunk(self) -> int:
        """Blocks begin at multiples of this many columns; 1 where that does not matter."""

    def merge(self, columns: slice, block: Block, f: int, verdict: Verdict) -> Any:
        """(b,) the answer for these columns of the usable rows, on which `weigh` gave this verdict."""


class Stop(str, Enum):
    """Why judging ended, as a sentence."""

    __str__ = str.__str__

    DIRECT = "the rule weighs rows in one step"
    AGREE = "all rows that are left agree exactly"
    ROUND = "no direction is wider than any single row makes it: nothing stands out"
    BUDGET = "twice as much weight is gone as corrupt rows could hold"
    LONE = "fewer than two rows are left to compare"
    CONVERGED = "the widest variance no longer changes"
    FLOOR = "the set shrank to the published floor"
    NARROW = "the widest variance is below the given threshold"
    ROUNDS = "the allowed rounds are used up"
    BALANCED = "the answer lies between all sets of rows that may be the honest ones"
    EMPTY = "every row was removed: the published rule has no answer, so the last rows left stand in"


@dataclass(frozen=True)
class Verdict:
    """What a rule decided, and how it got there. Indices are those of the rows it was shown."""

    weights: Weights
    stop: Stop
    scale: float = 1.0  # the answer is the weighted mean times this: below 1 where rows were clipped
    spreads: tuple[float, ...] = ()  # standard deviation along the widest direction, before each round
    # The certificate of the same iterates, for the f the rule was given; an estimate of it on a sketch.
    bounds: tuple[float, ...] = ()
    chosen: int = 0  # spreads[chosen] and bounds[chosen] are those of the answer itself
    dropped_in_round: NDArray[np.intp] | None = (
        None  # (n,) round in which a row lost most weight; 0: it lost none
    )
    scores: Array | None = None  # (n,) its squared distance in that round, in units of the variance
    far_outliers: Mask | None = None  # (n,) rows too far out to be weighed beside the others
    notes: tuple[str, ...] = field(default=())
    cut_together: tuple[tuple[int, ...], ...] = ()  # rows that lost their weight and agree with each other

    @property
    def rounds(self) -> int:
        """How many times the cloud was measured."""
        return len(self.spreads)


@dataclass(frozen=True)
class Aggregate:
    """The answer, and everything needed to trust, question or replay it.

    `bias_bound`: f corrupt rows can have moved the answer by at most this at these weights: it is that close
    to the mean of the honest rows alone at the same weights, and may be further from their plain mean.
    It is inf where f is half or more of the usable rows, or holds all the weight; 0 where f is 0.

    `distance_to_mean`: how far the answer is from the plain mean of all usable rows, which is what robustness
    cost if every row is honest. An estimate where the rows were sketched.
    """

    mean: Any  # in the caller's own form
    weights: Weights
    bias_bound: float
    verdict: Verdict
    seed: int
    f: int  # how many of all rows were assumed corrupt: the f given, or ceil(eps·n); bias_bound speaks of it
    unusable: Mapping[int, str]  # rows that could not be measured at all, and why: each used up one of the f
    distance_to_mean: float = math.nan

    @property
    def kept(self) -> Mask:
        """(n,) whether a row has any part in the answer."""
        return np.asarray(self.weights > 0)
