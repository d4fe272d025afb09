"""The top direction of hundreds of rows and more from a Gram matrix that is only multiplied with vectors.

Directions are combinations of the rows: a stands for Σ aᵢ·xᵢ, and two of them have the inner product
a'·G·b. The ones found for earlier weights are kept, with their images G·a: weights change from round to
round, rows do not.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.arrays import is_tensor, to_host_float64
from randeigen.geometry.eigen import Operator, decomposed
from randeigen.geometry.lanczos import upper_allowance
from randeigen.types import Array

MAX_RESIDUAL = 0.05  # of the eigenvalue: how far a direction may be from being an eigenvector
MAX_DIRECTIONS = 64  # kept from round to round; beyond that only the best
KEPT_DIRECTIONS = 16
MAX_PRODUCTS = 60  # for one set of weights
MIN_NORM = 1e-6  # of a new direction, relative to what it was before the others were subtracted
FIRST_STEPS, MAX_STEPS = 48, 192  # of Lanczos behind an upper bound: doubled until it is near enough
MAX_RELATIVE_BEYOND = 0.05  # of the eigenvalue: how much too high an upper bound may be
ROUNDING = 1e-12  # of a link between Lanczos vectors


class RitzDirection(NamedTuple):
    """The top direction within a subspace."""

    value: float  # the variance along it
    projections: Array  # (n,) of the rows on it, from the weighted mean


class GramSubspace:
    """Grows until the top direction under the weights at hand lies in it, but for MAX_RESIDUAL."""

    def __init__(self, product: Operator, start: Array) -> None:
        self._product = product
        self._images = np.zeros((start.size, 0))  # (n, q) G·a of each direction; these span all that is known
        self._directions = np.zeros((start.size, 0))  # (n, q) with a'·G·b = 1 if a is b, else 0
        self._start = start

    def top(self, w: Array) -> RitzDirection:
        """The top direction under weights that sum to 1."""
        if not self._images.shape[1]:
            self._extend(self._start, self._product(self._start))
        value, projections = 0.0, np.zeros(w.size)
        for _ in range(MAX_PRODUCTS if self._images.shape[1] else 0):
            centred = self._images - w @ self._images
            values, vectors = decomposed((centred.T * w) @ centred)
            value, projections = float(values[-1]), centred @ vectors[:, -1]
            if not 0 < value < math.inf:
                break
            residual = w * projections - value * (self._directions @ vectors[:, -1])
            image = self._product(residual)
            if math.sqrt(max(float(residual @ image), 0.0)) <= MAX_RESIDUAL * value:
                break
            if self._images.shape[1] >= MAX_DIRECTIONS:
                best = vectors[:, -KEPT_DIRECTIONS:]
                self._images, self._directions = self._images @ best, self._directions @ best
            if not self._extend(residual, image):
                break
        return RitzDirection(max(value, 0.0) if value < math.inf else value, projections)

    def _extend(self, direction: Array, image: Array) -> bool:
        """One more direction, if it is one."""
        square = float(direction @ image)
        for _ in range(2):  # rounding lets old directions back in
            shares = self._images.T @ direction
            direction, image = direction - self._directions @ shares, image - self._images @ shares
        left = float(direction @ image)
        if not (left > MIN_NORM**2 * square > 0 and left < math.inf):
            return False
        norm = math.sqrt(left)
        self._directions = np.column_stack((self._directions, direction / norm))
        self._images = np.column_stack((self._images, image / norm))
        return True


def upper_bound(gram: Any, w: Any, start: Any) -> float:
    """What the variance along no direction exceeds under weights that sum to 1, where the matrix is.

    By Lanczos from a secret start that is uniform among directions; it fails with a chance of at most
    FAILURE_PROBABILITY (`lanczos`). Nobody waits for a step before the next: only the coefficients are read.
    """
    n, steps = w.shape[0], FIRST_STEPS
    while True:
        diagonals, links = lanczos_coefficients(gram, w, start, min(steps, n))
        largest = float(np.nanmax(np.maximum(abs(diagonals), links)))
        ends = np.flatnonzero(~(links > ROUNDING * largest))  # where the directions reached are all there are
        used = slice(int(ends[0]) + 1 if ends.size else links.size)
        tridiagonal = np.diag(diagonals[used]) + np.diag(links[used][:-1], 1) + np.diag(links[used][:-1], -1)
        values = decomposed(tridiagonal)[0]
        top = float(values[-1])
        if not top < math.inf:
            return math.inf
        beyond = upper_allowance(values, links[used], n)
        if ends.size or steps >= min(n, MAX_STEPS) or beyond <= MAX_RELATIVE_BEYOND * top:
            return max(top, 0.0) + beyond
        steps *= 2


def lanczos_coefficients(gram: Any, w: Any, start: Any, steps: int) -> tuple[Array, Array]:
    """Diagonals and links of the weighted covariance in the orthonormal basis that Lanczos makes."""
    root, with_mean = w**0.5, gram @ w
    basis = gram.new_empty((steps + 1, w.shape[0])) if is_tensor(gram) else np.empty((steps + 1, w.size))
    out = gram.new_empty((2, steps)) if is_tensor(gram) else np.empty((2, steps))
    basis[0] = start / (start @ start) ** 0.5
    for j in range(steps):
        shares = root * basis[j]
        image = gram @ shares - shares.sum() * with_mean
        image = root * (image - w @ image)
        out[0, j] = basis[j] @ image
        for _ in range(2):
            image = image - (basis[: j + 1] @ image) @ basis[: j + 1]
        out[1, j] = (image @ image) ** 0.5
        basis[j + 1] = image / out[1, j]
    diagonals, links = to_host_float64(out)
    return diagonals, links
