"""Rows, geometry, rule, certificate, combine: the five steps every door leads to."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from randeigen.certificate import certify
from randeigen.combine import Unmeasured, combine, merge_columns
from randeigen.errors import BadFraction, BadRows, TooManyCorrupt
from randeigen.glance import glance, needs
from randeigen.measure import measure
from randeigen.rows import as_rows
from randeigen.threads import alone
from randeigen.types import Aggregate, Array, Mask, Progress, Rows, Rule, Verdict

CAP = 3.0  # a row's own word for its weight counts up to this many times the median row's


def run(
    rows: Any,
    rule: Rule,
    *,
    seed: int | None = None,
    geometry: str = "auto",
    on_excess: str = "raise",
    row_weights: Any = None,
    cap: float = CAP,
    progress: Progress | None = None,
) -> Aggregate:
    """Aggregate `rows` by `rule`, and certify. Reads them twice: once to measure, once to average."""
    if on_excess not in ("raise", "drop"):
        raise BadRows(f'on_excess={on_excess!r} is not known; choose "raise" (fail closed) or "drop".')
    source = as_rows(rows, multiple=getattr(rule, "chunk", 1))
    f = rule.budget(source.n)
    prior = _prior(row_weights, cap, source.n)
    # Drawn after the last row arrived: an adversary may know everything but these coins.
    seed = secrets.randbits(64) if seed is None else checked_seed(seed)
    table, unusable = measure(source, rule.geometry if geometry == "auto" else geometry, seed, progress)
    case = _judge(rule, f, table, unusable, prior, seed, on_excess)
    found = case.verdict
    with alone(case.table.n):
        known = found.bounds and not case.table.distortion  # on a sketch the rounds' own are estimates
        sure = found.bounds[found.chosen] if known else certify(case.table, found.weights, case.f)
    verdict = _widened(found, case.usable, case.notes)
    mean, away = _spend(source, case, progress)
    # What is merged column by column is as far off as its distance to a mean that is sure.
    return Aggregate(mean, verdict.weights, sure * verdict.scale + away, verdict, seed, f, unusable)


def answer(rows: Any, rule: Rule, seed: int | None = None) -> Any:
    """The mean that `run` finds, alone: without a certificate no more is measured than the rule needs."""
    source = as_rows(rows, multiple=getattr(rule, "chunk", 1))
    f = rule.budget(source.n)
    seed = secrets.randbits(64) if seed is None else checked_seed(seed)
    prior, asked = np.ones(source.n), needs(rule, source)
    with suppress(Unmeasured), np.errstate(all="ignore"):  # hostile numbers overflow; then all is measured
        if seen := glance(source, asked, getattr(rule, "trusted", None)):
            case = _judge(rule, f, seen, {}, prior, seed)
            return _spend(source, case, unread=asked == "nothing")[0]
    table, unusable = measure(source, rule.geometry, seed)
    return _spend(source, _judge(rule, f, table, unusable, prior, seed))[0]


class _Case(NamedTuple):
    """A judgement on the usable rows, and what it takes to spend it."""

    rule: Rule
    f: int  # of the usable rows may be corrupt
    table: Any  # of the usable rows
    verdict: Verdict  # on them
    usable: Mask
    notes: tuple[str, ...]


def _judge(
    rule: Rule,
    f: int,
    table: Any,  # a Geometry, or as much of one as the rule needs
    unusable: Mapping[int, str],
    prior: Array,
    seed: int,
    on_excess: str = "raise",
) -> _Case:
    usable = np.ones(prior.size, dtype=bool)
    usable[list(unusable)] = False
    left, notes = budget_left(f, usable, unusable, on_excess)
    alive = np.flatnonzero(usable)
    if among := getattr(rule, "among", None):  # a rule that trusts a row by its place must find it again
        rule = among(alive)
    table = table.pick(alive).with_prior(prior[alive])
    with alone(alive.size):
        verdict = rule.weigh(table, left, np.random.default_rng([seed, 4]))
    return _Case(rule, left, table, verdict, usable, notes)


def _spend(
    source: Rows, case: _Case, progress: Progress | None = None, unread: bool = False
) -> tuple[Any, float]:
    """Pass 2: the answer, and how far it is from the weighted mean."""
    weights = np.zeros(case.usable.size)
    weights[case.usable] = case.verdict.weights
    scale, merge = case.verdict.scale, getattr(case.rule, "merge", None)
    if merge:
        by_column = partial(merge, f=case.f, verdict=case.verdict)
        chunk = getattr(case.rule, "chunk", 1)
        found = merge_columns(source, weights, case.usable, by_column, chunk, scale, progress, unread)
    else:
        found = combine(source, weights, case.usable, scale, progress, unread), 0.0
    _refuse_changes(source)
    return found


def budget_left(
    f: int, usable: Mask, unusable: Mapping[int, str], on_excess: str
) -> tuple[int, tuple[str, ...]]:
    """How many of the usable rows may still be corrupt: each unusable one has used up one of the f."""
    n, gone = usable.size, len(unusable)
    if gone <= f and gone < n:
        return f - gone, ()
    shown = "; ".join(f"row {i} is {why}" for i, why in list(unusable.items())[:8])
    more = f"; and {gone - 8} more" if gone > 8 else ""
    if on_excess == "raise" or gone == n:
        advice = "" if gone == n else ', or pass on_excess="drop" to go on without them'
        raise TooManyCorrupt(
            f"{gone} of {n} rows are unusable, but at most {f} were said to be corrupt: {shown}{more}. "
            f"Find out why{advice}.",
            unusable,
        )
    # The promise behind f is broken, so nothing says the rest is cleaner: assume f liars among them too.
    note = f"{gone} unusable rows were dropped although only {f} were said to be corrupt: {shown}{more}"
    return min(f, (n - gone - 1) // 2), (note,)


def _prior(row_weights: Any, cap: float, n: int) -> Array:
    """The mass of each row before judgement. What a sender wrote about itself is capped."""
    if row_weights is None:
        return np.ones(n)
    if not cap >= 1:
        raise BadFraction(f"cap={cap}, but it is a ratio to the median row's weight; give 1 or more.")
    claimed = np.asarray(row_weights, dtype=np.float64)
    if claimed.shape != (n,):
        raise BadRows(f"row_weights has shape {claimed.shape}, but there are {n} rows; give one number each.")
    sane = np.isfinite(claimed) & (claimed >= 0)
    typical = float(np.median(np.where(sane, claimed, 0.0)))
    if typical <= 0:
        raise BadRows("row_weights: the median is not positive; give example counts, or leave them out.")
    # Nonsense (NaN, negative) is no reason to stop: such a row gets no weight, like any other liar.
    return np.where(sane, np.minimum(claimed, cap * typical), 0.0) / typical


def checked_seed(seed: int) -> int:
    """The seed, if it is a whole number from 0."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise BadFraction(f"seed={seed!r}; give a non-negative integer, or None for fresh coins.")
    return int(seed)


def _widened(verdict: Verdict, usable: Mask, notes: tuple[str, ...]) -> Verdict:
    """The verdict on the usable rows, in the caller's numbering."""

    def wide(values: Any, dtype: Any) -> Any:
        if values is None:
            return None
        out: Any = np.zeros(usable.size, dtype=dtype)
        out[usable] = values
        return out

    return replace(
        verdict,
        weights=wide(verdict.weights, np.float64),
        fell=wide(verdict.fell, np.intp),
        scores=wide(verdict.scores, np.float64),
        wild=wide(verdict.wild, np.bool_),
        notes=(*notes, *verdict.notes),
    )


def _refuse_changes(source: Rows) -> None:
    """A file rewritten between the two readings would be averaged without having been judged."""
    changed: list[int] = getattr(source, "changed", list)()
    if changed:
        raise BadRows(f"rows {changed[:8]} changed on disk while they were read; aggregate them again.")
