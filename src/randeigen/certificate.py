"""How far f corrupt rows can have moved an answer at its weights, whichever rows they are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from randeigen.errors import BadFraction, BadRows
from randeigen.types import Array, Geometry


def meaning(corrupt: str = "f corrupt rows", most: str = "this", rows: str = "rows") -> str:
    """What the certificate means, in the one sentence that is shown wherever the number is."""
    return (
        f"{corrupt} can have moved the answer by at most {most} at these weights: it is that close to the "
        f"mean of the honest {rows} alone at the same weights, and may be further from their plain mean."
    )


def certify(geometry: Geometry, weights: Array, f: int) -> float:
    """The certificate of any weights on n rows, f of which may be corrupt; in the rows' units.

    f corrupt rows can have moved the answer by at most this at these weights: it is that close to the mean of
    the honest rows alone at the same weights, and may be further from their plain mean. Weights are finite,
    not negative and not all 0; only their ratios count. f is a whole number from 0 to n.

    With w the weights, λ the top eigenvalue of the w-weighted covariance and a the sum of the f largest
    weights, that distance is at most sqrt(a/(1−a)·λ): corrupt weight m ≤ a that moves the mean by t along a
    direction puts variance t²(1−m)/m there. Nothing is assumed of the honest rows. Infinite when the f
    heaviest rows hold all the weight; 0 when f is 0.

    On a sketch it is measured on another geometry of the same rows, `geometry.check`, that had no part in
    choosing the weights: the direction in which the mean was moved does not depend on its random numbers,
    and this one direction is all that it has to keep. Up to 2,048 rows it is the exact Gram matrix; beyond,
    a second sketch, and the claim fails with a probability below 1e-6 (`projection.distortion`).

    Args:
        geometry: The geometry of the rows, from `randeigen.geometry.measure`.
        weights: (n,) the weights of any mean of these rows, however they were chosen.
        f: How many of the n rows may be corrupt.

    Returns:
        The bound, 0 or more; inf where there is none.

    Raises:
        BadFraction: `f` is no whole number from 0 to n.
        BadRows: The weights are not n finite numbers from 0, or this is no geometry.

    Examples:
        >>> import numpy as np, randeigen
        >>> from randeigen.geometry import measure
        >>> from randeigen.rows import as_rows
        >>> geometry, unusable = measure(as_rows(np.eye(4)))
        >>> round(randeigen.certify(geometry, np.ones(4), f=1), 3)  # sqrt(1/3 · 1/4)
        0.289
    """
    weights = _checked(geometry, weights, f)
    measured = geometry.check or geometry
    top = measured.top_direction(weights)
    variance = math.inf if _beyond(geometry, weights) else top.variance + top.allowance
    return bound(measured, weights, f, variance)


def _checked(geometry: Geometry, weights: Any, f: int) -> Array:
    """The weights as float64; refuses what is no geometry, no weights or no f."""
    if not isinstance(geometry, Geometry):
        found = type(geometry).__name__
        raise BadRows(
            f"certify needs the geometry of the rows, found {found}; randeigen.geometry.measure makes one."
        )
    n = geometry.n
    if isinstance(f, bool) or not isinstance(f, (int, np.integer)) or not 0 <= f <= n:
        raise BadFraction(f"f={f!r} of {n} rows; give how many may be corrupt, a whole number from 0 to {n}.")
    try:
        checked = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadRows(f"weights are {type(weights).__name__}, not numbers; give one for each row.") from None
    if checked.shape != (n,):
        raise BadRows(f"weights have shape {checked.shape}, but there are {n} rows; give one for each row.")
    wrong = np.flatnonzero(~(np.isfinite(checked) & (checked >= 0)))
    if wrong.size:
        found = f"weight {wrong[0]} is {checked[wrong[0]]}"
        raise BadRows(f"weights must be finite and not negative, but {found}; give 0 to leave a row out.")
    largest = float(checked.max())
    if largest == 0:
        raise BadRows("weights are all 0, so there is no mean to certify; give at least one row some weight.")
    return checked if 1e-100 < largest < 1e100 else np.asarray(checked / largest)


def bound(geometry: Geometry, weights: Array, f: int, variance: float) -> float:
    """The certificate where the top variance under these weights, or a bound on it, is already known.

    On a sketch that was used to choose the weights this is an estimate; see `certify`.
    """
    held, rest = corruptible(weights, f)
    if held <= 0:
        return 0.0
    if rest <= 0:
        return math.inf
    if geometry.distortion >= 1 or _beyond(geometry, weights):
        return math.inf
    # A Gram matrix gives λ to its own rounding, a sketch to 1 ± distortion: claim no more than that.
    variance = (variance + geometry.rounding_error(weights)) / (1 - geometry.distortion)
    # Of rows that were mixed the table may hold rounding alone, and that may be negative.
    return geometry.unit * math.sqrt(held / rest * max(variance, 0.0))


def _beyond(geometry: Geometry, weights: Array) -> bool:
    """Whether a row has weight that is further out than was measured."""
    return geometry.beyond is not None and bool((weights[geometry.beyond] > 0).any())


def corruptible(weights: Array, f: int) -> tuple[float, float]:
    """The weight that the f heaviest rows hold, and that of all others."""
    if f <= 0:
        return 0.0, float(weights.sum())
    if f >= weights.size:
        return float(weights.sum()), 0.0
    cut = weights.size - f
    ordered = np.sort(weights)
    return float(ordered[cut:].sum()), float(ordered[:cut].sum())
