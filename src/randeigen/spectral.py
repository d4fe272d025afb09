"""The top eigenpair of a symmetric positive operator on n numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np

from randeigen.types import Array

Operator: TypeAlias = Callable[[Array], Array]

DENSE = 40  # up to this size a dense decomposition beats any loop written in Python
STEPS = 160  # Lanczos steps before we settle for what there is; the eigenvalue is long exact by then
CHECKS = frozenset((14, 30, 42, 60, 90, 130))  # when to ask whether it has converged: asking costs too
QUIET, LOUD = 9000, 256  # numbers in a product that OpenBLAS leaves to one thread; rows from where it may not
RESIDUAL = 1e-7  # relative; the eigenvalue's own error is its square over the gap


def top_of_matrix(matrix: Array, start: Array) -> tuple[float, Array]:
    """Largest eigenvalue and its unit eigenvector of an explicit matrix."""
    if matrix.shape[0] > DENSE:
        return top_of_operator(_product(matrix), start)
    values, vectors = np.linalg.eigh(matrix)
    return max(float(values[-1]), 0.0), vectors[:, -1]


def top_of_operator(apply: Operator, start: Array) -> tuple[float, Array]:
    """The same by Lanczos with full reorthogonalisation, so that no dense decomposition is needed.

    `start` must be a direction nobody can arrange to be orthogonal to the answer: a secret random one.
    """
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


def _product(matrix: Array) -> Operator:
    """v ↦ matrix·v, kept below the size at which BLAS wakes its threads: for so little they only cost."""
    n = matrix.shape[0]
    if matrix.size <= QUIET or n > LOUD:
        return partial(np.dot, matrix)
    step = QUIET // n
    image = np.empty(n)
    parts = [(matrix[i : i + step], image[i : i + step]) for i in range(0, n, step)]

    def apply(vector: Array) -> Array:
        for part, out in parts:
            np.dot(part, vector, out=out)
        return image

    return apply


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
