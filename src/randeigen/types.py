"""What passes between the rooms: rows, geometry, decision, verdict, aggregate."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from randeigen.showing import AggregateText

Array: TypeAlias = NDArray[np.float64]  # host numbers of the small space
Weights: TypeAlias = NDArray[np.float64]  # (n,) non-negative, sums to 1
Mask: TypeAlias = NDArray[np.bool_]  # (n,)
Index: TypeAlias = NDArray[np.intp]
Block: TypeAlias = Any  # (n, b) numpy array or torch tensor, float32 or float64, not to be written to
Progress: TypeAlias = Callable[[str, int, int], None]  # (stage, columns done, columns in all)
GeometryKind: TypeAlias = Literal["auto", "gram", "sketch", "gaussian"]  # how rows are measured
OnExcess: TypeAlias = Literal["raise", "drop"]  # what to do with more unusable rows than may be corrupt


class Answer(Protocol):
    """Where the second pass writes, and how it goes back into the caller's form."""

    def write(self, columns: slice, values: Any) -> float:
        """Store the answer for some columns; how far rounding to the answer's dtype moved it."""

    def memory_for(self, columns: slice, like: Any) -> Any:
        """The answer's own memory for these columns, if it holds such numbers; else None."""

    def finish(self, weights: Weights) -> Any:
        """The whole answer; `weights` settle what is carried, not averaged (integers)."""


class Rows(Protocol):
    """n rows of d numbers, seen strip by strip, whatever holds them."""

    n: int
    d: int
    unusable: Mapping[int, str]  # rows that could not be read, and why: they count as corrupt
    carries: bool  # whether they hold integers or bools, which weights settle by vote
    on_host: bool  # whether blocks are in main memory, not on a GPU
    leaves: Sequence[tuple[str, tuple[int, ...]]]  # name and shape of each leaf, in the order of columns
    segment_columns: int | None  # columns that a worker can read alone, in whole blocks; None: only all

    def blocks(self, multiple: int = 1) -> Iterator[tuple[slice, Block]]:
        """All n rows, columns in order, each block from a multiple of so many on; may be called again."""

    def answer(self) -> Answer:
        """A fresh buffer for the result, in the caller's own form."""

    def changed(self) -> Sequence[int]:
        """Rows that are no longer what they were when they were first read."""


class TopDirection(NamedTuple):
    """The direction along which a weighted cloud has the greatest variance."""

    variance: float  # along it: the top eigenvalue of the weighted covariance
    projections: Array  # (n,) signed distance from the mean along it; 0 for rows of no weight
    typical_row_variance: float = 0.0  # median over i of wᵢ‖xᵢ − μ‖²: a single row alone gives that much
    allowance: float = 0.0  # no direction has more than `variance` plus this

    @property
    def scores(self) -> Array:
        """(n,) squared distance from the mean along it."""
        return self.projections**2


class Statistic(Enum):
    """What must be measured of the rows before a rule can answer, its certificate aside."""

    GRAM = "the inner products of all rows, or a sketch of them"
    DIRECTIONS = "the top directions of the rows under any weights"
    NORMS = "the norm of each row"
    DISTANCES_TO_TRUSTED = "the distance of each row from the trusted one"
    NONE = "nothing"


@runtime_checkable
class Geometry(Protocol):
    """All a rule may know of n rows: their mutual positions, never their columns."""

    @property
    def n(self) -> int: ...  # the number of rows

    @property
    def columns(self) -> int | None: ...  # d, how many were measured; None where that is not known

    @property
    def scale(self) -> float: ...  # lengths here times this are lengths in the caller's numbers

    @property
    def prior_weights(self) -> Array:
        """(n,) weight of each row before any judgement, not normalised; ones unless the caller gave some."""

    @property
    def distortion(self) -> float:
        """0 if exact; else the variance along a fixed direction is at least 1 − this of the true one."""

    @property
    def partial(self) -> bool:
        """Whether no more than the rule's `statistic` was measured: enough to answer, not to certify."""

    @property
    def coordinates(self) -> NDArray[Any] | None:
        """(n, k) the rows, or their sketch, from some pivot; None where only inner products are known."""

    @property
    def origin(self) -> NDArray[Any] | None:
        """(k,) the caller's origin among the coordinates."""

    @property
    def beyond(self) -> Mask | None:
        """(n,) rows further out than can be measured; None if there are none."""

    @property
    def check(self) -> Geometry | None:
        """Of a sketch: another measurement of the same rows, for the certificate alone."""

    def top_direction(self, weights: Array, settled: float = 0.0) -> TopDirection:
        """Of greatest variance, under weights of any sum; rough if that is ≤ `settled` typical rows'."""

    def top_variance(self, weights: Array) -> TopDirection:
        """The same, if nobody asks for projections: they may be 0."""

    def top_direction_by_power_iteration(
        self, weights: Array, steps: int, rng: np.random.Generator
    ) -> TopDirection:
        """The same by the paper's power iteration, as far as it gets."""

    def squared_distances(self) -> Array:
        """(n, n) squared distances, never negative."""

    def squared_distances_from(self, row: int) -> Array:
        """(n,) squared distances from one row."""

    def squared_distances_from_mean(self, weights: Array) -> Array:
        """(n,) squared distances from the mean under these weights, never negative."""

    def squared_norms_from_pivot(self) -> Array:
        """(n,) squared distances from a point near the rows: how far out each is, to a factor."""

    def distance_between(self, weights_a: Array, weights_b: Array) -> float:
        """Length of Σ (aᵢ − bᵢ)·xᵢ, the rows measured from the caller's origin; no sum need be 1."""

    def rounding_error(self, weights: Array) -> float:
        """How much of the top variance rounding can hide."""

    def squared_norms(self) -> Array:
        """(n,) squared distances from the origin of the caller's numbers."""

    def take(self, index: NDArray[np.intp]) -> Geometry:
        """The same cloud with only these rows."""

    def combine_rows(self, matrix: Array) -> Geometry:
        """The cloud of m combinations of the rows and, last, the origin: (m, n+1), lines summing to 1."""

    def with_prior_weights(self, prior: Array) -> Geometry:
        """The same cloud with other prior weights."""


class Combiner(Protocol):
    """Makes the answer column by column, where it is no weighted mean of whole rows."""

    @property
    def block_multiple(self) -> int:
        """Blocks begin at multiples of this many columns; 1 where that does not matter."""

    def __call__(self, columns: slice, block: Block) -> Any:
        """(b,) the answer for these columns, given the usable rows' numbers in them."""


@dataclass(frozen=True)
class ChunkedWeights:
    """Each `chunk` columns have weights of their own: what `weights_of` makes of them, once measured."""

    chunk: int  # columns
    seed: int  # of the measurements
    weights_of: Callable[[Geometry, int], Array]  # given the number of the chunk
    weights_of_many: Callable[[Any, Index], Any]  # the same of a `GeometryBatch` and the chunks' numbers


@dataclass(frozen=True, eq=False)
class AfterMixing:
    """`inner`, applied to m combinations of the n rows and, last, the origin: an (m, n+1) matrix."""

    matrix: Array
    inner: ColumnPlan


ColumnPlan: TypeAlias = "Combiner | ChunkedWeights | AfterMixing"


@dataclass(frozen=True)
class Decision:
    """What a rule makes of n rows: weights for their mean, or a way to make the answer column by column.

    A rule without row weights gives no verdict. The pipeline then takes RandEigen's as a reference, on whose
    mean the certificate leans; `notes` go with it, and its rounds too unless `with_rounds` is False.
    """

    verdict: Verdict | None
    combine: ColumnPlan | None = None  # None: the weighted mean, times the verdict's scale
    notes: tuple[str, ...] = ()
    with_rounds: bool = True


class Stop(str, Enum):
    """Why a rule ended, as a sentence."""

    __str__ = str.__str__

    DIRECT = "the rule weighs rows in one step"
    IDENTICAL_ROWS = "all rows that have weight are identical, but for rounding"
    ISOTROPIC = "the top variance is what a single row gives it: no direction stands out"
    BUDGET = "twice as much weight is gone as corrupt rows could hold"
    TOO_FEW_ROWS = "fewer than two rows are left to compare"
    CONVERGED = "the top variance no longer changes"
    FLOOR = "the set shrank to the published floor"
    BELOW_THRESHOLD = "the top variance is below the given threshold"
    MAX_ROUNDS = "the allowed rounds are used up"
    BALANCED = "the answer lies between all sets of rows that may be the honest ones"
    PARTS = "every part was judged on its own"
    EMPTY = "every row was removed: the published rule has no answer, so the last rows left stand in"


@dataclass(frozen=True)
class Verdict:
    """The weights a rule gave the rows, and how it got there. Indices are those of the rows it was shown."""

    weights: Weights
    stop: Stop
    scale: float = 1.0  # the answer is the weighted mean times this: below 1 where rows were clipped
    spreads: tuple[float, ...] = ()  # standard deviation along the top direction, before each round
    bounds: tuple[float, ...] = ()  # their certificates, for the rule's f; estimates on sketches, many points
    answer_round: int = 0  # spreads and bounds at this index are those of the answer itself
    dropped_in_round: Index | None = None  # (n,) round in which a row lost most weight; 0: it lost none
    scores: Array | None = None  # (n,) its squared distance in that round, in units of the variance
    far_outliers: Mask | None = None  # (n,) rows too far out to be weighed beside the others
    notes: tuple[str, ...] = field(default=())
    cut_together: tuple[tuple[int, ...], ...] = ()  # rows that lost their weight and agree with each other

    @property
    def rounds(self) -> int:
        """How many times the top direction was computed."""
        return len(self.spreads)

    chosen = property(lambda self: self.answer_round)  # an older name, as the next two are
    fell, wild = property(lambda self: self.dropped_in_round), property(lambda self: self.far_outliers)


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Mean = TypeVar("Mean", default=Any, covariant=True)
else:
    Mean = typing.TypeVar("Mean", covariant=True)


@dataclass(frozen=True, repr=False)
class Aggregate(AggregateText, Generic[Mean]):
    """The answer, and everything needed to trust, question or replay it.

    Attributes:
        mean: The answer, in the form, dtype and device of most rows; an M in an `Aggregate[M]`.
        weights: (n,) the weight of each row, from 0; they sum to 1.
        bias_bound: f corrupt rows can have moved the answer by at most this at these weights: it is that
            close to the mean of the honest rows alone at the same weights, and may be further from their
            plain mean. Inf where f is half of the usable rows or holds all the weight; 0 where f is 0.
        verdict: What the rule decided, round by round.
        seed: The seed that was used; it replays the call.
        f: How many of all rows were assumed corrupt: the f given, or ceil(eps·n).
        unusable: Rows that could not be measured, and why: each used up one of the f.
        distance_to_mean: How far it is from the plain mean of all usable rows: what robustness cost if every
            row is honest. An estimate of sketched rows; the most it can be where huge ones cancel.
        is_weighted_mean: Whether `weights` made the mean, verdict.scale · Σ wᵢ xᵢ; else they are a reference.
        parts: With `partition`, the weights and bounds of each part; then `weights` are their mean.
    """

    mean: Mean  # in the caller's own form
    weights: Weights
    bias_bound: float
    verdict: Verdict
    seed: int
    f: int
    unusable: Mapping[int, str]
    distance_to_mean: float = math.nan
    is_weighted_mean: bool = True
    parts: Any = None  # a `randeigen.parts.Parts`

    @property
    def kept(self) -> Mask:
        """(n,) whether a row has any weight."""
        return np.asarray(self.weights > 0)
