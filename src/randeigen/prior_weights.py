"""Prior weights: what senders claim for themselves, capped, and mixed until f of them cannot decide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from randeigen.certificate import corruptible
from randeigen.errors import BadParameter, BadRows
from randeigen.types import Array

MAX_CLAIM_RATIO = 3.0  # a row's claimed weight counts up to this many times the median claim
LEAST_CLAIM = 1e-250  # of the largest claim: a smaller one counts as 0, since it cannot be divided by
MAX_SHARE_OF_HEAVIEST = 1 / 3  # of all prior weight that the f heaviest rows may hold


def read_claims(row_weights: Any, cap: float, n: int) -> Array:
    """(n,) the claims as float64, NaN where one is no number.

    One claim that is NaN, negative, infinite or no number at all costs its own row its weight. The caller's
    mistakes are another number of claims than rows, a dtype that holds no numbers, and no positive claim.
    """
    if isinstance(cap, bool) or not isinstance(cap, (int, float, np.integer, np.floating)) or not cap >= 1:
        raise BadParameter(f"cap={cap!r}, but it is a ratio to the median row's weight; give 1 or more.")
    claimed = _numbers(row_weights)
    if claimed.shape != (n,):
        raise BadRows(f"row_weights has shape {claimed.shape}, but there are {n} rows; give one number each.")
    if not _positive(claimed).any():
        raise BadRows(
            "row_weights: the median is not positive, nor is any claim; give example counts, or none at all."
        )
    return claimed


def prior_weights_of(claimed: Array, cap: float, f: int) -> tuple[Array, tuple[str, ...]]:
    """(n,) the weights of the n usable rows before any judgement, f of which may be corrupt; and notes.

    Claims count up to `cap` times the median positive one. If the f heaviest rows then hold more than a
    third, the capped claims are mixed with equal weights until they hold a third, or all are equal.
    """
    n = claimed.size
    sane = np.isfinite(claimed) & (claimed >= 0)
    positive = _positive(claimed)
    if not positive.any():
        return np.ones(n), ("row_weights: no usable row claims a positive weight, so all count the same",)
    if (wrong := n - int(sane.sum())) > f:
        return np.ones(n), (
            f"row_weights: {wrong} usable rows claim no number from 0, and no more than {f} may be corrupt; "
            "so claims are ignored and all rows count the same",
        )
    ordered = np.sort(claimed[positive])
    typical = float(ordered[(ordered.size - 1) // 2] / 2 + ordered[ordered.size // 2] / 2)
    capped = np.where(sane, np.minimum(np.where(sane, claimed, 0.0), cap * typical), 0.0)
    capped /= max(typical, float(capped.max()) * 1e-100)  # huge caps must not overflow a sum
    capped[capped < LEAST_CLAIM * capped.max()] = 0.0
    held, rest = corruptible(capped, f)
    if held <= MAX_SHARE_OF_HEAVIEST * (held + rest) * (1 + 1e-12):
        return capped, ()
    even = sane.astype(np.float64)
    heavy, share = held / (held + rest), min(f / float(even.sum()), 1.0)
    # Both orders are the same, so what the f heaviest hold is linear in the share that claims count for.
    counts = max((MAX_SHARE_OF_HEAVIEST - share) / (heavy - share), 0.0) if heavy > share else 0.0
    mixed = counts * capped * (float(even.sum()) / (held + rest)) + (1 - counts) * even
    return mixed, (
        f"row_weights: the {f} heaviest of {n} usable rows would hold {heavy:.0%} of the weight, so claims "
        f"count for {counts:.0%} and equal weights for the rest: they hold "
        f"{max(MAX_SHARE_OF_HEAVIEST, share):.0%} now",
    )


def _positive(claimed: Array) -> Any:
    return np.isfinite(claimed) & (claimed > 0)


def _numbers(row_weights: Any) -> Array:
    """As float64. Where dtypes are mixed, each entry on its own."""
    if hasattr(row_weights, "detach"):  # a tensor, on any device
        row_weights = row_weights.detach().double().cpu().numpy()
    if hasattr(row_weights, "__array__") and not isinstance(row_weights, Sequence):
        row_weights = np.asarray(row_weights)
        if row_weights.dtype.kind in "biuf":
            with np.errstate(over="ignore"):
                return np.asarray(row_weights, dtype=np.float64)
        if row_weights.dtype.kind != "O" or row_weights.ndim != 1:
            raise BadRows(
                f"row_weights holds {row_weights.dtype}, not numbers; give one number for each row."
            )
    elif not isinstance(row_weights, Sequence) or isinstance(row_weights, (str, bytes)):
        name = type(row_weights).__name__
        raise BadRows(f"row_weights is a {name}; give a list or an array of one number for each row.")
    claimed = [_number(each) for each in row_weights]
    if claimed and all(each is None for each in claimed):
        name = type(row_weights[0]).__name__
        raise BadRows(f"row_weights holds {name}, not numbers; give one number for each row.")
    return np.array([math.nan if each is None else each for each in claimed], dtype=np.float64)


def _number(claim: Any) -> float | None:
    """One sender's claim; infinite if it is too large for a float, None if it is no number."""
    if isinstance(claim, (str, bytes, bytearray)):
        return None
    try:
        return float(claim)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError, RuntimeError):
        return None
