"""What a rule is: everything it can do is declared here, and everything a rule's author needs.

And how many rows are taken to be corrupt: of all rows by what the caller said, of the usable ones by what is
left of that.
"""

from __future__ import annotations

import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar, get_args

import numpy as np

from randeigen.backend.batched import BatchVerdict, GeometryBatch
from randeigen.errors import BadFraction, BadParameter, TooManyCorrupt
from randeigen.showing import first_of
from randeigen.types import (
    Array,
    Decision,
    Geometry,
    GeometryKind,
    Index,
    Mask,
    OnExcess,
    Statistic,
    TopDirection,
    Verdict,
    Weights,
)

MAX_ROWS_NAMED = 8  # unusable rows named in an error or a note
MAX_STAGES = 50  # pre-aggregators that rows may go through before a rule decides
WHOLE, NUMBER = (int, np.integer), (int, float, np.integer, np.floating)
PARAMETER_TYPES: dict[str, tuple[Any, str]] = {  # by annotation: what is accepted, and the words for it
    "int": (WHOLE, "a whole number"),
    "int | None": (WHOLE, "a whole number, or None"),
    "float": (NUMBER, "a number"),
    "float | None": (NUMBER, "a number, or None"),
    "bool": (bool, "True or False"),
    "str": (str, "a word"),
}
AnyRule = TypeVar("AnyRule", bound="Rule")
ON_EXCESS = get_args(OnExcess)


class Facts(NamedTuple):
    """What `randeigen rules` says of a rule."""

    paper: str  # who, when
    cost: str  # in n and d, the Gram matrix included
    breakdown: str  # the largest fraction of Byzantine rows it survives
    blind_to: str  # what a Byzantine row can do unnoticed


@dataclass(frozen=True)
class Rule(ABC):
    """Turns the geometry of n rows, at most f of them Byzantine, into weights. Give `eps` or `f`.

    A rule of one's own is a frozen dataclass that overrides `decide`; the rest has defaults. A subclass that
    overrides `weigh` instead, and returns a bare Verdict, is a rule as well.
    """

    eps: float | None = None
    f: int | None = None

    # Of a rule that has a name of its own: `--rule name`, and what `randeigen rules` shows of it.
    name: ClassVar[str]
    family: ClassVar[str]
    facts: ClassVar[Facts]
    # What a study of all rules must know.
    known_variance: ClassVar[str | None] = None  # the parameter that takes the honest rows' true variance
    trusts_a_row: ClassVar[bool] = False  # whether `trusted` must be an honest row
    only_small: ClassVar[str] = ""  # why it cannot take a hundred rows of a thousand columns, if it cannot
    by_column: ClassVar[bool] = False  # whether the answer is made column by column: no row has a weight

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "weigh" in vars(cls) and "decide" not in vars(cls):
            cls.decide = _decide_by_weigh  # type: ignore[method-assign,assignment]

    def __post_init__(self) -> None:
        """Refuse what no rule can tolerate, before any row is read."""
        check_parameters(self)
        check_corruption(type(self).__name__, self.eps, self.f)

    @property
    def geometry(self) -> GeometryKind:
        """The geometry this rule is defined on."""
        return "auto"

    @property
    def trusted(self) -> int | None:
        """The index of the row that the caller trusts, for rules that go by one."""
        return None

    def statistic(self) -> Statistic:
        """What must be measured before `decide` can be called, if no certificate is asked for."""
        return Statistic.GRAM

    def assumed_corrupt(self, n: int) -> int:
        """How many of n rows may be corrupt: always fewer than half."""
        return assumed_count(n, self.eps, self.f)

    def stated_corrupt(self, n: int) -> int:
        """The caller's f or ceil(eps·n), even where that is half of the rows or more."""
        return stated_count(n, self.eps, self.f)

    def reindex(self: AnyRule, usable: Index) -> AnyRule:
        """The same rule after unusable rows are dropped; `trusted` is renumbered."""
        return self

    def block_multiple(self) -> int:
        """Blocks of columns begin at multiples of this; 1 where that does not matter."""
        return 1

    def weighs_rows(self) -> bool:
        """Whether the answer is a weighted mean of the rows."""
        return not self.by_column

    @abstractmethod
    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        """The decision about the n rows that the geometry shows, f of which may be corrupt.

        Raises BadFraction where f of these rows are more than the rule tolerates.
        """

    def decide_each(self, batch: GeometryBatch, f: int) -> BatchVerdict | None:
        """What `decide` makes of many clouds at once; None where the rule takes one after the other."""
        return None

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """The verdict of `decide`, for rules that weigh rows."""
        verdict = self.decide(geometry, f, rng).verdict
        if verdict is None:
            raise TypeError(f"{type(self).__name__} gives rows no weights; call decide.")
        return verdict

    def __call__(self, rows: Any) -> Any:
        """The aggregate of `rows` alone, in their own form; `randeigen.aggregate` returns more."""
        from randeigen import pipeline  # which runs rules, and so imports them

        return pipeline.answer(rows, self)


def _decide_by_weigh(rule: Rule, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
    return Decision(rule.weigh(geometry, f, rng))


def check_parameters(stage: Any) -> None:
    """Refuse a parameter that is not of its type: a whole number, a number that fits a float, a choice.

    NaN and infinity are numbers here. What a parameter may be beyond its type the rule itself knows.
    """
    for name, kind, choices in _annotated(stage.__class__):
        value = vars(stage)[name]
        if choices and not (isinstance(value, str) and value in choices):
            quoted = " or ".join(f'"{choice}"' for choice in choices)
            raise BadParameter(f"{name}={value!r}; choose {quoted}.")
        if name in ("eps", "f") or kind not in PARAMETER_TYPES or (value is None and "None" in kind):
            continue
        types, words = PARAMETER_TYPES[kind]
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not isinstance(value, types) or (types is not bool and isinstance(value, bool)):
            raise BadParameter(f"{type(stage).__name__} with {name}={value!r}; give {words}.")
        if whole and abs(int(value)) >= 2**63:
            raise BadParameter(f"{type(stage).__name__} with {name} beyond ±2⁶³; give {words}.")


@cache
def _annotated(kind: Any) -> list[tuple[str, str, tuple[str, ...]]]:
    """The name, annotation and choices of each parameter of a class of rules."""
    return [(each.name, str(each.type), literal_choices(str(each.type))) for each in fields(kind)]


def check_on_excess(on_excess: str) -> None:
    """One of the two things that can be done with too many unusable rows."""
    if on_excess not in ON_EXCESS:
        raise BadParameter(f'on_excess={on_excess!r} is not known; choose "raise" (fail closed) or "drop".')


def literal_choices(annotation: str) -> tuple[str, ...]:
    """What an annotation `Literal["soft", "random"]` lists; () for any other."""
    return tuple(re.findall(r"['\"]([^'\"]*)['\"]", annotation)) if "Literal[" in annotation else ()


def check_corruption(name: str, eps: float | None, f: int | None) -> None:
    """Exactly one of eps in [0, 0.5) and a count f ≥ 0."""
    if (eps is None) == (f is None):
        given = "neither" if eps is None else f"both eps={eps} and f={f}"
        raise BadFraction(f"{name} needs exactly one of eps (a fraction) and f (a count); found {given}.")
    if eps is not None and (isinstance(eps, bool) or not isinstance(eps, NUMBER) or not 0 <= eps < 0.5):
        is_half = isinstance(eps, NUMBER) and eps >= 0.5
        why = ", but no rule can tolerate half the rows or more" if is_half else ""
        raise BadFraction(f"eps={eps!r:.80}{why}; give the fraction you fear, in [0, 0.5).")
    if f is not None and (isinstance(f, bool) or not isinstance(f, (int, np.integer)) or f < 0):
        raise BadFraction(f"f={f!r}; give the number of rows you fear, a whole number from 0.")


def assumed_count(n: int, eps: float | None, f: int | None) -> int:
    """f itself, or ceil(eps·n) where that is fewer than half."""
    if f is None:
        assert eps is not None
        return min(rows_in(eps, n), (n - 1) // 2)
    if 2 * f >= n:
        raise BadFraction(
            f"f={f} of {n} rows, but no rule can tolerate half the rows or more; "
            f"give at most {(n - 1) // 2}, or more rows."
        )
    return int(f)


def stated_count(n: int, eps: float | None, f: int | None) -> int:
    """f, or ceil(eps·n); 0 where neither is given."""
    return int(f) if f is not None else rows_in(eps, n) if eps is not None else 0


def rows_in(eps: float, n: int) -> int:
    """ceil(eps·n): one row however small eps is, none only where it is 0."""
    return max(math.ceil(eps * n - 1e-9), int(eps > 0))


class Assumed(NamedTuple):
    """How many of the usable rows are taken to be corrupt."""

    f: int  # by the rule: fewer than half of them
    certified: int  # by the certificate: all that the caller stated, less what unusable rows used up
    broken: bool = False  # whether more rows were unusable than the caller said could be corrupt
    notes: tuple[str, ...] = ()


def assume(
    f: int, n: int, unusable: Mapping[int, str], on_excess: OnExcess = "raise", stated: int | None = None
) -> Assumed:
    """How many of the usable rows may be corrupt: each unusable one of n has used up one of the f.

    `stated` is the caller's own f; a rule's is less where that is half of the rows or more.
    """
    gone = len(unusable)
    stated = f if stated is None else stated
    if gone <= f and gone < n:
        return Assumed(f - gone, stated - gone)
    reasons = first_of([f"row {i} is {why}" for i, why in unusable.items()], MAX_ROWS_NAMED, "; ")
    if on_excess == "raise" or gone == n:
        advice = "" if gone == n else ', or pass on_excess="drop" to go on without them'
        raise TooManyCorrupt(
            f"{gone} of {n} rows are unusable, but at most {f} were said to be corrupt: {reasons}. "
            f"Find out why{advice}.",
            unusable,
        )
    # The caller's f is disproved, so nothing says the rest is cleaner: assume as many among them too.
    note = f"{gone} unusable rows were dropped although only {f} were said to be corrupt: {reasons}"
    return Assumed(min(f, (n - gone - 1) // 2), stated, True, (note,))


def default_f_to_zero(rule: Rule) -> None:
    """For rules whose answer does not depend on f: it is 0 unless eps or f is given."""
    if rule.eps is None and rule.f is None:
        object.__setattr__(rule, "f", 0)


def is_count(value: Any, least: int = 1) -> bool:
    """Whether this is a whole number, Python's or numpy's, of at least that; a bool is none."""
    return not isinstance(value, bool) and isinstance(value, (int, np.integer)) and bool(value >= least)


def normalised(weights: Array) -> Array:
    """The same, summing to 1."""
    return np.asarray(weights / weights.sum())


def scores_in_variances(top: TopDirection) -> Array:
    """(n,) scores over the variance; where that is next to nothing, at most the largest number."""
    with np.errstate(over="ignore"):
        return np.asarray(np.minimum(top.projections**2 / top.variance, sys.float_info.max))


def smallest(values: Array, count: int) -> Mask:
    """(n,) which are the `count` smallest; of equal ones the first."""
    kept = np.zeros(values.size, dtype=bool)
    kept[np.argsort(values, kind="stable")[:count]] = True
    return kept


def mean_of(geometry: Geometry, kept: Mask) -> Weights:
    """The prior weights of these rows, normalised; of all rows where none of these has any."""
    weights = np.where(kept, geometry.prior_weights, 0.0)
    return normalised(weights if weights.any() else geometry.prior_weights)


def single_row(geometry: Geometry, row: int) -> Weights:
    """All weight on one row."""
    return np.where(np.arange(geometry.n) == row, 1.0, 0.0)
