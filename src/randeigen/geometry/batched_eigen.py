"""The top eigenpairs of many small symmetric positive matrices at once, without a decomposition of any.

Up to MAX_SQUARED_ROWS rows, and on a GPU, by squaring: A^64 is six products, which cost a fraction of a
dense decomposition, and a few of it with a vector, each as long a way as 64 of A, cost as much as one more.
Its trace bounds the top eigenvalue from above, λ ≤ tr(A^N)^(1/N), whatever the spectrum; and where a pair
(θ, v) has the residual r, some eigenvalue lies within r of θ, so that if it is not the top one λ, then
λ^N + (θ − r)^N ≤ tr(A^N). Where the top is crowded N goes on to 2^20: eigenvalues that are not told apart
there are equal to four digits, so any direction among theirs will do, and the bound holds all the same.
With more rows on a CPU, by a Chebyshev polynomial of each matrix on a block of secret directions; a pair
whose residual is too large is found again by squaring.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.batched import Indices, Numbers, along, namespace, where_true
from randeigen.backend.openblas import has_small_kernels
from randeigen.geometry.block_eigen import MAX_CHEBYSHEV_DEGREE, TARGET_GROWTH
from randeigen.geometry.eigen import RELATIVE_RESIDUAL

PIECE_NUMBERS = 2**17  # numbers of matrices at a time on a CPU: new memory costs more than a few steps more
MAX_SQUARED_ROWS = 56  # rows up to which ten products of two matrices are fastest on a CPU
# Squarings, and products of the power with a vector, after which the pairs that have converged are done.
STAGES = ((6, 10), (10, 6), (20, 0))
DEVICE_STAGES = ((12, 0), (20, 0))  # on a GPU a product costs less than a look at the pairs
MAX_BETWEEN = 5  # squarings after which a power is brought back to trace 1: λ ≥ 1/n, so λ^32 is a number
MIN_HALVED_ROWS = 32  # rows from which BLAS gains by making half of a symmetric product
POLISHING_STEPS = 2  # products with the matrix itself, which take out the rounding of its powers
MAX_RELATIVE_ALLOWANCE = 1e-3  # of the eigenvalue: with a larger allowance, of equal ones, squaring goes on
ROUNDING = 2.0**-44  # of an eigenvalue, of the products above
CHECK_EVERY = 4  # products of a polynomial between two looks at its growth


class Tops(NamedTuple):
    """Top eigenpairs: eigenvalue i lies between values[i] and values[i] + allowances[i]."""

    values: Numbers  # (p,)
    vectors: Numbers  # (p, n) of unit norm
    allowances: Numbers  # (p,)
    converged: Any  # (p,) whether the residual is small


def tops_of_covariances(matrices: Numbers, start: Numbers) -> Tops:
    """Largest eigenvalues of p weighted covariances in the space of their n rows, and the eigenvectors.

    Every trace is positive and finite. `start`, (k, n), holds secret random directions.
    """
    most = max(PIECE_NUMBERS // matrices.shape[1] ** 2, 1)
    if namespace(matrices) is not np or len(matrices) <= most:
        return _tops(matrices, start)
    some = [_tops(matrices[at : at + most], start) for at in range(0, len(matrices), most)]
    return Tops(*(np.concatenate(each) for each in zip(*some, strict=True)))


def _tops(matrices: Numbers, start: Numbers) -> Tops:
    xp = namespace(matrices)
    sizes = xp.einsum("pii->p", matrices)
    matrices = matrices * (1 / sizes)[:, None, None]  # of trace 1, so that they can be squared
    if xp is np and matrices.shape[1] > MAX_SQUARED_ROWS:
        tops = _by_polynomials(matrices, start)
        left = where_true(~tops.converged)
        if len(left):
            _put(tops, left, _by_squaring(matrices[left]))
    else:
        tops = _by_squaring(matrices)
    return tops._replace(values=tops.values * sizes, allowances=tops.allowances * sizes)


def _put(tops: Tops, index: Indices, others: Tops) -> None:
    for values, new in zip(tops, others, strict=True):
        values[index] = new


def _by_squaring(matrices: Numbers) -> Tops:
    """Of matrices whose trace is 1."""
    xp = namespace(matrices)
    power, left, done, tops = matrices, None, 0, None
    logarithms = xp.zeros_like(matrices[:, 0, 0])  # ln tr(A^N) / N
    for squarings, steps in STAGES if xp is np else DEVICE_STAGES:
        power, logarithms = _raised(power, logarithms, done, squarings)
        done = squarings
        latest = _pairs(matrices, power, steps, logarithms, 2.0**done)
        if tops is None:
            tops = latest
        else:
            _put(tops, left, latest)
        enough = latest.converged & (latest.allowances <= MAX_RELATIVE_ALLOWANCE * latest.values)
        some = where_true(~enough)
        if not len(some):
            break
        left = some if left is None else left[some]
        matrices, power, logarithms = matrices[some], power[some], logarithms[some]
    assert tops is not None
    return tops


def _raised(power: Numbers, logarithms: Numbers, done: int, squarings: int) -> tuple[Numbers, Numbers]:
    """The powers after more squarings, brought to trace 1, and ln tr(A^N) / N of what they were.

    Memory for thousands is taken twice, not every time.
    """
    xp = namespace(power)
    spare = xp.empty_like(power), xp.empty_like(power)
    by_half = xp is np and power.shape[1] >= MIN_HALVED_ROWS and not has_small_kernels()
    for squared in range(done + 1, squarings + 1):
        other = power.swapaxes(1, 2) if by_half else power  # A·Aᵀ is a symmetric product to numpy
        power = xp.matmul(power, other, out=spare[squared % 2])
        if squared == squarings or (squared - done) % MAX_BETWEEN == 0:
            sizes = xp.einsum("pii->p", power)
            power *= (1 / sizes)[:, None, None]
            logarithms = logarithms + xp.log(sizes) / 2.0**squared
    return power, logarithms


def _pairs(matrices: Numbers, power: Numbers, steps: int, logarithms: Numbers, exponent: float) -> Tops:
    """The top pairs, from A^N of each matrix, N the exponent; `logarithms` are ln tr(A^N) / N."""
    xp = namespace(matrices)
    # The column with the largest diagonal entry holds at least 1/sqrt(n) of the top eigenvector.
    columns = xp.argmax(xp.einsum("pii->pi", power), 1)
    vectors = along(power, columns[:, None, None])[:, 0]
    vectors = vectors / _norms(vectors)
    for _ in range(steps):
        vectors = _images(power, vectors)  # which has 1/n of the length or more, the trace being 1
    for _ in range(POLISHING_STEPS):
        vectors = _images(matrices, vectors / _norms(vectors))
    vectors = vectors / _norms(vectors)
    images = _images(matrices, vectors)
    values = _dots(vectors, images)
    residuals = _norms(images - values[:, None] * vectors)[:, 0]
    another = bound_on_another(values - residuals, logarithms, exponent)
    allowances = xp.maximum(another - values, residuals + ROUNDING * values)
    # The trace's own bound holds whatever the residual, which is large of matrices that are rounding alone.
    of_trace = xp.exp(logarithms + ROUNDING)
    allowances = xp.clip(xp.minimum(allowances, of_trace - values), 0, None)
    return Tops(values, vectors, allowances, residuals <= RELATIVE_RESIDUAL * values)


def bound_on_another(
    least: Numbers, logarithms: Numbers, exponent: float, rounding: float = ROUNDING
) -> Numbers:
    """(tr(A^N) − least^N)^(1/N): no eigenvalue is larger but the one that is known to be `least` or more."""
    xp, of_trace = namespace(least), logarithms + rounding
    shares = xp.exp(exponent * (xp.log(xp.clip(least, 1e-300, None)) - of_trace))  # least^N / tr(A^N)
    return xp.exp(of_trace + xp.log(xp.clip(1 - shares, 1e-300, None)) / exponent)


def _by_polynomials(matrices: Any, start: Any) -> Tops:
    """Chebyshev polynomials that keep the bulk of each spectrum small, then Rayleigh-Ritz (see `eigen`)."""
    diagonals = np.einsum("pii->pi", matrices)
    rank = np.maximum(np.count_nonzero(diagonals, axis=1) - 1, 1)  # rows without weight have no part in it
    middle = diagonals.sum(1) / rank
    squares = np.einsum("pij,pij->p", matrices, matrices) / rank
    width = np.sqrt(np.maximum(squares - middle * middle, 0.0))
    # Of a semicircle's eigenvalues five lie beyond this: a block of eight holds them.
    high = middle + np.maximum(2 - (24 / rank) ** (2 / 3), 1.0) * width
    block = _grown(matrices, high, np.where(diagonals[:, None] > 0, start, 0.0))
    basis = np.linalg.qr(block.swapaxes(1, 2))[0]
    image = matrices @ basis
    values, inner = np.linalg.eigh(basis.swapaxes(1, 2) @ image)
    top, inner = values[:, -1].copy(), inner[:, :, -1:]
    vectors = basis @ inner
    residuals = _norms((image @ inner - top[:, None, None] * vectors)[:, :, 0])[:, 0]
    converged = (residuals <= RELATIVE_RESIDUAL * np.minimum(top, 4 * width)) & (top > high)
    return Tops(top, vectors[:, :, 0].copy(), residuals, converged)


def _grown(matrices: Any, high: Any, block: Any) -> Any:
    """(p, k, n) the blocks times a polynomial that is at most 1 from 0 to `high` and soon large beyond."""
    step = matrices * (4 / high)[:, None, None]
    np.einsum("pii->pi", step)[...] -= 2
    before, after = block, (block @ step) / 2
    enough = np.einsum("pki,pki->p", block, block) * TARGET_GROWTH**2
    for k in range(2, MAX_CHEBYSHEV_DEGREE + 1):
        before, after = after, after @ step - before
        if k % CHECK_EVERY == 0 and (np.einsum("pki,pki->p", after, after) >= enough).all():
            break
    return after


def _images(matrices: Numbers, vectors: Numbers) -> Numbers:
    return (matrices @ vectors[:, :, None])[:, :, 0]


def _dots(a: Numbers, b: Numbers) -> Numbers:
    return namespace(a).einsum("pi,pi->p", a, b)


def _norms(vectors: Numbers) -> Numbers:
    """(p, 1) the norms of (p, n) vectors; never 0."""
    return namespace(vectors).clip(_dots(vectors, vectors) ** 0.5, 1e-300, None)[:, None]
