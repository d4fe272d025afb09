"""Rows first mixed, then judged: `NNM(eps) | RandEigen(eps)`, `Clipping(c) | NNM(f=2) | TrimmedMean(f=2)`.

A pre-aggregator replaces the n rows by m combinations of them and the origin, an (m, n+1) matrix M. The rule
sees the cloud of the combinations; its weights w on them are weights Mᵀw on the rows, whose certificate is
measured on the rows themselves. Nothing of size d is made, and the caller's rows are never written to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from randeigen.backend.arrays import like
from randeigen.backend.chunking import MIXED_NUMBERS
from randeigen.errors import BadFraction
from randeigen.rules.base import (
    Facts,
    TableRule,
    assumed_count,
    budget_of_mixed,
    check_corruption,
    check_parameters,
    compose,
)
from randeigen.types import Array, Block, Geometry, Rule, Verdict

NORMS_COST, ORIGIN_BLINDNESS = "n·d (n²·d with a certificate)", "directions; it depends on the origin"


@dataclass(frozen=True)
class PreAggregator:
    """Makes m rows of n. `pre | rule` is a rule, `pre | pre` another pre-aggregator."""

    one_to_one: ClassVar[bool] = True  # mixed row i stands for row i
    stages: ClassVar[int] = 1
    needs: ClassVar[str] = "table"  # to know how to mix: that, "lengths" or "nothing"

    def matrix(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Array:
        """(m, n+1) each mixed row as a combination of the rows and, last, the origin; lines sum to 1."""
        raise NotImplementedError

    def assumed_corrupt(self, n: int) -> int:
        """How many of n rows it assumes corrupt itself."""
        return 0

    def leaves(self, n: int, f: int) -> int:
        """How many rows it makes of n; refuses where f of them could be half."""
        return n

    def mixed(self, geometry: Geometry, matrix: Array) -> Geometry:
        """The cloud of the mixed rows. A row's mass stays with it; a bucket has the mean of its rows'."""
        member = matrix[:, :-1] > 0
        prior = (
            geometry.prior_weights
            if self.one_to_one
            else member @ geometry.prior_weights / member.sum(axis=1)
        )
        return geometry.combine_rows(matrix).with_prior_weights(prior)

    def __or__(self, other: Any) -> Any:
        """This first, then the other."""
        if isinstance(other, PreAggregator):
            return Chain(self, other)
        if not callable(getattr(other, "weigh", None)):
            return NotImplemented
        last = other
        while isinstance(last, Mixed):
            last = last.rule
        if not self.one_to_one and hasattr(last, "trusted"):
            raise BadFraction(f"{other!r} trusts one row by its place, and {self!r} leaves no row in place.")
        return (MixedColumns if callable(getattr(other, "merge", None)) else Mixed)(self, other)


@dataclass(frozen=True)
class _PreAggregatorWithF(PreAggregator):
    """One that needs to know how many lie: eps or f of its own, or else what the rule assumes."""

    eps: float | None = None
    f: int | None = None

    def __post_init__(self) -> None:
        """At most one of eps and f."""
        if self.eps is not None or self.f is not None:
            check_corruption(type(self).__name__, self.eps, self.f)

    def assumed_corrupt(self, n: int) -> int:
        """Its own, if it was given one."""
        return 0 if self.eps is None and self.f is None else assumed_count(n, self.eps, self.f)


@dataclass(frozen=True)
class NNM(_PreAggregatorWithF):
    """Nearest-neighbour mixing: each row becomes the mean of the n−f rows nearest to it, itself among them.

    Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan 2023. yᵢ = Σ xⱼ/(n−f) over the n−f nearest j.
    Without eps or f it takes the rule's. Cost: n²·d for the table that the rule needs anyway, then n³.
    Breaks down at more than f rows. Blind to liars as near to honest rows as these to each other.
    """

    facts: ClassVar[Facts] = Facts(
        "Allouah et al. 2023, arXiv:2302.01772", "n²·d + n³", "f/n < 1/2", "liars within the honest distances"
    )

    def matrix(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Array:
        """Each line even over the nearest rows, or as the prior has it."""
        apart = geometry.squared_distances() - np.eye(
            n := geometry.n
        )  # itself is the nearest, its twin the next
        near = np.argsort(apart, axis=1, kind="stable")[:, : n - f]
        member = np.zeros((n, n))
        np.put_along_axis(member, near, 1.0, axis=1)
        return _means(member, geometry.prior_weights)


@dataclass(frozen=True)
class Bucketing(PreAggregator):
    """Random groups of `s` rows, each replaced by its mean; the last group may be smaller.

    Karimireddy, He, Jaggi 2022. The coins are the call's own, drawn after the rows are in. f liars spoil at
    most f of the ⌈n/s⌉ buckets, so f must stay below half of those. Cost: the rule's own. Breakdown point
    1/(2s). Blind to nothing new, but liars hold up to s times their share of the rows among the buckets.
    """

    s: int = 2
    one_to_one: ClassVar[bool] = False
    needs: ClassVar[str] = "nothing"
    facts: ClassVar[Facts] = Facts(
        "Karimireddy et al. 2022, arXiv:2006.09365",
        "the rule's own",
        "1/(2s)",
        "nothing new; liars hold s times more",
    )

    def __post_init__(self) -> None:
        """A whole number from 1."""
        check_parameters(self)
        if self.s < 1:
            raise BadFraction(f"s={self.s!r}; give how many rows a bucket holds, a whole number from 1.")

    def leaves(self, n: int, f: int) -> int:
        """⌈n/s⌉ buckets."""
        buckets = -(-n // self.s)
        if f and 2 * f >= buckets:
            most = (n - 1) // (2 * f)
            raise BadFraction(
                f"Bucketing(s={self.s}) makes {buckets} buckets of {n} rows, and f={f} liars could spoil "
                f"half of them; give s of at most {most}, or a smaller f."
            )
        return buckets

    def matrix(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Array:
        """Each line even over the rows of a bucket, or as the prior has it."""
        member = np.zeros((self.leaves(geometry.n, f), geometry.n))
        member[np.arange(geometry.n) // min(self.s, geometry.n), rng.permutation(geometry.n)] = 1.0
        return _means(member, geometry.prior_weights)


@dataclass(frozen=True)
class Clipping(PreAggregator):
    """Rows longer than `c` are scaled down to it: yᵢ = xᵢ·min(1, c/‖xᵢ‖).

    Static clipping, as in differentially private training. Cost: n·d for the lengths. The answer does not
    move with the rows: give updates, not models. Blind to directions: a liar of length c stays as it is.
    """

    c: float = 1.0
    needs: ClassVar[str] = "lengths"
    facts: ClassVar[Facts] = Facts(
        "Abadi et al. 2016, arXiv:1607.00133", NORMS_COST, "the rule's own", ORIGIN_BLINDNESS
    )

    def __post_init__(self) -> None:
        """A length."""
        check_parameters(self)
        if not 0 <= self.c < np.inf:
            raise BadFraction(f"Clipping with c={self.c!r}; give a length from 0, in the units of the rows.")

    def matrix(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Array:
        """Each line a row, and the origin's share of it."""
        return _shortened(np.sqrt(geometry.squared_norms()), self.c / geometry.unit)


@dataclass(frozen=True)
class ARC(_PreAggregatorWithF):
    """Adaptive robust clipping: the ⌊2f(n−f)/n⌋ longest rows are scaled down to the longest of the others.

    Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan 2024. Without eps or f it takes the rule's. Cost: as
    Clipping's. Give updates, not models, as there. Breaks down at more than f rows. Blind to directions.
    """

    needs: ClassVar[str] = "lengths"
    facts: ClassVar[Facts] = Facts(
        "Allouah et al. 2024, arXiv:2405.14432", NORMS_COST, "f/n < 1/2", ORIGIN_BLINDNESS
    )

    def matrix(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Array:
        """Each line a row, and the origin's share of it."""
        n, lengths = geometry.n, np.sqrt(geometry.squared_norms())
        return _shortened(lengths, float(np.sort(lengths)[n - 1 - 2 * f * (n - f) // n]))


@dataclass(frozen=True)
class Chain(PreAggregator):
    """One pre-aggregator after another."""

    first: PreAggregator
    then: PreAggregator

    def __post_init__(self) -> None:
        """Rows stay in place if both stages leave them there."""
        object.__setattr__(self, "one_to_one", self.first.one_to_one and self.then.one_to_one)
        compose(self, self.first, self.then)

    def assumed_corrupt(self, n: int) -> int:
        """The more fearful stage speaks for both."""
        return max(self.first.assumed_corrupt(n), self.then.assumed_corrupt(n))

    def leaves(self, n: int, f: int) -> int:
        """What the second makes of what the first makes."""
        return self.then.leaves(self.first.leaves(n, f), f)

    def matrix(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Array:
        """The product of the two."""
        first = self.first.matrix(geometry, f, rng)
        then = self.then.matrix(self.first.mixed(geometry, first), f, rng)
        product = then[:, :-1] @ first
        product[:, -1] += then[:, -1]
        return product


@dataclass(frozen=True)
class MixedVerdict(Verdict):
    """A verdict on the rows that remembers how they were mixed."""

    matrix: Array = field(default_factory=lambda: np.empty((0, 1)))  # (m, n+1)
    inner: Verdict | None = None  # on the mixed rows


@dataclass(frozen=True)
class Mixed(TableRule):
    """`pre | rule`: the rule's judgement of the mixed rows, spent on the rows as they came.

    f is the greater of the two parts' own. The certificate is that of the rows, not of the mixed ones.
    """

    eps: float | None = field(default=None, init=False, repr=False)
    f: int | None = field(default=None, init=False, repr=False)
    pre: PreAggregator
    rule: Rule

    def __post_init__(self) -> None:
        """The parts have been checked; the geometry is the one the rule is defined on."""
        object.__setattr__(self, "geometry", self.rule.geometry)
        compose(self, self.pre, self.rule)

    def assumed_corrupt(self, n: int) -> int:
        """The more fearful part speaks for both; refused where so many could be half of the mixed rows."""
        return budget_of_mixed(self, n)

    def among(self, alive: Any) -> Mixed:
        """The same for these rows alone: a rule that trusts one of them must find it again."""
        among = getattr(self.rule, "among", None)
        return type(self)(self.pre, among(alive)) if among else self

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> MixedVerdict:
        """Mix, judge, and hand each row its share of the weights."""
        matrix = self.pre.matrix(geometry, f, rng)
        inner = self.rule.weigh(self.pre.mixed(geometry, matrix), f, rng)
        shares = matrix[:, :-1].T @ inner.weights
        total = float(shares.sum()) if matrix[:, -1].any() else 1.0
        return MixedVerdict(
            weights=shares / total if total > 0 else geometry.prior_weights / geometry.prior_weights.sum(),
            stop=inner.stop,
            scale=inner.scale * total,
            dropped_in_round=inner.dropped_in_round if self.pre.one_to_one else None,
            scores=inner.scores if self.pre.one_to_one else None,
            far_outliers=inner.far_outliers if self.pre.one_to_one else None,
            notes=(*inner.notes, f"rows were mixed first, by {self.pre!r}"),
            matrix=matrix,
            inner=inner,
        )


@dataclass(frozen=True)
class MixedColumns(Mixed):
    """`pre | rule` where the rule works column by column: blocks of rows are mixed as they pass."""

    @property
    def chunk(self) -> int:
        """Blocks must not cut what the rule judges as one."""
        return int(getattr(self.rule, "chunk", 1))

    def merge(self, columns: slice, block: Block, f: int, verdict: Verdict) -> Any:
        """(b,) the rule's answer on the mixed columns."""
        assert isinstance(verdict, MixedVerdict)
        rule: Any = self.rule
        mixing, answer = like(verdict.matrix[:, :-1], block), like(np.zeros(block.shape[1]), block)
        step = max(MIXED_NUMBERS // block.shape[0] // self.chunk, 1) * self.chunk
        for at in range(0, block.shape[1], step):
            piece = mixing @ block[:, at : at + step]
            here = slice(columns.start + at, columns.start + at + piece.shape[1])
            answer[at : at + step] = rule.merge(here, piece, f, verdict.inner)
        return answer


def _means(member: Array, prior: Array) -> Array:
    """Lines that average the members, by their prior masses where any has one; the origin has no share."""
    mass = member * prior
    mass = np.where(mass.sum(axis=1, keepdims=True) > 0, mass, member)
    return np.pad(mass / mass.sum(axis=1, keepdims=True), ((0, 0), (0, 1)))


def _shortened(lengths: Array, most: float) -> Array:
    """Lines that scale rows longer than `most` down to it; what they lose goes to the origin."""
    factor = np.where(lengths > most, most / np.where(lengths > most, lengths, 1.0), 1.0)
    return np.hstack((np.diag(factor), 1 - factor[:, None]))
