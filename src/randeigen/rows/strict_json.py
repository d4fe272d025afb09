"""JSON that others wrote, without the liberties that Python's parser takes."""

from __future__ import annotations

import json
import math
from typing import Any


class RepeatedKey(ValueError):
    """An object has a key twice, and readers differ on which one counts."""


def loads(text: str, max_depth: int | None = None) -> Any:
    """The value, or ValueError (RecursionError, if it is nested too deep for Python's own parser).

    No key may appear twice in an object, NaN and Infinity are no numbers, and each number must fit a float.
    """
    value = json.loads(
        text, object_pairs_hook=_no_repeated_key, parse_constant=_no_constant, parse_float=_finite
    )
    if max_depth is not None:
        _refuse_depth(value, max_depth)
    return value


def _no_repeated_key(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise RepeatedKey("a key appears twice")
    return value


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"the number {text:.40} is too large")
    return value


def _refuse_depth(value: Any, most: int) -> None:
    """Whatever prints or compares a value later may do so without asking how deep it goes."""
    level = [value]
    for _ in range(most):
        level = [
            inner
            for each in level
            if isinstance(each, (dict, list))
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise ValueError(f"it is nested more than {most} deep")
