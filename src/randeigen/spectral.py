"""The top eigenpair of a symmetric positive operator on n numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from randeigen.types import Array

Operator: TypeAlias = Callable[[Array], Array]

DENSE = 64  # up to this size a dense decomposition beats any loop written in Python
STEPS = 160  # Lanczos steps before we settle for what there is; the eigenvalue is long exact by then
CHECKS = frozenset((8, 14, 20, 28, 40, 56, 80, 112))  # when to ask whether it has converged
RESIDUAL = 1e-9  # relative; the eigenvalue's own error is its square over the gap


def top_of_matrix(matrix: Array, start: Array) -> tuple[float, Array]:
    """Largest eigenvalue and its unit eigenvector of an explicit matrix."""
    if matrix.shape[0] > DENSE:
        return top_of_operator(matrix.__matmul__, start)
    values, vectors = np.linalg.eigh(matrix)
    return max(float(values[-1]), 0.0), vectors[:, -1]


def top_of_operator(apply: Operator, start: Array) -> tuple[float, Array]:
    """The same by Lanczos with full reorthogonalisation, so that no dense decomposition is needed.

    `start` must be a direction nobody can arrange to be orthogonal to the answer: a secret random one.
    """
    steps = min(start.size, STEPS)
    basis = np.empty((steps, start.size))
    alpha, beta = np.zeros(steps), np.zeros(steps)
    basis[0] = start / np.linalg.norm(start)
    for j in range(steps):
        seen = basis[: j + 1]
        image = apply(basis[j])
        alpha[j] = basis[j] @ image
        image = image - (seen @ image) @ seen
        image -= (seen @ image) @ seen  # twice is enough (Kahan); once is unstable
        beta[j] = np.sqrt(image @ image)
        last = j + 1 == steps or beta[j] <= 1e-14 * np.abs(alpha[: j + 1]).max()
        if last or j + 1 in CHECKS:
            values, vectors = np.linalg.eigh(
                np.diag(alpha[: j + 1]) + np.diag(beta[:j], 1) + np.diag(beta[:j], -1)
            )
            if last or beta[j] * abs(vectors[-1, -1]) <= RESIDUAL * values[-1]:
                break
        basis[j + 1] = image / beta[j]
    vector = vectors[:, -1] @ basis[: j + 1]
    return max(float(values[-1]), 0.0), vector / np.linalg.norm(vector)


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
