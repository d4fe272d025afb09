"""What `eigen` does by polynomials on a block of directions, where the matrix is a tensor on a GPU."""

from __future__ import annotations

import math

from randeigen.backend.arrays import like, to_host_float64
from randeigen.geometry.eigen import (
    EARLY_CHECK_DEGREE,
    MAX_CHEBYSHEV_DEGREE,
    TINY,
    Spectrum,
    Top,
    times,
    top_ritz_pair,
)
from randeigen.types import Array

SQUARINGS = 6  # the matrix to the power 2^6


def grown_on_device(
    spectrum: Spectrum, scale: float, shift: float, block: Array, size: float, enough: float
) -> Array | None:
    """`eigen._grown` where the matrix is; its growth is looked at seldom: somebody has to wait for it."""
    step = (spectrum.matrix + spectrum.raised) * scale
    step.diagonal().sub_(shift)
    before = like(block, step)
    after = before @ step / 2
    for k in range(2, MAX_CHEBYSHEV_DEGREE + 1):
        before, after = after, before.addmm(after, step, beta=-1)
        if k % EARLY_CHECK_DEGREE:
            continue
        now = float((after * after).sum())
        if now >= enough:
            break
        if k == EARLY_CHECK_DEGREE and now < size:
            return None
    return to_host_float64(after)


def top_by_squaring(spectrum: Spectrum, block: Array) -> Top | None:
    """By a 64th power: a handful of small products. None if that does not converge.

    The power is that of the matrix less the bulk of its spectrum: of isotropic rows in many dimensions all
    eigenvalues are nearly alike, and only what they have beyond the least one tells them apart.
    """
    power = spectrum.matrix + spectrum.raised
    power.reshape(-1)[:: len(power) + 1] -= like(spectrum.low * spectrum.weighted, power)
    for _ in range(SQUARINGS):
        power /= max(float(abs(power).max()), TINY)
        power = power @ power.T  # symmetric, and so written: BLAS then does half the work
    before = math.inf
    while True:
        pair = top_ritz_pair(spectrum, times(power, block.T).T)
        if pair.will_do(spectrum):
            return Top(pair.value, pair.vector, pair.residual)
        if not pair.off < before / 10:  # too slow: the top is crowded
            return None
        block, before = pair.basis, pair.off
