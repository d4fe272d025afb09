"""Weighted sums of many parts at once, and how far rounding may have moved them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from randeigen.backend.arrays import UNIT_ROUNDOFF, as_float64, as_host, joined
from randeigen.backend.batched import Numbers, beside, namespace
from randeigen.combine import SMALLEST_VISIBLE_ROUNDING, WeightedSum
from randeigen.parts.judging import works_in_float32
from randeigen.types import Array

SMALLEST_FLOAT32_VARIANCE = 1e-50  # of a part whose sums float32 makes: their numbers are no subnormal ones


def in_float32(pieces: Any, weights: Array, variances: Array) -> tuple[Array, float] | None:
    """`weighted` as float32 makes it; None where its rounding would show beside a part's top variance.

    Σ wᵢ‖xᵢ‖ ≤ sqrt(w²·n·λ + ‖sum‖²), w the sum of the weights. Products of tiny numbers do not underflow
    unseen, being made 2^24 times as large.
    """
    known = (variances == 0) | ((variances > SMALLEST_FLOAT32_VARIANCE) & (variances < math.inf))
    if not works_in_float32(pieces) or not known.all():
        return None
    n, scales = pieces.shape[1], weights.sum(1)
    sums = ((weights * 2.0**24).astype(np.float32)[:, None] @ pieces)[:, 0] * np.float32(2.0**-24)
    squares = as_float64(np.einsum("pw,pw->p", sums, sums, dtype=np.float64))
    errors = (n + 3) * UNIT_ROUNDOFF[4] * np.sqrt(scales**2 * n * variances + squares)
    if not (errors <= SMALLEST_VISIBLE_ROUNDING * scales * np.sqrt(variances)).all():
        return None
    return sums, length(errors)


def weighted(numbers: Any, weights: Numbers) -> tuple[Any, float]:
    """(p, w) the sums of (p, n, w) numbers by (p, n) weights, and how far rounding may have moved them."""
    p, n, width = numbers.shape
    coefficients = beside(weights, numbers)
    sums = (coefficients[:, None] @ numbers)[:, 0]
    squares = (namespace(numbers).einsum("pnw,pnw->pn", numbers, numbers) * coefficients).sum(1)
    error = _rounding(numbers, coefficients, squares)
    if not math.isfinite(float(abs(sums).max())):
        careful = [WeightedSum(line, np.ones(n, dtype=bool)) for line in as_host(weights)]
        parts = [each(as_float64(piece)) for each, piece in zip(careful, numbers, strict=True)]
        sums = joined(parts).reshape(p, width)
        error = math.hypot(error, *(each.rounding_error(0.0) for each in careful))
    return sums, error


def weighted_by_kernel(pieces: Any, weights: Numbers, scales: Array) -> tuple[Any, float] | None:
    """`weighted` by a GPU's kernel, in the dtype of the pieces; None where squares or sums do not fit.

    The sums of the weights are the scales.
    """
    from randeigen.backend.cuda.part_kernels import weighted_sums

    sums, facts = weighted_sums(pieces, weights)
    squares = np.where(scales > 0, facts.squares / scales, 0.0)
    largest = float(squares.max())
    plain = pieces.dtype.itemsize == 4 or largest > 1e-200  # a square of float32 is 0 where the number is
    if not (plain and largest < math.inf and float(facts.largest.max()) < math.inf):
        return None
    error = (pieces.shape[1] + 2) * UNIT_ROUNDOFF[8] * length(scales * squares**0.5)
    return sums, math.hypot(error, math.sqrt(float(facts.cast.sum())))


def _rounding(numbers: Any, weights: Any, squares: Any) -> float:
    """How far rounding may move the sums of (p, n, w) numbers by their (p, n) weights.

    `squares`, (p,), are the sums of the rows' squared norms by the same weights.
    """
    xp, sums = namespace(numbers), weights.sum(1)
    squares = xp.where(sums > 0, squares / sums, 0.0)
    unit, largest = 1.0, float(squares.max())
    if largest == 0 and not bool(((numbers != 0).any(2) & (weights > 0)).any()):
        return 0.0
    if not 1e-200 < largest < math.inf:  # squares of rows with or without weight do not fit
        live = xp.where((weights > 0)[:, :, None], numbers, 0.0)
        unit = float(abs(live).max()) or 1.0
        shares = xp.where(weights > 0, weights / sums[:, None], 0.0)
        squares = (((live / unit) ** 2).sum(2) * shares).sum(1)
    norm = length(as_host(sums * squares**0.5))
    return float((numbers.shape[1] + 2) * UNIT_ROUNDOFF[8] * norm * unit)


def length(lengths: Array) -> float:
    """The length of a vector whose parts, at right angles, have these; their squares may overflow."""
    peak = float(lengths.max())
    return peak * math.sqrt(float(((lengths / peak) ** 2).sum())) if 0 < peak < math.inf else peak
