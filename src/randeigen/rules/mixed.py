"""Pre-aggregators as such, and how they go before each other and before a rule: `NNM(0.2) | Krum(0.2)`.

A pre-aggregator replaces the n rows by m combinations of them and the origin, an (m, n+1) matrix M. The rule
sees the cloud of the combinations; its weights w on them are weights Mᵀw on the rows, whose certificate is
measured on the rows themselves. Nothing of size d is made, and the caller's rows are never written to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from randeigen.errors import BadParameter
from randeigen.rules.base import MAX_STAGES, Facts, Rule, normalised
from randeigen.rules.randeigen import reference_verdict
from randeigen.types import AfterMixing, Array, Decision, Geometry, GeometryKind, Index, Statistic, Verdict


@dataclass(frozen=True)
class PreAggregator(ABC):
    """Makes m rows of n. `pre | rule` is a rule, `pre | pre` another pre-aggregator."""

    name: ClassVar[str]
    family: ClassVar[str] = "Mixed first"
    facts: ClassVar[Facts]

    @property
    def one_to_one(self) -> bool:
        """Whether mixed row i stands for row i."""
        return True

    def statistic(self) -> Statistic:
        """What must be measured of the rows before the matrix can be made."""
        return Statistic.GRAM

    def stages(self) -> int:
        return 1

    @abstractmethod
    def matrix(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Array:
        """(m, n+1) each mixed row as a combination of the rows and, last, the origin; lines sum to 1."""

    def assumed_corrupt(self, n: int) -> int:
        """How many of n rows it assumes corrupt itself."""
        return 0

    def stated_corrupt(self, n: int) -> int:
        """What the caller gave it as f, or eps·n."""
        return 0

    def leaves(self, n: int, f: int) -> int:
        """How many rows it makes of n; refuses where f of them could be half."""
        return n

    def mixed(self, geometry: Geometry, matrix: Array) -> Geometry:
        """The cloud of the mixed rows. A row keeps its prior weight; a bucket has the mean of its rows'."""
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
        return Mixed(self, other) if isinstance(other, Rule) else NotImplemented


@dataclass(frozen=True)
class Chain(PreAggregator):
    """One pre-aggregator after another."""

    first: PreAggregator
    then: PreAggregator

    def __post_init__(self) -> None:
        check_stages(self.stages())

    @property
    def one_to_one(self) -> bool:
        return self.first.one_to_one and self.then.one_to_one

    def statistic(self) -> Statistic:
        return statistic_of_both(self.first.statistic(), self.then.statistic())

    def stages(self) -> int:
        return self.first.stages() + self.then.stages()

    def assumed_corrupt(self, n: int) -> int:
        """The larger of the two stages' f."""
        return max(self.first.assumed_corrupt(n), self.then.assumed_corrupt(n))

    def stated_corrupt(self, n: int) -> int:
        return max(self.first.stated_corrupt(n), self.then.stated_corrupt(n))

    def leaves(self, n: int, f: int) -> int:
        return self.then.leaves(self.first.leaves(n, f), f)

    def matrix(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Array:
        """The product of the two."""
        first = self.first.matrix(geometry, f, rng)
        then = self.then.matrix(self.first.mixed(geometry, first), f, rng)
        product = then[:, :-1] @ first
        product[:, -1] += then[:, -1]
        return product


@dataclass(frozen=True)
class Mixed(Rule):
    """`pre | rule`: the rule's decision about the mixed rows, applied to the rows as they came.

    f is the larger of the two parts' own. The certificate is that of the rows, not of the mixed ones.
    """

    eps: float | None = field(default=None, init=False, repr=False)
    f: int | None = field(default=None, init=False, repr=False)
    pre: PreAggregator
    rule: Rule

    def __post_init__(self) -> None:
        check_stages(self.stages())
        if self.trusted is not None and not self.pre.one_to_one:
            raise BadParameter(
                f"{self.rule!r} trusts one row by its index, and {self.pre!r} leaves no row in place."
            )

    @property
    def geometry(self) -> GeometryKind:
        return self.rule.geometry

    @property
    def trusted(self) -> int | None:
        return self.rule.trusted

    def statistic(self) -> Statistic:
        return statistic_of_both(self.pre.statistic(), self.rule.statistic())

    def stages(self) -> int:
        """How many pre-aggregators there are before the rule."""
        return self.pre.stages() + (self.rule.stages() if isinstance(self.rule, Mixed) else 0)

    def block_multiple(self) -> int:
        return self.rule.block_multiple()

    def weighs_rows(self) -> bool:
        return self.rule.weighs_rows()

    def assumed_corrupt(self, n: int) -> int:
        """The larger of the two parts' f; refused where so many could be half of the mixed rows."""
        return _assumed_by_all(self, n)

    def stated_corrupt(self, n: int) -> int:
        return max(self.pre.stated_corrupt(n), self.rule.stated_corrupt(n))

    def reindex(self, usable: Index) -> Mixed:
        return Mixed(self.pre, self.rule.reindex(usable))

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        """Mix, decide, and give each row its part of the mixed rows' weights."""
        matrix = self.pre.matrix(geometry, f, rng)
        cloud = self.pre.mixed(geometry, matrix)
        inner = self.rule.decide(cloud, f, rng)
        verdict = reference_verdict(inner, cloud, f, rng) if inner.verdict is None else inner.verdict
        plan = None if inner.combine is None else AfterMixing(matrix, inner.combine)
        return Decision(self._on_rows(geometry, matrix, verdict), plan)

    def _on_rows(self, geometry: Geometry, matrix: Array, inner: Verdict) -> Verdict:
        shares = matrix[:, :-1].T @ inner.weights
        total = float(shares.sum()) if matrix[:, -1].any() else 1.0
        return Verdict(
            weights=shares / total if total > 0 else normalised(geometry.prior_weights),
            stop=inner.stop,
            scale=inner.scale * total,
            dropped_in_round=inner.dropped_in_round if self.pre.one_to_one else None,
            scores=inner.scores if self.pre.one_to_one else None,
            far_outliers=inner.far_outliers if self.pre.one_to_one else None,
            notes=(*inner.notes, f"rows were mixed first, by {self.pre!r}"),
        )


def statistic_of_both(first: Statistic, then: Statistic) -> Statistic:
    """What two stages need: of rows that the first makes nothing is known, but by the Gram matrix of all."""
    return first if then is Statistic.NONE else Statistic.GRAM


def check_stages(stages: int) -> None:
    """Refuse more pre-aggregators than anybody means."""
    if stages > MAX_STAGES:
        raise BadParameter(
            f"{stages} pre-aggregators in a row; give at most {MAX_STAGES} (two or three will do)."
        )


def _assumed_by_all(rule: Rule, n: int) -> int:
    """The largest f of a rule and the pre-aggregators before it; refused where a stage cannot bear it.

    Every stage is given that f, so each is asked whether it takes so many of the rows that reach it.
    """
    stages: list[PreAggregator] = []
    while isinstance(rule, Mixed):
        stages.append(rule.pre)
        rule = rule.rule
    f = max(rule.assumed_corrupt(n), *(stage.assumed_corrupt(n) for stage in stages))
    for stage in stages:
        n = stage.leaves(n, f)
    replace(rule, eps=None, f=f).assumed_corrupt(n)
    return f
