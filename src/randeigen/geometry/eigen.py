"""Top eigenpairs: what all ways to find them share, the dense one, and the paper's power iteration."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from randeigen.types import Array

Operator: TypeAlias = Callable[[Array], Array]

MAX_DENSE_ROWS = 40  # rows up to which a dense decomposition is fastest
RELATIVE_RESIDUAL = 1e-10  # of the eigenvalue, whose own error is the residual squared over the gap
MAX_PLAIN_EXPONENT = 300  # numbers within 2**±300 can be squared twice
MAX_POWER_STEPS = 200  # power iterations where LAPACK has failed
TINY = float(np.finfo(float).tiny)


class Top(NamedTuple):
    """A top eigenpair: the eigenvalue lies between `value` and `value + allowance`."""

    value: float
    vector: Array  # of unit norm
    allowance: float = 0.0

    def scaled(self, exponent: int) -> Top:
        """That of the same matrix times 2**exponent."""
        return Top(_shifted(max(self.value, 0.0), exponent), self.vector, _shifted(self.allowance, exponent))


def top_dense(matrix: Array, start: Array) -> Top:
    """By LAPACK; where that fails, by power iteration, with an allowance up to the Frobenius norm."""
    values, vectors = decomposed(matrix)
    if np.isfinite(values[-1]):
        return Top(max(float(values[-1]), 0.0), vectors[:, -1])
    peak = float(abs(matrix).max())
    if not math.isfinite(peak):
        return Top(math.inf, unit(start[:, 0]))
    exponent = binary_exponent(peak)
    matrix = np.ldexp(matrix, -exponent)
    vector = unit(power_iteration(partial(np.dot, matrix), unit(start[:, 0]), MAX_POWER_STEPS))
    value = max(float(vector @ matrix @ vector), 0.0)
    return Top(value, vector, math.sqrt(np.vdot(matrix, matrix)) - value).scaled(exponent)


def unit(vector: Array) -> Array:
    """The vector over its norm, whatever that is; the first axis if it has none."""
    peak = float(abs(vector).max())
    if not 0 < peak < math.inf:
        return np.asarray(np.eye(1, vector.size)[0])
    vector = np.ldexp(vector, -math.frexp(peak)[1])
    return np.asarray(vector / math.sqrt(vector @ vector))


def binary_exponent(size: float) -> int:
    """0 while numbers of this size can be squared and squared again, else what brings them to 1."""
    exponent = math.frexp(size)[1] if math.isfinite(size) else 0
    return exponent if abs(exponent) > MAX_PLAIN_EXPONENT else 0


def _shifted(value: float, exponent: int) -> float:
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.inf


def decomposed(matrix: Array) -> tuple[Array, Array]:
    """numpy's eigenvalues and eigenvectors, NaN where it does not converge."""
    try:
        values, vectors = np.linalg.eigh(matrix)
    except np.linalg.LinAlgError:
        values, vectors = np.full(matrix.shape[0], math.nan), np.full(matrix.shape, math.nan)
    return values, vectors


def power_iteration(apply: Operator, start: Array, steps: int) -> Array:
    """A fixed number of steps from `start`, however far that gets; zero if the operator is."""
    vector = start
    for _ in range(steps):
        vector = apply(vector)
        if not vector.any():
            break
        vector = unit(vector)
    return vector
