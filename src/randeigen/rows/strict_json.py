"""JSON without the liberties that Python's parser takes."""

from __future__ import annotations

from typing import Any

from randeigen.rows.formats import UnreadableFile


def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, unless a key appears twice: readers differ on which one counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise UnreadableFile("has a header with a key that appears twice")
    return found


def no_constant(text: str) -> Any:
    """NaN and Infinity are no JSON."""
    raise ValueError(f"{text} is not JSON")
