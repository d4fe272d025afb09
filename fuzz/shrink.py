"""A failing input made smaller: fewer rows, columns, stages and options, as long as it fails the same way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fuzz import forms
from fuzz.inputs import Case
from fuzz.properties import check
from fuzz.recipes import Recipe
from fuzz.world import Failure

SECONDS = 20.0


def shrunk(case: Case, claim: str, where: str) -> tuple[Case, str]:
    """The smallest input found that fails this claim at this place, and what it says."""
    until, message = time.monotonic() + SECONDS, ""
    smaller = True
    while smaller:
        smaller = False
        for other in simpler(case):
            if time.monotonic() > until:
                return case, message
            try:
                check(other)
            except Failure as failure:
                if (failure.claim, failure.where) == (claim, where):
                    case, message, smaller = other, failure.message, True
                    break
            except Exception:
                continue
    return case, message


def simpler(case: Case) -> Iterator[Case]:
    """Inputs a little smaller than this one, the greatest steps first."""
    if case.kind not in ("rows", "odd"):
        return
    n, d = case.rows.shape
    for half in (slice(0, n // 2), slice(n // 2, n)):
        if n > 1:
            yield without(case, np.arange(n)[half])
    for half in (slice(0, d // 2), slice(d // 2, d)):
        if d > 1:
            yield replace(case, rows=case.rows[:, half])
    if case.extras:
        yield replace(case, extras=())
        yield from (replace(case, extras=(extra,)) for extra in case.extras if len(case.extras) > 1)
    for option in case.options:
        if option != "seed":
            yield replace(case, options={key: value for key, value in case.options.items() if key != option})
    if len(case.recipe.stages) > 1:
        yield replace(case, recipe=_last(case.recipe))
    if any(case.recipe.parameters) and not case.plainly:
        yield replace(case, recipe=replace(case.recipe, parameters=tuple({} for _ in case.recipe.stages)))
    if case.block:
        yield replace(case, block=0)
    if case.form in forms.ARRAYS and case.form != "array":
        yield replace(case, form="array")
    if case.form in forms.TENSORS and case.form != "tensor":
        yield replace(case, form="tensor")
    if n <= 60:
        yield from (without(case, np.array([row])) for row in range(n) if n > 1)
    if d <= 60:
        yield from (replace(case, rows=np.delete(case.rows, column, axis=1)) for column in range(d) if d > 1)
    if n * d <= 200:
        rounded = case.rows.copy()
        with np.errstate(all="ignore"):
            for digits in (0, 1, 3):
                plain = np.array([float(f"{value:.{digits}e}") for value in rounded.ravel().tolist()])
                plain = forms.cast(plain.reshape(rounded.shape), case.dtype)
                if not np.array_equal(plain, rounded, equal_nan=True):
                    yield replace(case, rows=plain)


def without(case: Case, gone: Any) -> Case:
    """The case without some of its rows."""
    left = np.delete(np.arange(case.n), gone)
    odd = {int(at): case.odd[int(row)] for at, row in enumerate(left) if int(row) in case.odd}
    options = dict(case.options)
    if "row_weights" in options:
        options["row_weights"] = np.asarray(options["row_weights"])[left]
    return replace(case, rows=case.rows[left], corrupt=case.corrupt[left], odd=odd, options=options)


def _last(recipe: Recipe) -> Recipe:
    return Recipe(recipe.stages[-1:], recipe.budgets[-1:], recipe.parameters[-1:])


def shown(case: Case) -> dict[str, Any]:
    """A case for the record; its numbers too, where they are few."""
    found: dict[str, Any] = {"seed": case.seed, "input": str(case)}
    if case.rows.size <= 64:
        found["rows"] = [[repr(float(value)) for value in row] for row in case.rows]
        found["corrupt"] = np.flatnonzero(case.corrupt).tolist()
        if "row_weights" in case.options:
            found["row_weights"] = [repr(value) for value in np.asarray(case.options["row_weights"]).tolist()]
    return found
