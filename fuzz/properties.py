"""What must hold of every answer and of every refusal, whatever the rows hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import randeigen
from fuzz import forms
from fuzz.inputs import Case
from fuzz.recipes import COLUMNS
from fuzz.refusals import check_refusal
from fuzz.world import Failure, OutOfTime, attempt, expect, limited
from randeigen.rows import as_rows

Array = np.ndarray[Any, Any]

SECONDS = 10.0  # of work on one input
WORKING = {"float16": 2.0**-24, "bfloat16": 2.0**-24, "float32": 2.0**-24, "float64": 2.0**-53}
STORED = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
SMALLEST_STORED = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}
SMALLEST = np.longdouble(1e-320)  # a bound is a float64, and there are none in between
EXACT_ROWS = 150  # as many are measured exactly, unless something else is asked for
RESILIENT = 8.0  # times sqrt(f/(n−f)) honest spreads: searched attacks reach 2.9 of them


def check(case: Case) -> str:
    """Raise Failure if a property does not hold; else a word for how it ended."""
    from fuzz import command, disk, others

    checks = {"files": disk.check, "mistakes": others.mistakes, "threads": others.threads}
    checks |= {"command": command.check, "backward": others.backward}
    try:
        with limited(SECONDS):
            return checks.get(case.kind, check_rows)(case)
    except OutOfTime as error:
        from fuzz.world import place

        raise Failure("every call ends", f"not done after {SECONDS:g} s of work", place(error)) from None


def rows_of(case: Case) -> Any:
    """The rows in their form, odd ones in place."""
    rows = forms.formed(case.rows, case.dtype, case.form, case.device)
    if not case.odd:
        return rows
    rows = list(rows)
    for row, odd in case.odd.items():
        rows[row] = forms.odd_one(odd, rows[row], row)
    return rows


def aggregated(case: Case, rows: Any, **changes: Any) -> Any:
    """The call that the case describes."""
    options, rule = {**case.options, **changes}, case.recipe.rule()
    if case.block:
        size = case.block * case.n * (8 if case.dtype == "float64" else 4)
        rows = as_rows(rows, block_bytes=size, multiple=rule.block_multiple())
    if case.plainly:
        return randeigen.aggregate(rows, **case.recipe.budgets[-1], **options)
    return randeigen.aggregate(rows, rule=rule, **options)


def check_rows(case: Case) -> str:
    """Rows in memory, in any form."""
    rows = rows_of(case)
    before = forms.fingerprint(rows)
    try:
        result, error = attempt(lambda: aggregated(case, rows))
    finally:
        expect(forms.fingerprint(rows) == before, "the rows are not written to", str(case.form))
    if error is not None:
        check_refusal(case, error)
    else:
        check_result(case, result, rows)
    if case.extras:
        from fuzz import again

        for extra in case.extras:
            again.CHECKS[extra](case, rows, result, error)
    return type(error).__name__ if error else "answered"


def check_result(case: Case, result: Any, rows: Any) -> None:
    """The answer, its weights and its certificate."""
    n = case.n
    weights = result.weights
    expect(
        weights.shape == (n,) and weights.dtype == np.float64,
        "weights are one number a row",
        lambda: str(weights.shape),
    )
    expect(
        np.isfinite(weights).all() and (weights >= 0).all(),
        "weights are not negative",
        lambda: str(weights[:8]),
    )
    expect(abs(weights.sum() - 1) <= 1e-9, "weights sum to 1", repr(float(weights.sum())))
    expect((result.kept == (weights > 0)).all(), "kept are those with weight", "")
    out = np.zeros(n, dtype=bool)
    out[list(result.unusable)] = True
    expect(not weights[out].any(), "unusable rows have no weight", lambda: str(weights[out]))
    wrong = np.flatnonzero(out & ~case.unusual).tolist()
    expect(
        not wrong,
        "no honest row is called unusable",
        lambda: f"rows {wrong[:5]}: {result.unusable[wrong[0]]}",
    )
    missed = [row for row in np.flatnonzero(~case.finite & ~out).tolist() if row not in case.odd]
    expect(not missed, "rows that are not finite are named", str(missed[:8]))
    expect(result.bias_bound >= 0, "the bound is a number", repr(result.bias_bound))
    check_form(case, result, rows)
    answer = forms.joined(result.mean)
    expect(np.isfinite(answer).all(), "the answer is finite", lambda: str(answer[~np.isfinite(answer)][:3]))
    if not out[list(case.odd)].all():
        return  # an odd row could be read after all, and where most are odd, theirs is the form
    expect(answer.shape == (case.rows.shape[1],), "the answer has the rows' columns", str(answer.shape))
    numbers = case.rows.astype(np.longdouble)
    check_certificate(case, result, numbers, answer, out)
    check_distance_to_mean(case, result, numbers[~out], answer)
    check_resilience(case, result, numbers, answer)


def check_form(case: Case, result: Any, rows: Any) -> None:
    """The answer is what the rows were."""
    expect(not forms.shares_memory(result.mean, rows), "the answer is the caller's own", case.form)
    if case.form in forms.ARRAYS:
        expect(
            isinstance(result.mean, np.ndarray), "the answer has the rows' form", type(result.mean).__name__
        )
        dtype = np.asarray(rows).dtype
        expect(
            result.mean.dtype == dtype, "the answer has the rows' dtype", f"{result.mean.dtype} of {dtype}"
        )
    elif case.form in forms.TENSORS:
        same = type(result.mean).__name__ == "Tensor" and result.mean.dtype == rows.dtype
        expect(
            same and result.mean.device == rows.device,
            "the answer has the rows' form",
            lambda: repr(result.mean)[:100],
        )
    elif not case.odd:
        first = rows[0] if not isinstance(rows[0], forms.Foreign) else rows[0]._array
        same = isinstance(result.mean, type(first)) or case.form == "plain lists"
        expect(
            same, "the answer has the rows' form", f"{type(result.mean).__name__} of {type(first).__name__}"
        )
        if isinstance(first, dict):
            expect(
                list(result.mean) == list(first),
                "the answer has the rows' names",
                str(list(result.mean))[:200],
            )


def check_certificate(case: Case, result: Any, rows: Array, answer: Array, out: Array) -> None:
    """No set of as many rows as were feared moved the answer further than the bound, at these weights."""
    feared = case.recipe.feared(case.n)
    left = feared - int(out.sum()) if out.sum() <= feared else feared
    weights = result.weights.astype(np.longdouble)
    weights = weights / weights.sum()
    live = np.flatnonzero(weights > 0)
    rows, weights = rows[live], weights[live]
    scale = np.longdouble(getattr(result.verdict, "scale", 1.0))
    mean = weights @ rows
    size = _norm(weights @ np.abs(rows)) * max(scale, np.longdouble(1))
    # What the answer itself is rounded by is no Byzantine row's doing; halves round by much more, and say so.
    rounding = size * 4 * (len(live) + 4) * WORKING[case.dtype] + _underflow(case)
    for name, corrupt in suspects(case.corrupt[live], rows, weights, mean, left, case.seed).items():
        share = np.where(corrupt, 0, weights)
        if not share.any():
            holds = result.bias_bound == math.inf
            expect(
                holds,
                "the bound is inf where nothing is certain",
                f"{name}: {result.bias_bound!r}, f={feared}",
            )
            continue
        honest = share @ rows / share.sum() * scale
        moved = _norm(mean * scale - honest)
        most = np.longdouble(result.bias_bound) * (1 + 1e-9) + size * 1e-17 + SMALLEST
        if moved > most and not case.recipe.any_of(COLUMNS):
            told = f"{name}: {moved:.6g} > {result.bias_bound:.6g}, f={left}"
            raise Failure("the certificate holds at the weights", told)
        away = _norm(answer - honest)
        if left and away > most + rounding:  # where nobody is feared the bound is 0, and answers are rounded
            told = f"{name}: {away:.6g} > {result.bias_bound:.6g}, f={left}"
            raise Failure("the certificate holds for the answer", told)


def check_distance_to_mean(case: Case, result: Any, usable: Array, answer: Array) -> None:
    """The answer is no further from the plain mean of the usable rows than is said."""
    sketched = "geometry" in case.options or case.recipe.any_of({"published"}) or case.n > EXACT_ROWS
    if sketched or case.odd:
        return  # of a sketch it is an estimate; odd rows may have been read after all
    rows = np.where(result.weights[:, None] > 0, np.abs(case.rows.astype(np.longdouble)), 0)
    size = _norm(np.abs(answer)) + _norm(result.weights @ rows)
    rounding = size * (4 * (case.n + 4) * WORKING[case.dtype] + STORED[case.dtype])
    rounding += _underflow(case) + math.sqrt(rows.shape[1]) * SMALLEST_STORED[case.dtype] + SMALLEST
    # A plain mean in float64 is rounded, and weights this close to even ones are even.
    rounding += (case.n * WORKING["float64"] + 2e-13) * _norm(np.abs(usable).mean(axis=0))
    away = _norm(answer - usable.mean(axis=0))
    holds = away <= np.longdouble(result.distance_to_mean) * (1 + 1e-2) + rounding
    expect(holds, "the plain mean is as near as is said", f"{away:.6g} > {result.distance_to_mean:.6g}")


def check_distance(case: Case, result: Any, answer: Array) -> None:
    """The certificate where the corrupt rows' own numbers are not known: only the honest ones' are needed."""
    share = np.where(case.corrupt, 0, result.weights).astype(np.longdouble)
    if not share.any():
        expect(
            result.bias_bound == math.inf,
            "the bound is inf where nothing is certain",
            repr(result.bias_bound),
        )
        return
    rows = case.rows[~case.corrupt].astype(np.longdouble)
    share = share[~case.corrupt] / share.sum()
    honest = share @ rows * np.longdouble(result.verdict.scale)
    size = _norm(np.abs(rows).max(axis=0))
    rounding = size * 4 * (len(rows) + 4) * WORKING[case.dtype] + _underflow(case) + SMALLEST
    if result.bias_bound == 0:  # no row is left that may be corrupt, so the answer's dtype is not counted
        rounding += size * STORED[case.dtype] + math.sqrt(rows.shape[1]) * SMALLEST_STORED[case.dtype]
    away = _norm(answer - honest)
    holds = away <= np.longdouble(result.bias_bound) * (1 + 1e-9) + rounding
    expect(holds, "the certificate holds for the answer", f"{away:.6g} > {result.bias_bound:.6g}")


def suspects(
    known: Array, rows: Array, weights: Array, mean: Array, left: int, seed: int
) -> dict[str, Array]:
    """Sets of at most `left` rows: those that are corrupt, the heaviest, and those that pull hardest."""
    found: dict[str, Array] = {}
    if known.sum() <= left:
        found["the corrupt rows"] = known
    if left <= 0:
        return found
    heaviest = np.zeros(len(weights), dtype=bool)
    heaviest[np.argsort(-weights, kind="stable")[:left]] = True
    found["the heaviest rows"] = heaviest
    if seed % 4 == 1 and left < len(weights) <= 60:
        away = rows - mean
        most = np.abs(away).max()
        if most > 0:
            spread = (np.sqrt(weights)[:, None] * (away / most)).astype(np.float64)
            way = spread.T @ np.linalg.eigh(spread @ spread.T)[1][:, -1]
            pull = weights.astype(np.float64) * ((away / most).astype(np.float64) @ way)
            for name, order in (
                ("the strongest pull", np.argsort(-pull)),
                ("the strongest pull back", np.argsort(pull)),
            ):
                chosen = np.zeros(len(weights), dtype=bool)
                chosen[order[:left]] = True
                found[name] = chosen
    return found


def check_resilience(case: Case, result: Any, rows: Array, answer: Array) -> None:
    """The default is not blind: Byzantine rows within f do not carry a plain cloud away."""
    n, m, feared = case.n, int(case.corrupt.sum()), case.recipe.feared(case.n)
    plain = case.recipe.stages == ("randeigen",) and case.cloud == "gaussian"
    if not plain or case.odd or n < 10 or not 0 < feared <= n // 5 or m > feared:
        return
    held = feared / n  # of all weight, at most, by those who are feared
    if "row_weights" in case.options:
        claims = np.asarray(case.options["row_weights"], dtype=float)[~case.corrupt]
        if claims.min() != claims.max():
            return  # the honest rows' mean is another one then
        held = 0.4
    good = rows[~case.corrupt]
    centre = good.mean(axis=0)
    most = np.abs(good - centre).max() or np.longdouble(1)
    spread = most * np.linalg.norm(((good - centre) / most).astype(np.float64), 2) / math.sqrt(len(good))
    rounding = _norm(np.abs(good).max(axis=0)) * (STORED[case.dtype] + 8 * n * WORKING[case.dtype])
    away = _norm(answer - centre)
    allowed = RESILIENT * math.sqrt(held / (1 - held)) * spread + rounding
    told = lambda: f"{away:.4g} > {allowed:.4g}"  # noqa: E731
    expect(away <= allowed, "Byzantine rows do not carry the mean away", told)
    expect(math.isfinite(result.bias_bound), "ordinary rows have a finite bound", "inf")


def _underflow(case: Case) -> float:
    """What sums lose whose terms lie below the smallest number of the dtype they are made in."""
    smallest = 2.0**-1074 if case.dtype == "float64" else 2.0**-149
    return case.n * math.sqrt(case.rows.shape[1]) * smallest


def _norm(vector: Array) -> Any:
    most = np.abs(vector).max() if vector.size else np.longdouble(0)
    return most * np.sqrt((vector / most) @ (vector / most)) if most > 0 else most
