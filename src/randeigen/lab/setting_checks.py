"""The types of a configuration's settings: numbers, whole ones, yes or no; numpy's become Python's.

Settings come from TOML files, from records and from Python, so none has the right type by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from randeigen.errors import BadFraction, BadParameter


def set_whole(config: Any, least: Mapping[str, int], optional: tuple[str, ...] = ()) -> None:
    """Refuse what is no whole number of at least `least`; `optional` ones may be None."""
    for name, minimum in least.items():
        value = getattr(config, name)
        if value is None and name in optional:
            continue
        if not is_whole(value):
            raise BadParameter(f"{name}={shown_value(value)}; give a whole number, {minimum} or more.")
        if value < minimum:
            wrong = "it cannot be negative: give" if minimum == 0 else "give"
            raise BadParameter(f"{name}={value}; {wrong} {minimum} or more.")
        object.__setattr__(config, name, int(value))


def set_numbers(config: Any, advice: Mapping[str, str], optional: tuple[str, ...] = ()) -> None:
    """Refuse what is no finite number; `advice` says by name what to give. Whole numbers stay whole."""
    for name, what in advice.items():
        value = getattr(config, name)
        if value is None and name in optional:
            continue
        if not is_finite(value):
            error = BadFraction if name in ("eps", "feared") else BadParameter
            raise error(f"{name}={shown_value(value)}; give {what}.")
        if isinstance(value, np.generic):
            object.__setattr__(config, name, value.item())


def set_yes_or_no(config: Any, name: str) -> None:
    """Refuse what is neither True nor False."""
    value = getattr(config, name)
    if not isinstance(value, bool | np.bool_):
        raise BadParameter(f"{name}={shown_value(value)}; give True or False, without quotation marks.")
    object.__setattr__(config, name, bool(value))


def is_whole(value: Any) -> bool:
    """Whether this is a whole number, Python's or numpy's; True is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """Whether this is a number, Python's or numpy's, that is finite as a float; True and "0.3" are none."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def shown_value(value: Any) -> str:
    """What was given, as an error message shows it; numpy's numbers as Python's."""
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."
