"""What all rules share: an assumed corruption, a way to be called on rows, a default geometry."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from randeigen import engine
from randeigen.errors import BadFraction
from randeigen.types import Array, Geometry, Verdict

STAGES = 50  # pre-aggregators that rows may go through before they are judged


@dataclass(frozen=True)
class TableRule:
    """A rule that turns the table of the rows into weights. Give `eps`, a fraction, or `f`, a count."""

    eps: float | None = None
    f: int | None = None
    geometry: ClassVar[str] = "auto"
    needs: ClassVar[str] = "table"  # of the geometry, to answer: that, "lengths", a "line" of it or "nothing"

    def __post_init__(self) -> None:
        """Refuse what no rule can tolerate, before any row is seen."""
        check_corruption(type(self).__name__, self.eps, self.f)

    def budget(self, n: int) -> int:
        """How many of n rows may be corrupt: always fewer than half."""
        return assumed(n, self.eps, self.f)

    def stated_corrupt(self, n: int) -> int:
        """How many of n rows the caller said may be corrupt, though it be half of them or more."""
        return stated(self, n)

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """The judgement on the rows this geometry shows."""
        raise NotImplementedError

    def __call__(self, rows: Any) -> Any:
        """The aggregate of `rows` alone, in their own form; `randeigen.aggregate` tells more."""
        return engine.answer(rows, self)


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


def assumed(n: int, eps: float | None, f: int | None) -> int:
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


def stated(stage: Any, n: int) -> int:
    """The f or ceil(eps·n) that a rule was given; of several stages, the greatest."""
    eps, f = getattr(stage, "eps", None), getattr(stage, "f", None)
    own = int(f) if f is not None else rows_in(eps, n) if eps is not None else 0
    inner = (getattr(stage, name, None) for name in ("pre", "rule", "first", "then"))
    return max([own, *(stated(each, n) for each in inner if each is not None)])


def needed_by_both(first: Any, then: Any) -> str:
    """What two stages need: of rows that the first makes nothing is known, but by the table of all."""
    return first.needs if getattr(then, "needs", "table") == "nothing" else "table"


def normalised(weights: Array) -> Array:
    """The same, summing to 1."""
    return np.asarray(weights / weights.sum())


def compose(whole: Any, first: Any, then: Any) -> None:
    """Note of two stages what they need together, and how many there are; too many are refused."""
    stages = int(getattr(first, "stages", 0)) + int(getattr(then, "stages", 0))  # a rule by itself has none
    if stages > STAGES:
        raise BadFraction(f"{stages} pre-aggregators in a row; give at most {STAGES} (two or three will do).")
    object.__setattr__(whole, "needs", needed_by_both(first, then))
    object.__setattr__(whole, "stages", stages)


def budget_of_mixed(rule: Any, n: int, known: dict[tuple[int, int], int]) -> int:
    """The greater of the two parts' of `pre | rule`; refused where so many could be half of the mixed rows.

    Each part is asked once for each number of rows: asked anew from every stage before it, twenty stages
    would ask a million times.
    """
    if not hasattr(rule, "pre"):
        return int(rule.budget(n))
    if (id(rule), n) not in known:
        f = max(rule.pre.budget(n), budget_of_mixed(rule.rule, n, known))
        budget_of_mixed(rule.rule, rule.pre.leaves(n, f), known)
        known[id(rule), n] = f
    return known[id(rule), n]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
