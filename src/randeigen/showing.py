"""How results show themselves: some lines when printed, a table in a notebook."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, TypeAlias

SCREEN = 100  # columns
MAX_ROWS_NAMED = 10
MAX_NOTES = 3
MAX_NOTE_LENGTH = 160  # characters


Pairs: TypeAlias = list[tuple[str, str]]  # a name and what to say of it, one line each


class InLines:
    """Prints as aligned lines and is a table in a notebook: those of `_lines`."""

    def _lines(self) -> Pairs:
        raise NotImplementedError

    def __str__(self) -> str:
        pairs = self._lines()
        width = max(len(name) for name, _ in pairs)
        indent = "\n" + " " * (width + 2)
        cells = ((name, textwrap.wrap(spelled_out(text), SCREEN - width - 2)) for name, text in pairs)
        return "\n".join(f"{name:<{width}}  {indent.join(lines)}" for name, lines in cells)

    def _repr_html_(self) -> str:
        cells = (
            f"<tr><th>{escape(name)}</th><td>{escape(spelled_out(text))}</td></tr>"
            for name, text in self._lines()
        )
        style = "<style scoped>th, td { text-align: left !important }</style>"
        return f"{style}<table>{''.join(cells)}</table>"


class AggregateText(InLines):
    """What `print(result)`, the prompt and a notebook show of an `Aggregate`."""

    def __repr__(self) -> str:
        result: Any = self
        kept = int((result.weights > 0).sum())
        return f"<Aggregate of {result.weights.size} rows: {kept} kept, bias_bound {result.bias_bound:.4g}>"

    def _lines(self) -> Pairs:
        return _lines_of(self)


def _lines_of(result: Any) -> Pairs:
    weights, f = result.weights, result.f
    out = [int(i) for i in (weights == 0).nonzero()[0] if i not in result.unusable]
    pairs = [("mean", _form(result.mean))]
    if result.is_weighted_mean:
        kept = f"{weights.size - len(out) - len(result.unusable)} of {weights.size} rows"
        pairs.append(("kept", kept + (f", without {named(out)}" if out else "")))
    pairs += unusable_lines(result.unusable)
    corrupt = f"{f} corrupt row{'' if f == 1 else 's'}"
    bound = f"{result.bias_bound:.4g}: {corrupt} can have moved the mean by at most this at these weights"
    if f == 0:
        bound = "0: no row was assumed corrupt"
    elif not math.isfinite(result.bias_bound):
        bound = f"inf: {corrupt} could have moved the mean anywhere"
    pairs.append(("bias_bound", bound))
    pairs.append(
        ("distance_to_mean", f"{result.distance_to_mean:.4g} from the plain mean of the usable rows")
    )
    pairs.append(("stopped", f"{result.verdict.stop}"))
    if not result.is_weighted_mean:
        pairs.append(("weights", "did not make this mean: see is_weighted_mean"))
    pairs.append(("seed", str(result.seed)))
    return pairs + note_lines(result.verdict.notes, "verdict.notes")


def unusable_lines(unusable: Mapping[int, str], kind: str = "row") -> Pairs:
    """Rows that could not be used, with some of the reasons."""
    reasons = "; ".join(_short(f"{i}: {why}") for i, why in list(unusable.items())[:MAX_NOTES])
    return [("unusable", f"{named(list(unusable), kind)} ({reasons})")] if unusable else []


def note_lines(notes: Sequence[str], field: str) -> Pairs:
    """The first notes, and where the others are."""
    more = [f"and {len(notes) - MAX_NOTES} more in {field}"] if len(notes) > MAX_NOTES else []
    return [("note", _short(note)) for note in (*notes[:MAX_NOTES], *more)]


def _form(mean: Any) -> str:
    if isinstance(mean, Mapping):
        return f"{len(mean)} arrays: {_short(', '.join(map(str, mean)))}"
    if isinstance(mean, Sequence):
        return f"{len(mean)} arrays"
    kind = "tensor" if hasattr(mean, "device") and hasattr(mean, "requires_grad") else "array"
    return f"{str(mean.dtype).removeprefix('torch.')} {kind} of shape {tuple(mean.shape)}"


def first_of(words: Sequence[object], most: int, separator: str = ", ") -> str:
    """The first of these, and how many more there are: "3, 5 and 8 more"; by "; ", "3; 5; and 8 more"."""
    more = f"{separator.strip(', ')} and {len(words) - most:,} more" if len(words) > most else ""
    return separator.join(map(str, words[:most])) + more


def named(rows: Sequence[int], kind: str = "row") -> str:
    """Some rows by their numbers: "rows 3, 5 and 8 more"."""
    return f"{kind}{'' if len(rows) == 1 else 's'} {first_of(rows, MAX_ROWS_NAMED)}"


def spelled_out(text: str) -> str:
    """Text as it is, unless a stranger could have hidden control characters in it."""
    return text if text.isprintable() else ascii(text)[1:-1]


def _short(text: str) -> str:
    return text if len(text) <= MAX_NOTE_LENGTH else f"{text[: MAX_NOTE_LENGTH - 3]}..."
