"""The top eigenpairs of many small symmetric positive matrices at once.

Up to MAX_SQUARED_ROWS rows, and on a GPU, by squaring: A^1024 is ten products, which cost less than one dense
decomposition, and its trace bounds the top eigenvalue from above, λ ≤ tr(A^N)^(1/N), whatever the spectrum.
With more rows on a CPU, by a Chebyshev polynomial of each matrix on a block of secret directions. A pair
whose residual is too large, since the top is crowded, is found again: by squaring, and at last by LAPACK.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.batched import Indices, Numbers, namespace, where_true
from randeigen.geometry.block_filter import MAX_CHEBYSHEV_DEGREE, TARGET_GROWTH
from randeigen.geometry.eigen import RELATIVE_RESIDUAL

MAX_SQUARED_ROWS = 40  # rows up to which ten products of two matrices are fastest on a CPU
SQUARINGS = 10
SQUARINGS_BETWEEN = 5  # after as many a power is brought back to trace 1
POLISHING_STEPS = 2  # products with the matrix itself, which take out the rounding of its powers
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
    sizes = namespace(matrices).einsum("pii->p", matrices)
    values, vectors, allowances, converged = _tops(matrices / sizes[:, None, None], start)
    return Tops(values * sizes, vectors, allowances * sizes, converged)


def _tops(matrices: Numbers, start: Numbers) -> Tops:
    """The same of matrices of trace 1, whose numbers can be squared."""
    by_polynomials = isinstance(matrices, np.ndarray) and matrices.shape[1] > MAX_SQUARED_ROWS
    traces = namespace(matrices).einsum("pii->p", matrices)
    matrices = matrices / traces[:, None, None]  # so that they can be squared
    tops = _by_polynomials(matrices, start) if by_polynomials else _by_squaring(matrices)
    for solve in (_by_squaring, _by_decomposition) if by_polynomials else (_by_decomposition,):
        tops = _again(solve, tops, matrices)
    return tops._replace(values=tops.values * traces, allowances=tops.allowances * traces)


def _again(solve: Any, tops: Tops, matrices: Numbers) -> Tops:
    """The pairs that did not converge, found by another way."""
    index: Indices = where_true(~tops.converged)
    if not len(index):
        return tops
    for values, found in zip(tops, solve(matrices[index]), strict=True):
        values[index] = found
    return tops


def _by_squaring(matrices: Numbers) -> Tops:
    """Of matrices whose trace is 1."""
    xp = namespace(matrices)
    power, logarithms = matrices, 0.0
    for k in range(1, SQUARINGS + 1):
        power = power @ power
        if k % SQUARINGS_BETWEEN == 0:  # of trace 1, the top eigenvalue is 1/n or more: its 32nd power fits
            sizes = xp.einsum("pii->p", power)
            power = power / sizes[:, None, None]
            logarithms = logarithms + xp.log(sizes) / 2**k
    # The column with the largest diagonal entry holds at least 1/sqrt(n) of the top eigenvector.
    columns = xp.argmax(xp.einsum("pii->pi", power), 1)
    vectors = (
        xp.take_along_dim(power, columns[:, None, None], 2)
        if xp is not np
        else (np.take_along_axis(power, columns[:, None, None], 2))
    )
    for _ in range(POLISHING_STEPS):
        vectors = matrices @ (vectors / _norms(vectors))
    vectors = vectors / _norms(vectors)
    images = matrices @ vectors
    values = (vectors * images).sum(1)
    residuals = _norms(images - values[:, None] * vectors)[:, 0, 0]
    values = values[:, 0]
    most = xp.exp(logarithms) * (1 + ROUNDING)
    return Tops(
        values, vectors[:, :, 0], xp.clip(most - values, 0, None), residuals <= RELATIVE_RESIDUAL * values
    )


def _by_decomposition(matrices: Numbers) -> Tops:
    """By LAPACK, or cuSOLVER, which are exact to rounding."""
    xp = namespace(matrices)
    values, vectors = xp.linalg.eigh(matrices)
    top = xp.clip(values[:, -1], 0, None)
    return Tops(top, vectors[:, :, -1], ROUNDING * top, top >= 0)


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
    residuals = _norms(image @ inner - top[:, None, None] * vectors)[:, 0, 0]
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


def _norms(vectors: Numbers) -> Numbers:
    """(p, 1, 1) the norms of (p, n, 1) vectors; never 0."""
    xp = namespace(vectors)
    return xp.clip(xp.sqrt((vectors * vectors).sum(1)), 1e-300, None)[:, None]
