"""An inspection in words: a table of every eps, and sentences that never claim to know who is corrupt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from randeigen.showing import first_of

if TYPE_CHECKING:
    from randeigen.inspection import Inspection, Opinion

TITLES = ("eps", "f", "bias bound", "weight kept", "distance to mean", "spread", "cut")
MAX_NAMES = 12  # rows, or runs of rows, that a sentence lists
MAX_NAMES_IN_CELL = 4
USUAL_EPS = 0.2  # where rows do not suggest an eps, what robustness costs is shown for this one


def as_text(found: Inspection) -> str:
    """The table and the advice, for a screen."""
    cells = [TITLES, *table_lines(found)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(TITLES) - 1)]
    lines = []
    for *numbers, last in cells:
        padded = [text.rjust(width) for text, width in zip(numbers, widths, strict=True)]
        lines.append("  ".join([*padded, last]).rstrip())
    return "\n".join([f"{found.n} rows, {len(found.unusable)} unusable", *lines, advice_on(found)])


def table_lines(found: Inspection) -> list[tuple[str, ...]]:
    """The cells of every eps, in the order of `TITLES`."""
    return [
        (
            f"{each.eps:g}",
            f"{each.f}",
            f"{each.bias_bound:.3g}",
            f"{100 * each.weight_kept:.0f}%",
            f"{each.distance_to_mean:.3g}",
            f"{each.spread:.3g}",
            _few(found, found.cut_by(each)),
        )
        for each in found.opinions
    ]


def advice_on(found: Inspection) -> str:
    """What these numbers say about eps, and what they cannot say."""
    return " ".join(_sentences(found))


def _sentences(found: Inspection) -> Iterator[str]:
    lost = list(found.unusable)
    if lost:
        verb = "is unusable and counts" if len(lost) == 1 else "are unusable and count"
        least = _fraction(len(lost), found.n)
        yield f"{_named(found, lost)} {verb} as corrupt, so eps has to be {least:g} or more."
    for group in found.copies:
        yield f"{_named(found, group)} are equal."
    if not found.opinions:
        yield "No eps that was tried covers the unusable rows: find out why they are unusable."
        return
    enough = found.enough()
    yield _nobody_apart(found) if enough is None else _apart(found, enough)


def _nobody_apart(found: Inspection) -> str:
    usual = min(found.opinions, key=lambda each: abs((each.eps or 0.0) - USUAL_EPS))
    rows = "corrupt row" if usual.f == 1 else "corrupt rows"
    moved = f"could have moved it by at most {usual.bias_bound:.3g} at its weights"
    if not math.isfinite(usual.bias_bound):
        moved = "could have moved it anywhere"
    return (
        "No rows stand apart from the others, so these rows do not suggest an eps: take it from what you "
        f"know of the senders. At eps = {usual.eps:g} the answer would be {usual.distance_to_mean:.3g} from "
        f"the plain mean, and {usual.f} {rows} {moved}."
    )


def _apart(found: Inspection, enough: Opinion) -> str:
    rows = found.cut_by(enough)
    one = len(rows) == 1
    it, they, are = ("it", "it", "is") if one else ("them", "they", "are")
    least = max(enough.eps or 0.0, _fraction(len(rows) + len(found.unusable), found.n))
    return (
        f"{_named(found, rows)} {'stands' if one else 'stand'} apart ({len(rows)} of {found.n}): with little "
        f"or no weight on {it}, from eps = {enough.eps:g} on, the spread along the top direction falls from "
        f"{found.opinions[0].spread:.3g} to {enough.spread:.3g}. Whether {they} {are} corrupt or an honest "
        f"minority these numbers cannot tell: look at where {they} {'comes' if one else 'come'} from. If "
        f"{they} may be corrupt, give eps = {least:g} or more; what you fear beyond {it} comes on top."
    )


def _fraction(rows: int, n: int) -> float:
    """The least eps of two digits that covers so many rows: f is ceil(eps·n)."""
    return (math.floor(100 * (rows - 1) / n + 1e-9) + 1) / 100


def _named(found: Inspection, rows: Sequence[int]) -> str:
    """Rows as the subject of a sentence."""
    if found.names is not None:
        return _listed(found, rows)
    return f"{'Row' if len(rows) == 1 else 'Rows'} {_listed(found, rows)}"


def _few(found: Inspection, rows: Sequence[int]) -> str:
    """Rows in a cell of the table: some of their names, or their number where they are most of all."""
    return f"{len(rows)} of {found.n}" if 2 * len(rows) > found.n else _listed(found, rows, MAX_NAMES_IN_CELL)


def _listed(found: Inspection, rows: Sequence[int], most: int = MAX_NAMES) -> str:
    names = runs(rows) if found.names is None else [found.names[row] for row in rows]
    return first_of(names, most)


def runs(rows: Sequence[int]) -> list[str]:
    """Ascending numbers as text, with runs of three or more shortened: 0 to 5, 7, 9."""
    numbers, texts = np.asarray(rows, dtype=np.intp), list[str]()
    for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
        texts += [f"{run[0]} to {run[-1]}"] if run.size > 2 else [str(row) for row in run]
    return texts
