"""What all rules share: an assumed corruption, a way to be called on rows, a default geometry."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from randeigen import pipeline
from randeigen.errors import BadFraction, BadParameter
from randeigen.types import Array, Geometry, Mask, Verdict, Weights

MAX_STAGES = 50  # pre-aggregators that rows may go through before they are judged
WHOLE, NUMBER = (int, np.integer), (int, float, np.integer, np.floating)
PARAMETER_TYPES: dict[str, tuple[Any, str]] = {  # by annotation: what is taken, and how to say so
    "int": (WHOLE, "a whole number"),
    "int | None": (WHOLE, "a whole number, or None"),
    "float": (NUMBER, "a number"),
    "float | None": (NUMBER, "a number, or None"),
    "bool": (bool, "True or False"),
    "str": (str, "a word"),
}


@dataclass(frozen=True)
class TableRule:
    """A rule that turns the table of the rows into weights. Give `eps`, a fraction, or `f`, a count."""

    eps: float | None = None
    f: int | None = None
    geometry: ClassVar[str] = "auto"
    needs: ClassVar[str] = "table"  # of the geometry, to answer: that, "lengths", a "line" of it or "nothing"

    def __post_init__(self) -> None:
        """Refuse what no rule can tolerate, before any row is seen."""
        check_parameters(self)
        check_corruption(type(self).__name__, self.eps, self.f)

    def assumed_corrupt(self, n: int) -> int:
        """How many of n rows may be corrupt: always fewer than half."""
        return assumed_count(n, self.eps, self.f)

    def stated_corrupt(self, n: int) -> int:
        """How many of n rows the caller said may be corrupt, though it be half of them or more."""
        return stated_count(self, n)

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """The judgement on the rows this geometry shows."""
        raise NotImplementedError

    def __call__(self, rows: Any) -> Any:
        """The aggregate of `rows` alone, in their own form; `randeigen.aggregate` tells more."""
        return pipeline.answer(rows, self)


def check_parameters(stage: Any) -> None:
    """Refuse a parameter that is not of its type: a whole number, a number that fits a float, a bool, a text.

    NaN and infinity are numbers here. What a parameter may be beyond its type the rule itself knows.
    """
    for each in fields(stage):
        value, kind = getattr(stage, each.name), str(each.type)
        if each.name in ("eps", "f") or kind not in PARAMETER_TYPES or (value is None and "None" in kind):
            continue
        types, words = PARAMETER_TYPES[kind]
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not isinstance(value, types) or (types is not bool and isinstance(value, bool)):
            raise BadParameter(f"{type(stage).__name__} with {each.name}={value!r}; give {words}.")
        if whole and abs(int(value)) >= 2**63:
            raise BadParameter(f"{type(stage).__name__} with {each.name} beyond ±2⁶³; give {words}.")


def check_corruption(name: str, eps: float | None, f: int | None) -> None:
    """Exactly one of eps in [0, 0.5) and a count f ≥ 0."""
    if (eps is None) == (f is None):
        given = "neither" if eps is None else f"both eps={eps} and f={f}"
        raise BadFraction(f"{name} needs exactly one of eps (a fraction) and f (a count); found {given}.")
    if eps is not None and not (_is_number(eps) and 0 <= eps < 0.5):
        raise BadFraction(
            f"eps={eps!r}, but no rule can tolerate half the rows or more; "
            "give the fraction you fear, in [0, 0.5)."
        )
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


def rows_in(eps: float, n: int) -> int:
    """ceil(eps·n): one row however small eps is, none only where it is 0."""
    return max(math.ceil(eps * n - 1e-9), int(eps > 0))


def stated_count(stage: Any, n: int) -> int:
    """The f or ceil(eps·n) that a rule was given; of several stages, the greatest."""
    eps, f = getattr(stage, "eps", None), getattr(stage, "f", None)
    own = int(f) if f is not None else rows_in(eps, n) if eps is not None else 0
    inner = (getattr(stage, name, None) for name in ("pre", "rule", "first", "then"))
    return max([own, *(stated_count(each, n) for each in inner if each is not None)])


def needed_by_both(first: Any, then: Any) -> str:
    """What two stages need: of rows that the first makes nothing is known, but by the table of all."""
    return first.needs if getattr(then, "needs", "table") == "nothing" else "table"


def normalised(weights: Array) -> Array:
    """The same, summing to 1."""
    return np.asarray(weights / weights.sum())


def compose(whole: Any, first: Any, then: Any) -> None:
    """Note of two stages what they need together, and how many there are; too many are refused."""
    stages = int(getattr(first, "stages", 0)) + int(getattr(then, "stages", 0))  # a rule by itself has none
    if stages > MAX_STAGES:
        raise BadFraction(
            f"{stages} pre-aggregators in a row; give at most {MAX_STAGES} (two or three will do)."
        )
    object.__setattr__(whole, "needs", needed_by_both(first, then))
    object.__setattr__(whole, "stages", stages)


def budget_of_mixed(rule: Any, n: int) -> int:
    """The greatest f of any stage of `pre | ... | rule`; refused where a stage cannot bear it.

    Every stage is given that f, so each is asked whether it takes so many of the rows that reach it.
    """
    stages = []
    while hasattr(rule, "pre"):
        stages.append(rule.pre)
        rule = rule.rule
    f = max(int(stage.assumed_corrupt(n)) for stage in (*stages, rule))
    for stage in stages:
        n = stage.leaves(n, f)
    if isinstance(rule, TableRule):
        replace(rule, eps=None, f=f).assumed_corrupt(n)
    return f


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def smallest(values: Array, count: int) -> Mask:
    """(n,) which are the `count` smallest; of equal ones the first."""
    kept = np.zeros(values.size, dtype=bool)
    kept[np.argsort(values, kind="stable")[:count]] = True
    return kept


def mean_of(geometry: Geometry, kept: Mask) -> Weights:
    """The weights of the mean of these rows by their mass; of all rows where none of these has any."""
    mass = np.where(kept, geometry.prior_weights, 0.0)
    return normalised(mass if mass.any() else geometry.prior_weights)


def single_row(geometry: Geometry, row: int) -> Weights:
    """All weight on one row."""
    return np.where(np.arange(geometry.n) == row, 1.0, 0.0)


def middle_row(between: Array) -> int:
    """The row with the least median distance to the others: no minority decides which, nor how far out."""
    return int(np.argmin(np.median(between, axis=1)))


def default_f_to_zero(rule: TableRule) -> None:
    """For rules that work without knowing how many lie: f = 0 unless eps or f is given."""
    if rule.eps is None and rule.f is None:
        object.__setattr__(rule, "f", 0)


class Facts(NamedTuple):
    """Shown by `randeigen rules`."""

    paper: str  # who, when
    cost: str  # in n and d, the table included
    breakdown: str  # the largest fraction of liars it survives
    blind_to: str  # what a liar can do unseen
