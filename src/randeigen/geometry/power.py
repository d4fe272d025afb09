"""The paper's power iteration, run among the rows."""

from __future__ import annotations

import math

import numpy as np

from randeigen.geometry.eigen import Operator, power_iteration
from randeigen.types import Array, TopDirection


def top_direction_by_power(
    apply: Operator, project: Operator, start: Array, steps: int, weights: Array
) -> TopDirection:
    """The direction v_N that the paper's power iteration reaches in N steps; `start` is B·v_0.

    With B the centred rows, the iterates are seen as u = B·v, and the direction that u stands for is Bᵀ·u: it
    is one step ahead of u, so that u makes one step less.
    """
    _, exponent = math.frexp(float(abs(start).max()))
    vector = power_iteration(apply, np.ldexp(start, -exponent), steps - 1)
    image = apply(vector)
    square = float(vector @ image)  # squared norm of the combination Σ vᵢ·xᵢ, whose direction this is
    if not 0 < square < math.inf:
        return TopDirection(max(square, 0.0), np.zeros(weights.size))
    projections = np.where(weights > 0, project(vector) / math.sqrt(square), 0.0)
    size = math.ldexp(0.5, math.frexp(square)[1])  # its squares may overflow
    return TopDirection(float((image / size) @ (image / size)) / (square / size) * size, projections)
