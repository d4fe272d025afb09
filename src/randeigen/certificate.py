"""How far off an answer can be, whoever lied and whatever the honest rows are."""

from __future__ import annotations

import math

import numpy as np

from randeigen.types import Array, Geometry


def certify(geometry: Geometry, weights: Array, f: int) -> float:
    """Largest distance f corrupt rows can have put between this mean and that of the honest rows alone.

    With w the weights, λ the top eigenvalue of the w-weighted covariance and a the sum of the f largest
    weights, that distance is at most sqrt(a/(1−a)·λ): corrupt mass m ≤ a that moves the mean by t along a
    direction puts variance t²(1−m)/m there. Nothing is assumed of the honest rows. In the rows' units;
    infinite when the f heaviest rows hold all the weight.

    On a sketch it is measured on another table of the same rows, `geometry.check`, that had no part in
    choosing the weights: the direction in which the mean was moved does not depend on that table's coins,
    and this one direction is all that it has to keep. Up to 2,048 rows that table is exact; beyond, it is a
    second sketch, and the claim fails with a chance below 1e-6 (`projection.distortion`).
    """
    measured = getattr(geometry, "check", None) or geometry
    spread = measured.widest(weights)
    variance = math.inf if _beyond(geometry, weights) else spread.variance + spread.allowance
    return bound(measured, weights, f, variance)


def bound(geometry: Geometry, weights: Array, f: int, variance: float) -> float:
    """The certificate where the widest variance under these weights, or a bound on it, is already known.

    On a sketch that was used to choose the weights this is an estimate; see `certify`.
    """
    held, rest = corruptible(weights, f)
    if held <= 0:
        return 0.0
    if rest <= 0:
        return math.inf
    if geometry.distortion >= 1 or _beyond(geometry, weights):
        return math.inf
    # The table knows λ to its own rounding, a sketch to 1 ± distortion: claim no more than that.
    variance = (variance + geometry.rounding(weights)) / (1 - geometry.distortion)
    return geometry.unit * math.sqrt(held / rest * variance)


def _beyond(geometry: Geometry, weights: Array) -> bool:
    """Whether a row has weight that lies further out than the table can say."""
    beyond = getattr(geometry, "beyond", None)
    return beyond is not None and bool((weights[beyond] > 0).any())


def corruptible(weights: Array, f: int) -> tuple[float, float]:
    """The weight that the f heaviest rows hold, and that of all others."""
    if f <= 0:
        return 0.0, float(weights.sum())
    if f >= weights.size:
        return float(weights.sum()), 0.0
    cut = weights.size - f
    ordered = np.sort(weights)
    return float(ordered[cut:].sum()), float(ordered[:cut].sum())
