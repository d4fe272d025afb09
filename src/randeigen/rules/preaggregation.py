"""Pre-aggregators: nearest-neighbour mixing, bucketing and clipping; any rule may follow them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from randeigen.errors import BadFraction, BadParameter
from randeigen.rules.base import (
    Facts,
    assumed_count,
    check_corruption,
    check_parameters,
    is_count,
    stated_count,
)
from randeigen.rules.mixed import PreAggregator
from randeigen.types import Array, Geometry, Statistic

NORMS_COST, ORIGIN_BLINDNESS = "n·d (n²·d with a certificate)", "directions; it depends on the origin"


@dataclass(frozen=True)
class _PreAggregatorWithF(PreAggregator):
    """One that depends on f: its own f or eps, or else what the rule assumes."""

    eps: float | None = None
    f: int | None = None

    def __post_init__(self) -> None:
        if self.eps is not None or self.f is not None:
            check_corruption(type(self).__name__, self.eps, self.f)

    def assumed_corrupt(self, n: int) -> int:
        return 0 if self.eps is None and self.f is None else assumed_count(n, self.eps, self.f)

    def stated_corrupt(self, n: int) -> int:
        return stated_count(n, self.eps, self.f)


@dataclass(frozen=True)
class NNM(_PreAggregatorWithF):
    """Nearest-neighbour mixing: each row becomes the mean of the n−f rows nearest to it, itself among them.

    Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan 2023. yᵢ = Σ xⱼ/(n−f) over the n−f nearest j.
    Without eps or f it takes the rule's. Cost: n²·d for the Gram matrix, then n³.
    Breaks down at more than f rows. Blind to Byzantine rows as near to honest rows as these to each other.
    """

    name: ClassVar[str] = "nnm"
    facts: ClassVar[Facts] = Facts(
        "Allouah et al. 2023, arXiv:2302.01772",
        "n²·d + n³",
        "f/n < 1/2",
        "Byzantine rows within the honest distances",
    )

    def matrix(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Array:
        n = geometry.n
        apart = geometry.squared_distances() - np.eye(n)  # a row is its own nearest, before any copy of it
        near = np.argsort(apart, axis=1, kind="stable")[:, : n - f]
        member = np.zeros((n, n))
        np.put_along_axis(member, near, 1.0, axis=1)
        return _means(member, geometry.prior_weights)


@dataclass(frozen=True)
class Bucketing(PreAggregator):
    """Random groups of `s` rows, each replaced by its mean; the last group may be smaller.

    Karimireddy, He, Jaggi 2022. The groups are drawn after the rows are in. f Byzantine rows spoil at most f
    of the ⌈n/s⌉ buckets, so f must stay below half of those. Cost: the rule's own. Breakdown point 1/(2s).
    Blind to nothing new, but Byzantine rows hold up to s times their share of the rows among the buckets.
    """

    s: int = 2
    name: ClassVar[str] = "bucketing"
    facts: ClassVar[Facts] = Facts(
        "Karimireddy et al. 2022, arXiv:2006.09365",
        "the rule's own",
        "1/(2s)",
        "nothing new; Byzantine rows hold s times more",
    )

    def __post_init__(self) -> None:
        check_parameters(self)
        if not is_count(self.s):
            raise BadParameter(f"s={self.s!r}; give how many rows a bucket holds, a whole number from 1.")

    @property
    def one_to_one(self) -> bool:
        return False

    def statistic(self) -> Statistic:
        return Statistic.NONE

    def leaves(self, n: int, f: int) -> int:
        """⌈n/s⌉ buckets."""
        buckets = -(-n // self.s)
        if f and 2 * f >= buckets:
            most = (n - 1) // (2 * f)
            raise BadFraction(
                f"Bucketing(s={self.s}) makes {buckets} buckets of {n} rows, and f={f} corrupt rows could "
                f"spoil half of them; give s of at most {most}, or a smaller f."
            )
        return buckets

    def matrix(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Array:
        member = np.zeros((self.leaves(geometry.n, f), geometry.n))
        member[np.arange(geometry.n) // min(self.s, geometry.n), rng.permutation(geometry.n)] = 1.0
        return _means(member, geometry.prior_weights)


@dataclass(frozen=True)
class Clipping(PreAggregator):
    """Rows longer than `c` are scaled down to it: yᵢ = xᵢ·min(1, c/‖xᵢ‖).

    Static clipping, as in differentially private training. Cost: n·d for the norms. The answer does not
    move with the rows: give updates, not models. Blind to directions: a Byzantine row of norm c stays.
    """

    c: float = 1.0
    name: ClassVar[str] = "clipping"
    facts: ClassVar[Facts] = Facts(
        "Abadi et al. 2016, arXiv:1607.00133", NORMS_COST, "the rule's own", ORIGIN_BLINDNESS
    )

    def __post_init__(self) -> None:
        check_parameters(self)
        if not 0 <= self.c < np.inf:
            raise BadParameter(f"Clipping with c={self.c!r}; give a length from 0, in the units of the rows.")

    def statistic(self) -> Statistic:
        return Statistic.NORMS

    def matrix(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Array:
        return _shortened(np.sqrt(geometry.squared_norms()), self.c / geometry.scale)


@dataclass(frozen=True)
class ARC(_PreAggregatorWithF):
    """Adaptive robust clipping: the ⌊2f(n−f)/n⌋ longest rows are scaled down to the longest of the others.

    Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan 2024. Without eps or f it takes the rule's. Cost: as
    Clipping's. Give updates, not models, as there. Breaks down at more than f rows. Blind to directions.
    """

    name: ClassVar[str] = "arc"
    facts: ClassVar[Facts] = Facts(
        "Allouah et al. 2024, arXiv:2405.14432", NORMS_COST, "f/n < 1/2", ORIGIN_BLINDNESS
    )

    def statistic(self) -> Statistic:
        return Statistic.NORMS

    def matrix(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Array:
        n, norms = geometry.n, np.sqrt(geometry.squared_norms())
        return _shortened(norms, float(np.sort(norms)[n - 1 - 2 * f * (n - f) // n]))


def _means(member: Array, prior: Array) -> Array:
    """Lines that average the members, by their prior weights where any has one; the origin has no part."""
    weights = member * prior
    weights = np.where(weights.sum(axis=1, keepdims=True) > 0, weights, member)
    return np.pad(weights / weights.sum(axis=1, keepdims=True), ((0, 0), (0, 1)))


def _shortened(norms: Array, most: float) -> Array:
    """Lines that scale rows longer than `most` down to it; the rest of their coefficient is the origin's."""
    factor = np.where(norms > most, most / np.where(norms > most, norms, 1.0), 1.0)
    return np.hstack((np.diag(factor), 1 - factor[:, None]))
