"""The top eigenpair of a covariance by polynomials of it on a block of directions."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from randeigen.geometry.eigen import RELATIVE_RESIDUAL, Bulk, Top, decomposed, outer
from randeigen.types import Array, Mask

TINY = float(np.finfo(float).tiny)
TARGET_GROWTH = 1e13  # factor that the top must gain on the bulk to be exact
SETTLING_GROWTH = 1e2  # factor after which it is known, but for the last digits, how large the top is
SETTLED_RESIDUAL = 1e-2  # of what tells eigenvalues apart, where it matters only how large the top one is
MAX_CHEBYSHEV_DEGREE = 48  # products to get there; a Rayleigh-Ritz step costs as much as ten
EARLY_CHECK_DEGREE = 8  # products after which a top eigenvalue outside the bulk has begun to grow
CACHE_LINE_NUMBERS = 8  # numbers that a line of the cache holds


class Spectrum(NamedTuple):
    """A covariance, and where the bulk of its spectrum lies."""

    matrix: Array
    raised: (
        Array | float
    )  # what moves its null direction into the bulk, if added: a number where that is all the same
    weighted: Mask  # (n,) rows that have weight
    least: float  # of the diagonal entries of these
    low: float  # where the bulk begins
    width: float  # standard deviation of the eigenvalues
    settled: float  # a top eigenvalue up to this need not be told from the next


class _RitzPair(NamedTuple):
    """The top Ritz pair within the span of a block of directions."""

    value: float
    vector: Array
    off: float  # the residual over what is allowed: at most 1 will do
    residual: float  # in the matrix's own units: an eigenvalue lies within it

    def will_do(self, spectrum: Spectrum) -> bool:
        if self.off <= 1:
            return True
        near = self.residual <= SETTLED_RESIDUAL * min(self.value, 4 * spectrum.width)
        return near and self.value + self.residual <= spectrum.settled


def top_by_blocks(matrix: Array, root_weights: Array, start: Array, settled: float, bulk: Bulk) -> Top | None:
    """`top_of_covariance` says what the arguments are, `bulk_of` finds the bulk. None if it is not settled.

    A pair is returned only if its residual is at most r = RELATIVE_RESIDUAL; SETTLED_RESIDUAL, where the
    eigenvalue is at most `settled`. That it is the top one rests on the start: every direction at the top
    grows as much as the one returned, so to be missed it must have been all but orthogonal to each of the
    secret directions, whose chance is about (r·sqrt(n))**p.

    A few small eigenvalues, from rows that lost much of their weight, widen the spectrum until its top lies
    within what looks like the bulk. Then it is None too.
    """
    raised = outer(bulk.middle, root_weights) if bulk.low > 0 else 0.0
    least = float(bulk.diagonal[bulk.weighted].min())
    spectrum = Spectrum(matrix, raised, bulk.weighted, least, bulk.low, bulk.width, settled)
    start = np.multiply(start.T, bulk.weighted, order="C")
    return _top_by_filtering(spectrum, start, bulk.high)


def _top_by_filtering(spectrum: Spectrum, block: Array, high: float) -> Top | None:
    """By Chebyshev polynomials that keep small what lies in the bulk. None if nothing stands out of it."""
    low = min(spectrum.low, spectrum.least) if spectrum.low > 0 else 0.0
    grown = _grown(spectrum, low, high, block, SETTLING_GROWTH if high <= spectrum.settled else TARGET_GROWTH)
    if grown is None:
        return None
    pair = _top_ritz_pair(spectrum, grown)
    # A value that is no larger: what grew lies below the bulk, or LAPACK failed.
    return (
        Top(pair.value, pair.vector, pair.residual) if pair.value > high and pair.will_do(spectrum) else None
    )


def _grown(spectrum: Spectrum, low: float, high: float, block: Array, goal: float) -> Array | None:
    """The block times a polynomial that is at most 1 between `low` and `high` and soon large beyond."""
    p, n = block.shape
    scale, shift = 4 / (high - low), 2 * (high + low) / (high - low)
    size = float(np.vdot(block, block))
    wide = n + -n % CACHE_LINE_NUMBERS
    step = _aligned(wide)
    np.multiply(spectrum.matrix, scale, out=step[:n, :n])
    if spectrum.low > 0:
        step[:n, :n] += scale * spectrum.raised
    step.reshape(-1)[:: wide + 1] -= shift
    before = np.zeros((p, wide))
    before[:, :n] = block
    after, spare = np.dot(before, step) / 2, np.empty_like(before)
    for k in range(2, MAX_CHEBYSHEV_DEGREE + 1):
        np.dot(after, step, out=spare)
        spare -= before
        before, after, spare = after, spare, before
        if k % 2:  # the test costs a third of a product
            continue
        now = np.vdot(after, after)
        if now >= size * goal**2:
            break
        if k == EARLY_CHECK_DEGREE and now < size:
            return None
    return np.asarray(after[:, :n])


def _aligned(n: int) -> Array:
    """An n×n array of zeros that begins where a line of the cache does: BLAS takes half as long over it."""
    room = np.zeros(n * n + CACHE_LINE_NUMBERS)
    skip = -(room.ctypes.data // room.itemsize) % CACHE_LINE_NUMBERS
    return room[skip : skip + n * n].reshape(n, n)


def _top_ritz_pair(spectrum: Spectrum, block: Array) -> _RitzPair:
    """Rayleigh-Ritz: the top eigenpair of the matrix within the span of some directions."""
    basis = np.linalg.qr(block.T)[0]
    image = np.dot(spectrum.matrix, basis)
    values, vectors = decomposed(np.dot(basis.T, image))
    value, top = float(values[-1]), vectors[:, -1]
    vector = np.dot(basis, top)
    rest = np.dot(image, top) - value * vector
    # Relative to what tells the eigenvalues apart, not to their size: else isotropic rows would pass at once.
    allowed = max(RELATIVE_RESIDUAL * min(value, 4 * spectrum.width), TINY)
    residual = math.sqrt(rest @ rest)
    return _RitzPair(value, vector, residual / allowed, residual)
