"""The top eigenpair of a symmetric positive operator on n numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np

from randeigen.types import Array

Operator: TypeAlias = Callable[[Array], Array]

DENSE, SQUARED = 40, 160  # up to these sizes a dense decomposition, then powers of the matrix, are fastest
SQUARINGS = 6
ALONE = 9_000  # multiplications that OpenBLAS does not share out
MANY = 8  # rows: below that the parts cost more than they save
STEPS = 200  # Lanczos steps before we settle for what there is; the eigenvalue is long exact by then
CHECKS = frozenset((14, 30, 42, 60, 90, 130))  # when to ask whether it has converged: asking costs too
RESIDUAL = 1e-10  # relative; the eigenvalue's own error is its square over the gap


def top_of_covariance(matrix: Array, half: Array, start: Array) -> tuple[float, Array]:
    """Largest eigenvalue and its unit eigenvector of a weighted covariance as the rows see it.

    `half`, the roots of the weights, is the direction in which it is 0. `start`, (n, p), holds directions
    nobody can arrange to be orthogonal to the answer: secret random ones.
    """
    n = matrix.shape[0]
    if n > SQUARED:
        return top_of_operator(partial(_product, matrix), start)
    found = _top_by_squaring(matrix, half, start) if n > DENSE else None
    if found is None:
        values, vectors = np.linalg.eigh(matrix)
        found = float(values[-1]), vectors[:, -1]
    return max(found[0], 0.0), found[1]


def _top_by_squaring(matrix: Array, half: Array, start: Array) -> tuple[float, Array] | None:
    """Block power iteration with a 64th power: a handful of small products. None if it does not converge.

    The power is that of the matrix less the bulk of its spectrum: of a round cloud in many dimensions all
    eigenvalues are nearly alike, and only what they have beyond the least one tells them apart.
    """
    live = half > 0
    rank = max(int(live.sum()) - 1, 1)
    middle = float(matrix.trace()) / rank
    if not middle > 0:  # rounding is all there is
        return None
    width = math.sqrt(max(float(np.vdot(matrix, matrix)) / rank - middle**2, 0.0))
    power = matrix + np.outer(middle * half, half)  # the null direction moves to the middle
    power[live, live] -= max(middle - 2.2 * width, 0.0)  # a semicircle's lower end
    for _ in range(SQUARINGS):
        power /= max(float(abs(power).max()), np.finfo(float).tiny)
        power = np.dot(power, power.T)  # symmetric, and so written: BLAS then does half the work
    basis, before = start, math.inf
    for _ in range(6):
        basis = np.linalg.qr(power @ basis)[0]
        image = matrix @ basis
        values, vectors = np.linalg.eigh(basis.T @ image)
        vector = basis @ vectors[:, -1]
        rest = image @ vectors[:, -1] - values[-1] * vector
        off = math.sqrt(rest @ rest)
        # Relative to what tells the eigenvalues apart, not to their size: else a round cloud passes at once.
        if off <= RESIDUAL * min(float(values[-1]), 4 * width) or width == 0:
            return float(values[-1]), vector
        if off > before / 10:  # too slow: the top is crowded
            return None
        before = off
    return None


def top_of_operator(apply: Operator, start: Array) -> tuple[float, Array]:
    """The same by Lanczos with full reorthogonalisation, so that no n×n matrix is needed."""
    start = start[:, 0]
    steps = min(start.size, STEPS)
    basis = np.empty((steps + 1, start.size))
    inside = np.zeros((steps, steps))  # the operator seen from within the basis: tridiagonal
    basis[0] = start / math.sqrt(start @ start)
    reach = previous = 0.0
    for j in range(steps):
        here, seen, new = basis[j], basis[: j + 1], basis[j + 1]
        image = apply(here)
        inside[j, j] = along = float(here @ image)
        np.subtract(image, along * here, out=new)
        if j:
            new -= previous * basis[j - 1]
        new -= np.dot(np.dot(seen, new), seen)  # once more, against all: rounding lets old directions back in
        previous, reach = math.sqrt(new @ new), max(reach, along)
        last = j + 1 == steps or previous <= 1e-14 * reach
        if last or j + 1 in CHECKS:
            values, vectors = np.linalg.eigh(inside[: j + 1, : j + 1])
            if last or previous * abs(vectors[-1, -1]) <= RESIDUAL * values[-1]:
                break
        inside[j + 1, j] = previous  # eigh reads the lower triangle
        new /= previous
    vector = np.dot(vectors[:, -1], basis[: j + 1])
    return max(float(values[-1]), 0.0), vector / math.sqrt(vector @ vector)


def _product(matrix: Array, vector: Array) -> Array:
    """Their product in parts so small that BLAS keeps to one thread; waking a busy one can cost 8 ms."""
    n, rows = vector.size, ALONE // vector.size
    if rows >= n or rows < MANY:
        return np.asarray(np.dot(matrix, vector))
    out = np.empty(n)
    for i in range(0, n, rows):
        np.dot(matrix[i : i + rows], vector, out=out[i : i + rows])
    return out


def power_iteration(apply: Operator, start: Array, steps: int) -> Array:
    """A fixed number of steps from `start`, however far that gets; zero if the operator is."""
    vector = start
    for _ in range(steps):
        vector = apply(vector)
        length = np.linalg.norm(vector)
        if length == 0:
            break
        vector = vector / length
    return vector
