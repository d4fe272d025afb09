"""An inspection in words: a table of every eps, and sentences that never claim to know who is corrupt."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from randeigen.showing import SCREEN, first_of, spelled_out

if TYPE_CHECKING:
    from randeigen.inspection import Inspection, Opinion

TITLES = ("eps", "f", "bias bound", "weight kept", "distance to mean", "spread", "cut")
MAX_NAMES = 12  # rows, or runs of rows, that a sentence lists
MAX_NAMES_IN_CELL = 4
MAX_NAME_LENGTH = 60  # characters; of a longer name its two ends are shown
USUAL_EPS = 0.2  # where rows do not suggest an eps, what robustness costs is shown for this one


def as_text(inspection: Inspection) -> str:
    """The table and the advice, for a screen."""
    cells = [TITLES, *table_lines(inspection)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(TITLES) - 1)]
    lines = []
    for *numbers, last in cells:
        padded = [text.rjust(width) for text, width in zip(numbers, widths, strict=True)]
        lines.append("  ".join([*padded, last]).rstrip())
    title = f"{inspection.n} rows, {len(inspection.unusable)} unusable"
    return "\n".join([title, *lines, *textwrap.wrap(advice_on(inspection), SCREEN)])


def table_lines(inspection: Inspection) -> list[tuple[str, ...]]:
    """The cells of every eps, in the order of `TITLES`."""
    return [
        (
            f"{each.eps:g}",
            f"{each.f}",
            f"{each.bias_bound:.3g}",
            f"{100 * each.weight_kept:.0f}%",
            f"{each.distance_to_mean:.3g}",
            f"{each.spread:.3g}",
            _few(inspection, inspection.cut_by(each)),
        )
        for each in inspection.opinions
    ]


def advice_on(inspection: Inspection) -> str:
    """What these numbers say about eps, and what they cannot say."""
    return " ".join(_sentences(inspection))


def _sentences(inspection: Inspection) -> Iterator[str]:
    lost = list(inspection.unusable)
    if lost:
        verb = "is unusable and counts" if len(lost) == 1 else "are unusable and count"
        least = _fraction(len(lost), inspection.n)
        yield f"{_named(inspection, lost)} {verb} as corrupt, so eps has to be {least:g} or more."
    for group in inspection.copies:
        yield f"{_named(inspection, group)} are equal, or too near each other to tell apart."
    if not inspection.opinions:
        yield "No eps that was tried covers the unusable rows: find out why they are unusable."
        return
    enough = inspection.enough()
    yield _nobody_apart(inspection) if enough is None else _apart(inspection, enough)


def _nobody_apart(inspection: Inspection) -> str:
    usual = min(inspection.opinions, key=lambda each: abs((each.eps or 0.0) - USUAL_EPS))
    rows = "corrupt row" if usual.f == 1 else "corrupt rows"
    effect = f"could have moved it by at most {usual.bias_bound:.3g} at its weights"
    if not math.isfinite(usual.bias_bound):
        effect = "could have moved it anywhere"
    return (
        "No rows stand apart from the others, so these rows do not suggest an eps: take it from what you "
        f"know of the senders. At eps = {usual.eps:g} the answer would be {usual.distance_to_mean:.3g} from "
        f"the plain mean, and {usual.f} {rows} {effect}."
    )


def _apart(inspection: Inspection, enough: Opinion) -> str:
    rows = inspection.cut_by(enough)
    one = len(rows) == 1
    it, they, are = ("it", "it", "is") if one else ("them", "they", "are")
    least = max(enough.eps or 0.0, _fraction(len(rows) + len(inspection.unusable), inspection.n))
    return (
        f"{_named(inspection, rows)} {'stands' if one else 'stand'} apart ({len(rows)} of {inspection.n}): "
        f"with little or no weight on {it}, from eps = {enough.eps:g} on, the spread along the top direction "
        f"falls from {inspection.opinions[0].spread:.3g} to {enough.spread:.3g}. Whether {they} {are} "
        f"corrupt or an honest minority these numbers cannot tell: look at where {they} "
        f"{'comes' if one else 'come'} from. If {they} may be corrupt, give eps = {least:g} or "
        f"more; what you fear beyond {it} comes on top."
    )


def _fraction(rows: int, n: int) -> float:
    """The least eps of two digits that covers so many rows: f is ceil(eps·n)."""
    return (math.floor(100 * (rows - 1) / n + 1e-9) + 1) / 100


def _named(inspection: Inspection, rows: Sequence[int]) -> str:
    """Rows as the subject of a sentence."""
    if inspection.names is not None:
        return _listed(inspection, rows)
    return f"{'Row' if len(rows) == 1 else 'Rows'} {_listed(inspection, rows)}"


def _few(inspection: Inspection, rows: Sequence[int]) -> str:
    """Rows in a cell of the table: some of their names, or their number where they are most of all."""
    if 2 * len(rows) > inspection.n:
        return f"{len(rows)} of {inspection.n}"
    return _listed(inspection, rows, MAX_NAMES_IN_CELL)


def _listed(inspection: Inspection, rows: Sequence[int], most: int = MAX_NAMES) -> str:
    names = runs(rows) if inspection.names is None else [_name(inspection.names[row]) for row in rows]
    return first_of(names, most)


def runs(rows: Sequence[int]) -> list[str]:
    """Ascending numbers as text, with runs of three or more shortened: 0 to 5, 7, 9."""
    numbers, texts = np.asarray(rows, dtype=np.intp), list[str]()
    for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
        texts += [f"{run[0]} to {run[-1]}"] if run.size > 2 else [str(row) for row in run]
    return texts


def _name(name: str) -> str:
    """A name from a stranger as it fits into a sentence."""
    text = spelled_out(name)
    half = MAX_NAME_LENGTH // 2 - 1
    return text if len(text) <= MAX_NAME_LENGTH else f"{text[:half]}…{text[-half:]}"
