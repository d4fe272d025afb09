"""Numbers that nodes claim and report: whatever is none is left out, whatever its type does to a reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

MAX_NUMBER = 1e300  # a larger one is no count and no metric, and sums of them are not finite


def number_of(value: Any) -> float | None:
    """A finite number; None if the value is none."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        return None
    number = value if isinstance(value, int) else float(value)  # a long int is no float at all
    return float(number) if -MAX_NUMBER < number < MAX_NUMBER else None


def claim_of(value: Any) -> float | None:
    """A number of examples or steps; None if it is nothing sensible."""
    count = number_of(value)
    return None if count is None or count < 0 else count


def numbers_in(report: Any) -> dict[str, float]:
    """The metrics of a report that are numbers; texts, bytes and the rest are nothing to average."""
    metrics = report if isinstance(report, Mapping) else {}
    numbers = {str(name): number_of(value) for name, value in metrics.items()}
    return {name: number for name, number in numbers.items() if number is not None}
