"""The top direction of hundreds of rows and more from a Gram matrix that is only multiplied with vectors.

Directions are combinations of the rows: a stands for Σ aᵢ·xᵢ, and two of them have the inner product
a'·G·b. The ones found for earlier weights are kept, with their images G·a: weights change from round to
round, rows do not.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.arrays import is_tensor, joined, to_host_float64
from randeigen.backend.batched import beside
from randeigen.geometry.eigen import decomposed
from randeigen.geometry.lanczos import upper_allowance
from randeigen.types import Array

MAX_RESIDUAL = 0.05  # of the eigenvalue: how far a direction may be from being an eigenvector
MAX_DIRECTIONS = 64  # kept from round to round; beyond that only the best
KEPT_DIRECTIONS = 16
MAX_PRODUCTS = 60  # for one set of weights
MIN_NORM = 1e-6  # of a new direction, relative to what it was before the others were subtracted
STEPS = (48, 96, 192)  # of Lanczos behind an upper bound, until it is near enough
MAX_RELATIVE_BEYOND = 0.05  # of the eigenvalue: how much too high an upper bound may be
ROUNDING = 1e-12  # of a link between Lanczos vectors


class RitzDirection(NamedTuple):
    """The top direction within a subspace."""

    value: float  # the variance along it
    projections: Array  # (n,) of the rows on it, from the weighted mean


class GramSubspace:
    """Grows until the top direction under the weights at hand lies in it, but for MAX_RESIDUAL.

    All that has a number for each row is where the Gram matrix is, a tensor. A step makes one more direction
    of the residual and one transfer, which says how large that was and what the subspace looks like with it.
    """

    def __init__(self, gram: Any, start: Array) -> None:
        self._gram, self._start = gram, start
        self._count = 0
        # (q, n) combinations of rows with a'·G·b = 1 if a is b, else 0; and G·a of each: all that is known
        self._directions, self._images = gram.new_zeros((2, MAX_DIRECTIONS + 1, len(start)))

    def top(self, w: Array) -> RitzDirection:
        """The top direction under weights that sum to 1."""
        weights = beside(w, self._gram)
        if not self._count:
            start = beside(self._start, self._gram)
            self._extend(start, self._gram @ start)
        if not self._count:
            return RitzDirection(0.0, np.zeros(w.size))
        shape = to_host_float64(self._covariance(weights))
        for _ in range(MAX_PRODUCTS):
            values, vectors = decomposed(shape)
            value = float(values[-1])
            if not 0 < value < math.inf:
                return RitzDirection(max(value, 0.0) if value < math.inf else value, np.zeros(w.size))
            if self._count >= MAX_DIRECTIONS:
                vectors = self._keep(vectors)
            q, inner = self._count, beside(np.ascontiguousarray(vectors[:, -1]), self._gram)
            projections = inner @ self._centred(weights)
            residual = weights * projections - value * (inner @ self._directions[:q])
            image = self._gram @ residual
            norms = self._put(residual, image)
            numbers = to_host_float64(joined((norms, self._covariance(weights, q + 1).reshape(-1))))
            square, left = numbers[:2].tolist()
            if math.sqrt(max(square, 0.0)) <= MAX_RESIDUAL * value or not self._is_new(square, left):
                break
            self._count, shape = q + 1, numbers[2:].reshape(q + 1, q + 1)
        return RitzDirection(value, to_host_float64(projections))

    def _centred(self, weights: Any, count: int | None = None) -> Any:
        """(q, n) what the rows have of each direction, from the weighted mean."""
        images = self._images[: count or self._count]
        return images - (images @ weights)[:, None]

    def _covariance(self, weights: Any, count: int | None = None) -> Any:
        """(q, q) the weighted covariance within the subspace."""
        centred = self._centred(weights, count)
        return (centred * weights) @ centred.T

    def _keep(self, vectors: Array) -> Array:
        """Only the best directions; the Ritz vectors in these."""
        best = beside(np.ascontiguousarray(vectors[:, -KEPT_DIRECTIONS:].T), self._gram)
        for each in (self._directions, self._images):
            each[:KEPT_DIRECTIONS] = best @ each[: self._count]
        self._count = KEPT_DIRECTIONS
        return np.eye(KEPT_DIRECTIONS)

    def _extend(self, direction: Any, image: Any) -> None:
        """One more direction, if it is one."""
        square, left = to_host_float64(self._put(direction, image)).tolist()
        self._count += self._is_new(square, left)

    def _put(self, direction: Any, image: Any) -> Any:
        """A direction behind the others, less what it has of them: (2,) its squares before and after."""
        q, square = self._count, direction @ image
        for _ in range(2):  # rounding lets old directions back in
            shares = self._images[:q] @ direction
            direction = direction - shares @ self._directions[:q]
            image = image - shares @ self._images[:q]
        left = direction @ image
        self._directions[q], self._images[q] = direction / left.sqrt(), image / left.sqrt()
        return joined((square.reshape(1), left.reshape(1)))

    @staticmethod
    def _is_new(square: float, left: float) -> bool:
        return bool(left > MIN_NORM**2 * square > 0 and left < math.inf)


def upper_bound(gram: Any, w: Any, start: Any) -> float:
    """What the variance along no direction exceeds under weights that sum to 1, where the matrix is.

    By Lanczos from a secret start that is uniform among directions; it fails with a chance of at most
    FAILURE_PROBABILITY (`lanczos`). Nobody waits for a step before the next: only the coefficients are read.
    """
    n, lanczos = w.shape[0], _Lanczos(gram, w, start)
    for steps in STEPS:
        diagonals, links = lanczos.coefficients(min(steps, n))
        largest = float(np.nanmax(np.maximum(abs(diagonals), links)))
        ends = np.flatnonzero(~(links > ROUNDING * largest))  # where the directions reached are all there are
        used = slice(int(ends[0]) + 1 if ends.size else links.size)
        tridiagonal = np.diag(diagonals[used]) + np.diag(links[used][:-1], 1) + np.diag(links[used][:-1], -1)
        values = decomposed(tridiagonal)[0]
        top = float(values[-1])
        if not top < math.inf:
            return math.inf
        beyond = upper_allowance(values, links[used], n)
        if ends.size or steps >= n or beyond <= MAX_RELATIVE_BEYOND * top:
            break
    return max(top, 0.0) + beyond


class _Lanczos:
    """The weighted covariance in the orthonormal basis that Lanczos makes, step by step."""

    def __init__(self, gram: Any, w: Any, start: Any) -> None:
        n, root, shift = w.shape[0], w**0.5, gram @ w
        shift = shift - w @ shift / 2
        self._gram, self._root, self._done = gram, root, 0
        # The covariance is diag(root)·gram·diag(root) less what these two lines make of it.
        empty = gram.new_empty if is_tensor(gram) else np.empty
        self._lines = empty((2, n))
        self._lines[0], self._lines[1] = root, root * shift
        self._basis, self._out = empty((STEPS[-1] + 1, n)), empty((2, STEPS[-1]))
        self._basis[0] = start / (start @ start) ** 0.5

    def coefficients(self, steps: int) -> tuple[Array, Array]:
        """Diagonals and links after so many steps; those of earlier ones are kept."""
        lines, basis, out = self._lines, self._basis, self._out
        for j in range(self._done, steps):
            earlier = basis[: j + 1]
            image = self._root * (self._gram @ (self._root * basis[j]))
            shares = lines @ basis[j]
            image = image - shares[1] * lines[0] - shares[0] * lines[1]
            shares = earlier @ image
            out[0, j] = shares[j]
            image = image - shares @ earlier
            image = image - (earlier @ image) @ earlier  # once more: rounding lets old directions back in
            out[1, j] = (image @ image) ** 0.5
            basis[j + 1] = image / out[1, j]
        self._done = steps
        diagonals, links = to_host_float64(out[:, :steps])
        return diagonals, links
