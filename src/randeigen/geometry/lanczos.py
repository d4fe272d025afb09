"""The top eigenpair of an operator by Lanczos, with an upper bound; and the paper's power iteration."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from randeigen.types import Array

Operator: TypeAlias = Callable[[Array], Array]

MAX_LANCZOS_STEPS = 200  # steps after which it stops unconverged, with an allowance for what may be missing
LANCZOS_CHECKS = frozenset(
    (14, 30, 42, 60, 90, 130)
)  # steps at which convergence is tested: a test costs too
RELATIVE_RESIDUAL = 1e-10  # of the eigenvalue, whose own error is the residual squared over the gap
MAX_PLAIN_EXPONENT = 300  # numbers within 2**±300 can be squared twice
FAILURE_PROBABILITY = 1e-8  # the chance, over the secret start, that Lanczos' allowance is too small
MAX_RELATIVE_ALLOWANCE = 1e-3  # of the eigenvalue: with a larger allowance it goes on
ALLOWANCES = np.exp2(np.arange(-50.0, 11.0))  # allowances to choose from, relative to the eigenvalue


class Top(NamedTuple):
    """A top eigenpair: the eigenvalue lies between `value` and `value + allowance`."""

    value: float
    vector: Array  # of unit norm
    allowance: float = 0.0

    def scaled(self, exponent: int) -> Top:
        """That of the same matrix times 2**exponent."""
        return Top(_shifted(max(self.value, 0.0), exponent), self.vector, _shifted(self.allowance, exponent))


def top_of_operator(apply: Operator, start: Array) -> Top:
    """The top eigenpair by Lanczos with full reorthogonalisation, so that no n×n matrix is needed.

    It ends when the residual is below RELATIVE_RESIDUAL, or after MAX_LANCZOS_STEPS. The value is a Rayleigh
    quotient, so never too high; it is too low by more than the allowance with a chance of at most
    FAILURE_PROBABILITY over a start that is uniform among directions (see `_missing`).
    """
    first = unit(start[:, 0])
    image = apply(first)
    peak = float(abs(image).max())
    if not math.isfinite(peak):
        return Top(math.inf, first)
    if exponent := binary_exponent(peak):
        found = top_of_operator(lambda vector: np.ldexp(apply(vector), -exponent), start)
        return found.scaled(exponent)
    steps = min(first.size, MAX_LANCZOS_STEPS)
    basis = np.empty((steps + 1, first.size))
    tridiagonal = np.zeros((steps, steps))  # the operator within the basis
    links = np.zeros(steps)
    basis[0] = first
    largest = previous = allowance = 0.0
    for j in range(steps):
        latest, earlier, new = basis[j], basis[: j + 1], basis[j + 1]
        image = apply(latest) if j else image
        tridiagonal[j, j] = diagonal = float(latest @ image)
        np.subtract(image, diagonal * latest, out=new)
        if j:
            new -= previous * basis[j - 1]
        new -= np.dot(
            np.dot(earlier, new), earlier
        )  # once more, against all: rounding lets old directions back in
        links[j] = previous = math.sqrt(new @ new)
        largest = max(largest, abs(diagonal), previous)  # of rounding alone the operator may be negative
        last = j + 1 == steps or previous <= 1e-14 * largest
        if last or j + 1 in LANCZOS_CHECKS:
            values, vectors = decomposed(tridiagonal[: j + 1, : j + 1])
            if last or previous * abs(vectors[-1, -1]) <= RELATIVE_RESIDUAL * values[-1]:
                allowance = _missing(values, links[: j + 1], first.size)
                if last or allowance <= MAX_RELATIVE_ALLOWANCE * values[-1]:
                    break
        tridiagonal[j + 1, j] = previous  # eigh reads the lower triangle
        new /= previous
    if not np.isfinite(values[-1]):  # LAPACK failed on a small tridiagonal matrix: nothing is certain
        return Top(max(largest, 0.0), first, math.inf)
    return Top(max(float(values[-1]), 0.0), unit(np.dot(vectors[:, -1], basis[: j + 1])), allowance)


def _missing(values: Array, links: Array, n: int) -> float:
    """How far above the largest of the k Ritz values the largest eigenvalue λ can lie.

    With χ(x) = Π(x − θⱼ) over the Ritz values, |χ(A)·start| is the product of the links β₁…βₖ, and it is at
    least |c|·χ(λ), where c is the start's component along the top eigenvector. For a start uniform among
    directions P(|c| ≤ t) ≤ t·sqrt(2n/π). So but for a chance of δ = FAILURE_PROBABILITY,
    Π(λ − θⱼ) ≤ Π βⱼ·sqrt(2n/π)/δ, and as the left side grows with λ, this bounds it. Rounded up to a power
    of two.
    """
    top = float(values[-1])
    if not top > 0:
        return 0.0
    links = np.maximum(links / top, 2.0**-52)  # a link is known to rounding only
    most = float(np.log(links).sum()) + math.log(math.sqrt(2 * n / math.pi) / FAILURE_PROBABILITY)
    beyond = np.log(ALLOWANCES[:, None] + np.maximum(1 - values / top, 0.0)).sum(axis=1) > most
    return top * float(ALLOWANCES[beyond.argmax()]) if beyond.any() else math.inf


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
