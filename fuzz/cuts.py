"""The same rows judged in parts: what must hold of `partition`, whatever they hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fuzz import forms
from fuzz.inputs import Case
from fuzz.properties import SMALLEST, WORKING, aggregated, suspects
from fuzz.recipes import COLUMNS
from fuzz.world import Failure, attempt, expect
from randeigen.errors import BadParameter

Array = np.ndarray[Any, Any]

MOST_PRODUCTS = 2 * 10**7  # inner products of all parts, n×n of each: more take longer than an input may
TRIED_SETS = 3  # sets of rows that may be the corrupt ones, at most


def in_parts(case: Case, rows: Any, result: Any, error: Any) -> None:
    """Refused as whole rows are, or an answer whose weights in each part, and certificate, hold."""
    if case.recipe.any_of({"semidefinite", "tukey"}):
        return
    rng, d = np.random.default_rng([case.seed, 77]), case.rows.shape[1]
    width = max(int(rng.integers(1, max(d, 2) + 1)), -(-(case.n**2) * d // MOST_PRODUCTS))
    asked = str(rng.choice(["tensor", "hybrid", f"columns:{width}", f"hybrid:columns:{width}"]))
    found, other = attempt(lambda: aggregated(case, rows, partition=asked))
    if isinstance(other, BadParameter):
        by_column = not case.recipe.rule().weighs_rows()
        sketched = case.options.get("geometry", "auto") not in ("auto", "gram")
        expect(
            by_column or sketched or error is not None, "partition is refused with a reason", str(other)[:200]
        )
        return
    same = type(error) is type(other) or "geometry" in case.options
    expect(same, "parts are refused as whole rows are", f"{asked}: {error} / {other}"[:300])
    if found is None or found.parts is None:
        return
    weights = found.parts.weights
    sums = weights.sum(axis=1)
    expect((abs(sums - 1) < 1e-9).all(), "weights in a part sum to 1", f"{asked}: {sums[:4]}")
    expect((weights >= 0).all(), "weights in a part are not negative", asked)
    gone = list(found.unusable)
    expect(not weights[:, gone].any(), "a row unusable in one part is so in all", f"{asked}: rows {gone[:5]}")
    answer = forms.joined(found.mean)
    expect(np.isfinite(answer).all(), "the answer is finite", f"{asked}: {answer[~np.isfinite(answer)][:3]}")
    expect(not math.isnan(found.bias_bound), "the bound is a number", asked)
    if not case.odd and not case.recipe.any_of(COLUMNS):
        _check_certificate(case, found, asked)


def _check_certificate(case: Case, found: Any, asked: str) -> None:
    """No set of as many rows as were feared moved the parts further than the bound, at their weights."""
    usable = np.ones(case.n, dtype=bool)
    usable[list(found.unusable)] = False
    feared = case.recipe.feared(case.n)
    gone = case.n - int(usable.sum())
    left = feared - gone if gone <= feared else feared
    if not left:
        return
    rows = case.rows[usable].astype(np.longdouble)
    by_column, scales = np.empty_like(rows), np.empty_like(rows[0])
    for run in found.parts.partition.runs:
        for k in range(run.times):
            at = slice(run.start + k * run.width, run.start + (k + 1) * run.width)
            by_column[:, at] = found.parts.weights[run.part + k, usable][:, None]
            scales[at] = found.parts.scales[run.part + k]
    mean = (by_column * rows).sum(0)
    size = np.abs(by_column * rows).sum()
    average = found.weights[usable].astype(np.longdouble)
    sets = suspects(case.corrupt[usable], rows, average / average.sum(), mean, left, case.seed)
    for name, corrupt in list(sets.items())[:TRIED_SETS]:
        share = np.where(corrupt[:, None], 0, by_column)
        held = share.sum(0)
        if not (held > 0).all():
            expect(
                found.bias_bound == math.inf, "the bound is inf where nothing is certain", f"{asked}: {name}"
            )
            continue
        apart = scales * (mean - (share * rows).sum(0) / held)
        largest = np.abs(apart).max()
        moved = largest * np.sqrt(((apart / largest) ** 2).sum()) if largest > 0 else largest
        most = np.longdouble(found.bias_bound) * (1 + 1e-9) + size * WORKING[case.dtype] + SMALLEST
        if moved > most:
            told = f"{asked}, {name}: {moved:.6g} > {found.bias_bound:.6g}, f={left}"
            raise Failure("the certificate of parts holds at their weights", told)
