"""How a result shows itself: some lines when printed, a table in a notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

MAX_ROWS_NAMED = 10
MAX_NOTES = 3
MAX_NOTE_LENGTH = 160  # characters


class Shown:
    """What `print(result)`, the prompt and a notebook show of an `Aggregate`."""

    def __repr__(self) -> str:
        result: Any = self
        kept = int((result.weights > 0).sum())
        return f"<Aggregate of {result.weights.size} rows: {kept} kept, bias_bound {result.bias_bound:.4g}>"

    def __str__(self) -> str:
        pairs = _lines(self)
        width = max(len(name) for name, _ in pairs)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in pairs)

    def _repr_html_(self) -> str:
        cells = (f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in _lines(self))
        style = "<style scoped>th, td { text-align: left !important }</style>"
        return f"{style}<table>{''.join(cells)}</table>"


def _lines(result: Any) -> list[tuple[str, str]]:
    weights, f = result.weights, result.f
    out = [int(i) for i in (weights == 0).nonzero()[0] if i not in result.unusable]
    pairs = [("mean", _form(result.mean))]
    if result.is_weighted_mean:
        kept = f"{weights.size - len(out) - len(result.unusable)} of {weights.size} rows"
        pairs.append(("kept", kept + (f", without {_named(out)}" if out else "")))
    if result.unusable:
        reasons = "; ".join(_short(f"{i}: {why}") for i, why in list(result.unusable.items())[:MAX_NOTES])
        pairs.append(("unusable", f"{_named(list(result.unusable))} ({reasons})"))
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
    notes = result.verdict.notes
    pairs += [("note", _short(note)) for note in notes[:MAX_NOTES]]
    pairs += (
        [("note", f"and {len(notes) - MAX_NOTES} more in verdict.notes")] if len(notes) > MAX_NOTES else []
    )
    return pairs


def _form(mean: Any) -> str:
    if isinstance(mean, Mapping):
        return f"{len(mean)} arrays: {_short(', '.join(map(str, mean)))}"
    if isinstance(mean, Sequence):
        return f"{len(mean)} arrays"
    kind = "tensor" if hasattr(mean, "device") and hasattr(mean, "requires_grad") else "array"
    return f"{str(mean.dtype).removeprefix('torch.')} {kind} of shape {tuple(mean.shape)}"


def _named(rows: Sequence[int]) -> str:
    shown = ", ".join(map(str, rows[:MAX_ROWS_NAMED]))
    more = f" and {len(rows) - MAX_ROWS_NAMED} more" if len(rows) > MAX_ROWS_NAMED else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {shown}{more}"


def _short(text: str) -> str:
    return text if len(text) <= MAX_NOTE_LENGTH else f"{text[: MAX_NOTE_LENGTH - 3]}..."
