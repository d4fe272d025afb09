"""What must hold of every refusal: it is the caller's to mend, and names the right rows."""

from __future__ import annotations

import numpy as np

from fuzz.inputs import Case
from fuzz.recipes import fits
from fuzz.world import expect
from randeigen.errors import BadFraction, BadRows, MissingExtra, TooManyCorrupt


def check_refusal(case: Case, error: Exception) -> None:
    """An error is the caller's to mend; what a minority of senders did is no reason for one."""
    n, feared = case.n, case.recipe.feared(case.n)
    if isinstance(error, TooManyCorrupt):
        named = np.zeros(n, dtype=bool)
        named[list(error.rows)] = True
        wrong = np.flatnonzero(named & ~case.unusual).tolist()
        expect(
            not wrong,
            "no honest row is called unusable",
            lambda: f"rows {wrong[:5]}: {error.reasons[wrong[0]]}",
        )
        expect(
            named.sum() > min(feared, (n - 1) // 2) or named.all(),
            "within f nobody is refused",
            str(error)[:300],
        )
    elif isinstance(error, BadRows):
        minority = 2 * len(case.odd) < n
        allowed = (
            case.recipe.any_of({"tukey", "semidefinite", "monna", "fltrust"})
            or "row_weights" in case.options
            or not minority
        )
        expect(allowed, "a minority of odd rows is no error", f"{type(error).__name__}: {error}"[:300])
    elif isinstance(error, BadFraction):
        after_loss = case.unusual.sum() > feared  # of what is left the rule may ask more than there is
        allowed = not fits(case.recipe, n) or after_loss or case.recipe.any_of({"mda", "smea"})
        expect(allowed, "a rule that fits is not refused", f"{type(error).__name__}: {error}"[:300])
    else:
        expect(isinstance(error, MissingExtra), "only documented errors", repr(error)[:300])
