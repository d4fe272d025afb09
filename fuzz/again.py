"""Checks that call once more: replayed, by the short way, permuted, scaled, shifted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fuzz import forms
from fuzz.cuts import in_parts
from fuzz.inputs import Case
from fuzz.properties import aggregated, rows_of
from fuzz.recipes import COINS, ORIGIN, PROMISED
from fuzz.refusals import check_refusal
from fuzz.world import attempt, expect
from randeigen.errors import TooManyCorrupt

Array = np.ndarray[Any, Any]

# Rules that leave the farthest rows out first and then choose: with one more left out they choose otherwise.
CHOOSING = {"caf", "dnc", "mda", "smea", "semidefinite"}
NUDGES = (
    16  # tries to find out whether rounding decides: of two equal scores each has the least in half of them
)
ROUNDING = {
    "float64": 1e-12,
    "float32": 1e-6,
    "float16": 2e-3,
    "bfloat16": 2e-2,
}  # relative, of a row's numbers


def replayed(case: Case, rows: Any, result: Any, error: Any) -> None:
    """The same seed gives the same bits."""
    again, other = attempt(lambda: aggregated(case, rows, seed=case.options["seed"]))
    expect(
        type(error) is type(other) and str(error) == str(other),
        "the seed replays the call",
        f"{error} / {other}"[:300],
    )
    if result is None:
        return
    same = result.weights.tobytes() == again.weights.tobytes() and result.bias_bound == again.bias_bound
    pairs = zip(forms.leaves(result.mean), forms.leaves(again.mean), strict=True)
    same &= all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)
    expect(
        same and again.seed == result.seed,
        "the seed replays the call",
        lambda: f"{result.weights} / {again.weights}"[:300],
    )


def alone(case: Case, rows: Any, result: Any, error: Any) -> None:
    """`rule(rows)` gives what `aggregate` gives, by a shorter way."""
    if "row_weights" in case.options or case.recipe.any_of({"semidefinite", "tukey"}):
        return
    answer, other = attempt(lambda: case.recipe.rule()(rows))
    if other is not None:
        check_refusal(replace(case, options={}), other)
        return
    if "geometry" not in case.options:  # another measurement can hold other rows
        told = f"aggregate: {error}"[:300]
        expect(not isinstance(error, TooManyCorrupt), "the short way refuses what aggregate refuses", told)
    short = forms.joined(answer)
    expect(
        np.isfinite(short).all(),
        "the short way's answer is finite",
        lambda: str(short[~np.isfinite(short)][:3]),
    )
    if (
        result is not None
        and "geometry" not in case.options
        and not len(result.unusable) > case.recipe.feared(case.n)
    ):
        compare(case, short, forms.joined(result.mean), "the short way agrees")


def permuted(case: Case, rows: Any, result: Any, error: Any) -> None:
    """Another order of the rows is the same answer."""
    if result is None or case.recipe.any_of(COINS | {"monna", "fltrust"}) or "row_weights" in case.options:
        return
    order = np.random.default_rng(case.seed).permutation(case.n)
    other = replace(case, rows=case.rows[order], corrupt=case.corrupt[order], odd={})
    if case.odd or "geometry" in case.options or case.recipe.breaks_ties_by_order():
        return
    again, _ = attempt(partial(_answer_of, other))
    expect(again is not None, "another order is no other outcome", "refused")
    compare(case, forms.joined(again.mean), forms.joined(result.mean), "another order is the same answer")


def scaled(case: Case, rows: Any, result: Any, error: Any) -> None:
    """All rows times a power of two: the answer times as much."""
    if result is None or case.odd or any(case.recipe.parameters) or not case.tame:
        return
    if case.recipe.any_of({"clipping", "filtering"}) or case.dtype == "float16":
        return
    draw = np.random.default_rng([1, case.seed])
    power = int(draw.integers(-480, 480) if case.dtype == "float64" else draw.integers(-110, 110))
    rows64 = np.ldexp(case.rows.astype(np.longdouble), power)
    times = forms.cast(rows64.astype(np.float64), case.dtype)
    finite = np.isfinite(times) | ~np.isfinite(case.rows)
    exact = np.array_equal(times.astype(np.longdouble), rows64, equal_nan=True)
    if not finite.all() or not exact:
        return
    other = replace(case, rows=times)
    again, _ = attempt(partial(_answer_of, other))
    expect(again is not None, "scaling is no other outcome", f"refused at 2^{power}")
    back = np.ldexp(forms.joined(again.mean), -power)
    compare(case, back, forms.joined(result.mean), "scaling scales the answer", f"2^{power}")
    if _may_be_removed_at_once(case):
        return
    here, there = result.bias_bound, float(np.ldexp(np.longdouble(again.bias_bound), -power))
    close = here == there or abs(here - there) <= 1e-2 * here + 1e-3 * float(
        np.abs(case.rows[case.finite]).max()
    )
    expect(close, "scaling scales the bound", f"2^{power}: {here:.6g}, {there:.6g}")


def shifted(case: Case, rows: Any, result: Any, error: Any) -> None:
    """All rows moved alike: the answer moved as much."""
    if result is None or case.odd or not case.tame or case.recipe.any_of(ORIGIN) or case.dtype != "float64":
        return
    shift = 10 ** np.random.default_rng([2, case.seed]).uniform(0, 3)
    other = replace(case, rows=case.rows + shift)
    again, _ = attempt(partial(_answer_of, other))
    expect(again is not None, "shifting is no other outcome", "refused")
    back = forms.joined(again.mean) - shift
    compare(case, back, forms.joined(result.mean), "shifting shifts the answer", allowed=1e-12 * shift)


def compare(case: Case, one: Array, other: Array, claim: str, more: str = "", allowed: float = 0.0) -> None:
    """Equal to rounding, where rounding decides nothing."""
    if not case.tame or case.recipe.any_of(COINS) or _may_be_removed_at_once(case):
        return
    apart = float(np.abs(one - other).max())
    close = _closeness(case) + allowed
    if apart <= close or _rounding_decides(case, close):
        return
    expect(False, claim, f"{apart:.3g} apart, {close:.3g} allowed {more}")


def _closeness(case: Case) -> float:
    """How far apart two answers may be that should be equal."""
    size = float(np.abs(case.rows[case.finite]).max())
    return {"float64": 1e-6, "float32": 2e-3}.get(case.dtype, 3e-2) * size


def _rounding_decides(case: Case, close: float) -> bool:
    """Whether the answer jumps when the rows move by what rounding moves them.

    A rule that chooses rows has such inputs: ties of scores, rows on the edge of what is removed.
    """
    answers: list[Array] = []
    for noise in (0.0, *[ROUNDING[case.dtype]] * NUDGES):
        draw = np.random.default_rng([3, case.seed, len(answers)])
        nudged = case.rows * (1 + noise * draw.uniform(-1, 1, case.rows.shape))
        result, _ = attempt(partial(_answer_of, replace(case, rows=forms.cast(nudged, case.dtype))))
        if result is None:
            return True
        answers.append(forms.joined(result.mean))
    return max(float(np.abs(answer - answers[0]).max()) for answer in answers) > close


def _answer_of(case: Case) -> Any:
    return aggregated(case, rows_of(case))


def _may_be_removed_at_once(case: Case) -> bool:
    """Whether a row is about as far out as those removed at once, which is seen from a pivot."""
    return case.recipe.any_of(PROMISED | CHOOSING) and _nearly_far(case.rows[case.finite])


def _nearly_far(rows: Array) -> bool:
    """Whether some row is about as far out as those that are removed at once, which is seen from a pivot."""
    with np.errstate(all="ignore"):
        rows = rows.astype(np.float64)
        away = np.abs(rows - np.median(rows, axis=0)).max(axis=1)
        ratio = away / np.median(away)  # nothing is far from most rows but where these are one point
    return bool(((ratio > 1e3) & (ratio < 1e5)).any()) or not np.median(away)


CHECKS = {
    **{"replay": replayed, "alone": alone, "permuted": permuted, "scaled": scaled, "shifted": shifted},
    "parts": in_parts,
}
