"""The top eigenpair of a symmetric positive operator on n numbers."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from randeigen.geometry.lanczos import (
    MAX_LANCZOS_STEPS,
    RELATIVE_RESIDUAL,
    Top,
    binary_exponent,
    decomposed,
    power_iteration,
    top_of_operator,
    unit,
)
from randeigen.types import Array, Mask

MAX_DENSE_ROWS, MAX_BLOCK_ROWS = (
    40,
    160,
)  # up to these sizes a dense decomposition, then powers on a block, are fastest
SEMICIRCLE = 2.2  # widths from the middle to the end of a round cloud's spectrum, with some room
TARGET_GROWTH = 1e13  # what the top must gain on the bulk to be exact
MAX_CHEBYSHEV_DEGREE = 48  # products to get there; looking at what there is costs as much as ten
EARLY_CHECK_DEGREE = 8  # products after which a top that stands out has begun to grow
SQUARINGS = 6
CACHE_LINE_NUMBERS = 8  # numbers that a line of the cache holds
MAX_SINGLE_THREAD_PRODUCTS = 9_000  # multiplications that OpenBLAS does not share out
MIN_PART_ROWS = 8  # rows: below that the parts cost more than they save
TINY = float(np.finfo(float).tiny)


def top_of_covariance(matrix: Array, half: Array, start: Array) -> Top:
    """Largest eigenvalue and its unit eigenvector of a weighted covariance as the rows see it.

    `half`, the roots of the weights, is the direction in which it is 0. `start`, (n, p), holds directions
    nobody can arrange to be orthogonal to the answer: secret random ones.

    The allowance is 0 up to n = DENSE (LAPACK is exact to rounding), the residual up to BLOCKS, and beyond
    that what `top_of_operator` claims. A matrix with a number that is not finite has an infinite eigenvalue.
    """
    n, size = matrix.shape[0], float(matrix.trace())
    if not 0 < size < math.inf:  # rounding is all there is, or its sum overflows
        size = float(abs(matrix).max())
    exponent = binary_exponent(size)
    if exponent:  # by a power of two: no bit of an ordinary result depends on it
        matrix = np.ldexp(matrix, -exponent)
    if n > MAX_BLOCK_ROWS:
        found = top_of_operator(partial(_product, matrix), start)
    else:
        found = (_top_by_blocks(matrix, half, start) if n > MAX_DENSE_ROWS else None) or top_dense(
            matrix, start
        )
    return found.scaled(exponent)


def top_dense(matrix: Array, start: Array) -> Top:
    """By LAPACK; where that finds nothing, by powers, with an allowance up to the Frobenius norm."""
    values, vectors = decomposed(matrix)
    if np.isfinite(values[-1]):
        return Top(max(float(values[-1]), 0.0), vectors[:, -1])
    peak = float(abs(matrix).max())
    if not math.isfinite(peak):
        return Top(math.inf, unit(start[:, 0]))
    exponent = binary_exponent(peak)
    matrix = np.ldexp(matrix, -exponent)
    vector = unit(power_iteration(partial(np.dot, matrix), unit(start[:, 0]), MAX_LANCZOS_STEPS))
    value = max(float(vector @ matrix @ vector), 0.0)
    return Top(value, vector, math.sqrt(np.vdot(matrix, matrix)) - value).scaled(exponent)


class _Case(NamedTuple):
    """A covariance, and where the bulk of its spectrum lies."""

    matrix: Array
    moved: Array  # the same with its null direction moved into the bulk
    live: Mask
    low: float  # where the bulk begins
    width: float  # of the spectrum: the root mean square distance from its middle


class _Seen(NamedTuple):
    """What a block of directions shows of the spectrum."""

    value: float
    vector: Array
    off: float  # how far these two are from an eigenpair; at most 1 will do
    residual: float  # the same in the matrix's own units: an eigenvalue lies within it
    least: float
    basis: Array


def _top_by_blocks(matrix: Array, half: Array, start: Array) -> Top | None:
    """By polynomials of the matrix on a block of directions. None if the top is too crowded.

    A pair is returned only if its residual is at most RESIDUAL. That it is the top one rests on the start:
    every direction at the top grows as much as the one found, so to be missed it must have been all but
    orthogonal to each of the secret directions, whose chance is about (RESIDUAL·sqrt(n))**p.

    A few small eigenvalues, rows that lost much of their mass, widen the spectrum until its top lies within
    what looks like the bulk. Filtering notices, and leaves that to squaring.
    """
    live = half > 0
    rank = max(int(np.count_nonzero(live)) - 1, 1)
    middle = float(matrix.trace()) / rank
    width = math.sqrt(max(float(np.vdot(matrix, matrix)) / rank - middle * middle, 0.0))
    if not (middle > 0 and 0 < width < math.inf):  # rounding is all there is, or its squares overflow
        return None
    low = max(middle - SEMICIRCLE * width, 0.0)
    moved = matrix + (middle * half)[:, None] * half if low > 0 else matrix
    case = _Case(matrix, moved, live, low, width)
    start = np.multiply(start.T, live, order="C")
    # Of a semicircle's eigenvalues five lie beyond this: a block of eight holds them.
    high = middle + max(2 - (24 / rank) ** (2 / 3), 1.0) * width
    return _top_by_filtering(case, start, high) or _top_by_squaring(case, start)


def _top_by_filtering(case: _Case, block: Array, high: float) -> Top | None:
    """By Chebyshev polynomials that keep small what lies in the bulk. None if nothing stands out of it."""
    low = min(case.low, float(case.matrix.diagonal()[case.live].min())) if case.low > 0 else 0.0
    goal, before = TARGET_GROWTH, math.inf
    while True:
        grown = _grown(case.moved, low, high, block, goal)
        if grown is None:
            return None
        seen = _look(case, grown)
        if not seen.value > high:  # what grew lies below the bulk, or LAPACK failed
            return None
        if seen.off <= 1:
            return Top(seen.value, seen.vector, seen.residual)
        if not seen.off < before / 10:
            return None
        block, high, goal, before = seen.basis, max(high, seen.least), 10 * seen.off, seen.off


def _grown(matrix: Array, low: float, high: float, block: Array, goal: float) -> Array | None:
    """The block times a polynomial that is at most 1 between `low` and `high` and soon large beyond."""
    p, n = block.shape
    wide = n + -n % CACHE_LINE_NUMBERS
    step = _aligned(wide)
    np.multiply(matrix, 4 / (high - low), out=step[:n, :n])
    step.reshape(-1)[:: wide + 1] -= 2 * (high + low) / (high - low)
    before = np.zeros((p, wide))
    before[:, :n] = block
    after, spare = np.dot(before, step) / 2, np.empty_like(before)
    size = np.vdot(before, before)
    enough = size * goal**2
    for k in range(2, MAX_CHEBYSHEV_DEGREE + 1):
        np.dot(after, step, out=spare)
        spare -= before
        before, after, spare = after, spare, before
        if k % 2:  # asking how far it got costs a third of a product
            continue
        now = np.vdot(after, after)
        if now >= enough:
            break
        if k == EARLY_CHECK_DEGREE and now < size:
            return None
    return np.asarray(after[:, :n])


def _aligned(n: int) -> Array:
    """An n×n table of zeros that begins where a line of the cache does: BLAS takes half as long over it."""
    room = np.zeros(n * n + CACHE_LINE_NUMBERS)
    skip = -(room.ctypes.data // room.itemsize) % CACHE_LINE_NUMBERS
    return room[skip : skip + n * n].reshape(n, n)


def _top_by_squaring(case: _Case, block: Array) -> Top | None:
    """By a 64th power: a handful of small products. None if that does not converge.

    The power is that of the matrix less the bulk of its spectrum: of a round cloud in many dimensions all
    eigenvalues are nearly alike, and only what they have beyond the least one tells them apart.
    """
    power = case.moved.copy()
    power[case.live, case.live] -= case.low
    for _ in range(SQUARINGS):
        power /= max(float(abs(power).max()), TINY)
        power = np.dot(power, power.T)  # symmetric, and so written: BLAS then does half the work
    before = math.inf
    while True:
        seen = _look(case, np.dot(block, power))
        if seen.off <= 1:
            return Top(seen.value, seen.vector, seen.residual)
        if not seen.off < before / 10:  # too slow: the top is crowded
            return None
        block, before = seen.basis, seen.off


def _look(case: _Case, block: Array) -> _Seen:
    """The widest direction that some directions span."""
    basis = np.linalg.qr(block.T)[0]
    image = np.dot(case.matrix, basis)
    values, vectors = decomposed(np.dot(basis.T, image))
    value, top = float(values[-1]), vectors[:, -1]
    vector = np.dot(basis, top)
    rest = np.dot(image, top) - value * vector
    # Relative to what tells the eigenvalues apart, not to their size: else a round cloud passes at once.
    allowed = max(RELATIVE_RESIDUAL * min(value, 4 * case.width), TINY)
    residual = math.sqrt(rest @ rest)
    return _Seen(value, vector, residual / allowed, residual, float(values[0]), basis.T)


def _product(matrix: Array, vector: Array) -> Array:
    """Their product in parts so small that BLAS keeps to one thread; waking a busy one can cost 8 ms."""
    n, rows = vector.size, MAX_SINGLE_THREAD_PRODUCTS // vector.size
    if rows >= n or rows < MIN_PART_ROWS:
        return np.asarray(np.dot(matrix, vector))
    out = np.empty(n)
    for i in range(0, n, rows):
        np.dot(matrix[i : i + rows], vector, out=out[i : i + rows])
    return out
