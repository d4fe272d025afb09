"""Rows, geometry, rule, certificate, combine: the five steps every door leads to."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.parallel import single_threaded_blas
from randeigen.certificate import certify
from randeigen.combine import NeedsFullPass, RowSizes, combine, merge_columns
from randeigen.diagnostics import MergedDistance, cut_together, distance_to_mean, note_on
from randeigen.errors import BadFraction, BadRows, TooManyCorrupt
from randeigen.geometry import measure
from randeigen.geometry.partial import measure_partly, statistic_needed
from randeigen.prior_weights import MAX_CLAIM_RATIO, prior_weights_of, read_claims
from randeigen.rows import as_rows
from randeigen.types import Aggregate, Array, Block, Geometry, Mask, Progress, Rows, Rule, Verdict


def run(
    rows: Any,
    rule: Rule,
    *,
    seed: int | None = None,
    geometry: str = "auto",
    on_excess: str = "raise",
    row_weights: Any = None,
    cap: float = MAX_CLAIM_RATIO,
    progress: Progress | None = None,
) -> Aggregate:
    """Aggregate `rows` by `rule`, and certify. Reads them twice: once to measure, once to average."""
    if on_excess not in ("raise", "drop"):
        raise BadRows(f'on_excess={on_excess!r} is not known; choose "raise" (fail closed) or "drop".')
    source = as_rows(rows, multiple=getattr(rule, "chunk", 1))
    f = rule.assumed_corrupt(source.n)
    stated = max(f, getattr(rule, "stated_corrupt", rule.assumed_corrupt)(source.n))
    claimed = read_claims(row_weights, cap, source.n)
    # Drawn after the last row arrived: an adversary may know everything but these coins.
    seed = secrets.randbits(64) if seed is None else checked_seed(seed)
    table, unusable = measure(source, rule.geometry if geometry == "auto" else geometry, seed, progress)
    case = _judge(rule, f, table, unusable, seed, on_excess, stated, claimed, cap)
    found, merged = case.verdict, MergedDistance() if hasattr(case.rule, "merge") else None
    with single_threaded_blas(case.table.n):
        sure = certified(case.table, found, case.f, case.assumed.certified)
        groups = [] if merged else cut_together(case.table, found.weights, case.assumed.certified)
    mean, away = _spend(source, case, progress, merged=merged)
    # Rounding of the answer points in no particular direction, so it adds to the distance as a right angle.
    price = distance_to_mean(case.table, found.weights, found.scale)
    price = merged.length if merged else math.hypot(price, away)
    verdict = _widened(found, case.usable, case.notes, groups, case.assumed.certified)
    # What is merged column by column is as far off as its distance to a mean that is sure.
    return Aggregate(mean, verdict.weights, sure + away, verdict, seed, stated, unusable, price)


def answer(rows: Any, rule: Rule, seed: int | None = None) -> Any:
    """The mean that `run` finds, alone: without a certificate no more is measured than the rule needs."""
    source = as_rows(rows, multiple=getattr(rule, "chunk", 1))
    f = rule.assumed_corrupt(source.n)
    seed = secrets.randbits(64) if seed is None else checked_seed(seed)
    asked = statistic_needed(rule, source)
    with suppress(NeedsFullPass), np.errstate(all="ignore"):  # hostile numbers overflow; then all is measured
        if seen := measure_partly(source, asked, getattr(rule, "trusted", None)):
            case = _judge(rule, f, seen, {}, seed)
            return _spend(source, case, unread=asked == "nothing")[0]
    table, unusable = measure(source, rule.geometry, seed)
    return _spend(source, _judge(rule, f, table, unusable, seed))[0]


class Assumed(NamedTuple):
    """How many of the usable rows are taken to be corrupt."""

    f: int  # by the rule: fewer than half of them
    certified: int  # by the certificate: all that the caller stated, less what unusable rows used up
    broken: bool = False  # more rows were unusable than may be corrupt: what was stated is not true
    notes: tuple[str, ...] = ()


class _Case(NamedTuple):
    """A judgement on the usable rows, and what it takes to spend it."""

    rule: Rule
    f: int  # of the usable rows were corrupt, to the rule
    table: Any  # of the usable rows
    verdict: Verdict  # on them
    usable: Mask
    assumed: Assumed
    notes: tuple[str, ...]


def _judge(
    rule: Rule,
    f: int,
    table: Any,  # a Geometry, or as much of one as the rule needs
    unusable: Mapping[int, str],
    seed: int,
    on_excess: str = "raise",
    stated: int | None = None,
    claimed: Array | None = None,
    cap: float = MAX_CLAIM_RATIO,
) -> _Case:
    usable = np.ones(table.n, dtype=bool)
    usable[list(unusable)] = False
    assumed = budget_left(f, usable, unusable, on_excess, stated)
    alive = np.flatnonzero(usable)
    if among := getattr(rule, "among", None):  # a rule that trusts a row by its place must find it again
        rule = among(alive)
    prior, told = prior_weights_of(None if claimed is None else claimed[alive], cap, assumed.f, alive.size)
    table = table.take(alive).with_prior_weights(prior)
    with single_threaded_blas(alive.size):
        verdict, f = weighed(rule, table, assumed, np.random.default_rng([seed, 4]))
    notes = (*assumed.notes, *told, *unsure(assumed, f, alive.size))
    return _Case(rule, f, table, verdict, usable, assumed, notes)


def weighed(
    rule: Rule, geometry: Geometry, assumed: Assumed, rng: np.random.Generator
) -> tuple[Verdict, int]:
    """The rule's verdict, and the f it was given: where the promise is broken, as many as it tolerates."""
    for f in range(assumed.f, 0, -1):
        try:
            return rule.weigh(geometry, f, rng), f
        except BadFraction:
            if not assumed.broken:
                raise
    return rule.weigh(geometry, 0, rng), 0


def certified(geometry: Geometry, verdict: Verdict, f: int, corrupt: int) -> float:
    """The bound for `corrupt` rows on a verdict that a rule came to with f; inf if they are half or more."""
    if corrupt > 0 and 2 * corrupt >= geometry.n:
        return math.inf
    known = verdict.bounds and corrupt == f and not geometry.distortion  # a sketch's own are estimates
    sure = verdict.bounds[verdict.chosen] if known else certify(geometry, verdict.weights, corrupt)
    return sure * verdict.scale if math.isfinite(sure) else math.inf


def unsure(assumed: Assumed, f: int, n: int) -> tuple[str, ...]:
    """A note where the rule could not assume as many corrupt rows as the certificate must."""
    if f >= assumed.certified:
        return ()
    said = f"{assumed.certified} of {n} usable rows were assumed corrupt, of which the rule tolerates {f}"
    return (f"{said}; half or more: bias_bound is inf" if 2 * assumed.certified >= n else said,)


def _spend(
    source: Rows,
    case: _Case,
    progress: Progress | None = None,
    unread: bool = False,
    merged: MergedDistance | None = None,
) -> tuple[Any, float]:
    """Pass 2: the answer, and how far it is from the weighted mean."""
    weights = np.zeros(case.usable.size)
    weights[case.usable] = case.verdict.weights
    scale, merge, size = case.verdict.scale, getattr(case.rule, "merge", None), _size(case)
    if merge:
        by_column: Callable[[slice, Block], Any] = partial(merge, f=case.f, verdict=case.verdict)
        if merged:
            by_column = merged.watch(by_column)
        chunk = getattr(case.rule, "chunk", 1)
        size = size if case.assumed.certified else None  # no corrupt rows moved nothing
        found = merge_columns(source, weights, case.usable, by_column, chunk, scale, progress, unread, size)
    else:
        mean, away = combine(source, weights, case.usable, scale, progress, unread, size)
        found = mean, away if case.assumed.certified else 0.0
    _refuse_changes(source)
    return found


def _size(case: _Case) -> RowSizes | None:
    """How long and how far apart the rows are that have weight, where all was measured."""
    if case.table.partial:
        return None
    w, table = case.verdict.weights, case.table
    length, spread = (
        float(w @ squares) for squares in (table.squared_norms(), table.squared_norms_from_pivot())
    )
    return RowSizes(math.sqrt(length / (1 - table.distortion)), math.sqrt(spread), table.unit)


def budget_left(
    f: int, usable: Mask, unusable: Mapping[int, str], on_excess: str, stated: int | None = None
) -> Assumed:
    """How many of the usable rows may still be corrupt: each unusable one has used up one of the f.

    `stated` is what the caller said; a rule's own f is less where that is half of the rows or more.
    """
    n, gone = usable.size, len(unusable)
    stated = f if stated is None else stated
    if gone <= f and gone < n:
        return Assumed(f - gone, stated - gone)
    shown = "; ".join(f"row {i} is {why}" for i, why in list(unusable.items())[:8])
    more = f"; and {gone - 8} more" if gone > 8 else ""
    if on_excess == "raise" or gone == n:
        advice = "" if gone == n else ', or pass on_excess="drop" to go on without them'
        raise TooManyCorrupt(
            f"{gone} of {n} rows are unusable, but at most {f} were said to be corrupt: {shown}{more}. "
            f"Find out why{advice}.",
            unusable,
        )
    # The promise behind f is broken, so nothing says the rest is cleaner: assume as many among them too.
    note = f"{gone} unusable rows were dropped although only {f} were said to be corrupt: {shown}{more}"
    return Assumed(min(f, (n - gone - 1) // 2), stated, True, (note,))


def checked_seed(seed: int) -> int:
    """The seed, if it is a whole number from 0, of any size: Python's or numpy's, no bool and no float."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise BadFraction(f"seed={seed!r}; give a non-negative integer, or None for fresh coins.")
    return int(seed)


def _widened(
    verdict: Verdict, usable: Mask, notes: tuple[str, ...], groups: Sequence[Any], corrupt: int
) -> Verdict:
    """The verdict on the usable rows, in the caller's numbering."""
    rows = np.flatnonzero(usable)
    together = tuple(tuple(rows[group].tolist()) for group in groups)

    def wide(values: Any, dtype: Any) -> Any:
        if values is None:
            return None
        out: Any = np.zeros(usable.size, dtype=dtype)
        out[usable] = values
        return out

    return replace(
        verdict,
        weights=wide(verdict.weights, np.float64),
        dropped_in_round=wide(verdict.dropped_in_round, np.intp),
        scores=wide(verdict.scores, np.float64),
        far_outliers=wide(verdict.far_outliers, np.bool_),
        notes=(*notes, *verdict.notes, *(note_on(group, corrupt) for group in together)),
        cut_together=together,
    )


def _refuse_changes(source: Rows) -> None:
    """A file rewritten between the two readings would be averaged without having been judged."""
    changed: list[int] = getattr(source, "changed", list)()
    if changed:
        raise BadRows(f"rows {changed[:8]} changed on disk while they were read; aggregate them again.")
