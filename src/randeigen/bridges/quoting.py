"""What others wrote, made fit for a log: escaped, on one line, short."""

from __future__ import annotations

from typing import Any

MAX_CHARACTERS = 120  # of a sender's own text that are shown


def quoted(text: Any) -> str:
    """A sender's text in quotes, without terminal escapes, cut at MAX_CHARACTERS."""
    literal = ascii(str(text)[: MAX_CHARACTERS + 1])
    return literal if len(literal) <= MAX_CHARACTERS + 2 else f"{literal[: MAX_CHARACTERS - 2]}...'"
