"""Fields of files that a crash or a stranger may have spoilt, taken one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from randeigen.errors import Unusable


class Mangled(Exception):
    """A field is missing or holds what it cannot."""


def take(fields: Mapping[str, Any], key: str, *kinds: type) -> Any:
    """A field of one of these kinds; whole numbers pass as fractions, true and false as neither."""
    if key not in fields:
        raise Mangled(f"{key!r} is missing")
    value = fields[key]
    accepted = (*kinds, int) if float in kinds else kinds
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in kinds):
        raise Mangled(f"{key!r} is {value!r:.60}")
    return value


def counts(values: Sequence[Any]) -> bool:
    """Whether all of these are whole numbers."""
    return all(type(value) is int and abs(value) < 2**64 for value in values)


def as_number(value: float) -> float | str:
    """A float that JSON can hold: what is not finite is spelt."""
    return float(value) if math.isfinite(value) else str(float(value))


def take_number(fields: Mapping[str, Any], key: str) -> float:
    """The reverse of `as_number`."""
    return number(take(fields, key, float, str), key)


def numbers(values: Any, key: str, n: int | None = None) -> list[float]:
    """A list of numbers, n of them if n is given."""
    if not isinstance(values, list) or (n is not None and len(values) != n):
        raise Mangled(f"{key!r} is no list of {'' if n is None else f'{n:,} '}numbers")
    return [number(value, key) for value in values]


def number(value: Any, key: str) -> float:
    """A number, or the name of one that is not finite."""
    if isinstance(value, str) and value in ("inf", "-inf", "nan"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e308:
        raise Mangled(f"{key!r} holds {value!r:.60}")
    return float(value)


def reasons_as_json(reasons: Mapping[int, str]) -> list[list[Any]]:
    """Why rows are unusable; the parts of a reason are kept apart."""
    return [
        [row, reason.kind, reason.detail, reason.path] if isinstance(reason, Unusable) else [row, reason]
        for row, reason in sorted(reasons.items())
    ]


def take_reasons(fields: Mapping[str, Any], key: str, n: int) -> dict[int, str]:
    """The reverse of `reasons_as_json`, for n rows."""
    reasons: dict[int, str] = {}
    for each in take(fields, key, list):
        if not isinstance(each, list) or len(each) not in (2, 4) or type(each[0]) is not int:
            raise Mangled(f"{key!r} holds {each!r:.60}")
        row, *words = each
        texts = all(isinstance(word, str) for word in words[:2]) and isinstance(words[-1], (str, type(None)))
        if not 0 <= row < n or row in reasons or not texts or (len(words) == 1 and words[0] is None):
            raise Mangled(f"{key!r} holds {each!r:.60}")
        reasons[row] = words[0] if len(words) == 1 else Unusable(*words)
    return reasons
