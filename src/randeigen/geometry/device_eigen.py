"""What `block_eigen` does by polynomials on a block of directions, where the matrix is a tensor on a GPU."""

from __future__ import annotations

from randeigen.backend.arrays import like, to_host_float64
from randeigen.geometry.block_eigen import EARLY_CHECK_DEGREE, MAX_CHEBYSHEV_DEGREE, Spectrum
from randeigen.types import Array


def grown_on_device(
    spectrum: Spectrum, scale: float, shift: float, block: Array, size: float, enough: float
) -> Array | None:
    """`block_eigen._grown` where the matrix is; its growth is looked at seldom, as that has to be awaited."""
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
