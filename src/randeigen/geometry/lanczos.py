"""The top eigenpair of an operator, or of a large matrix, by Lanczos, with an upper bound."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from randeigen.backend.chunking import POINT_PARTS, parallel_map
from randeigen.geometry.eigen import RELATIVE_RESIDUAL, Operator, Top, binary_exponent, decomposed, unit
from randeigen.types import Array

MAX_LANCZOS_STEPS = 200  # steps after which it stops unconverged, with an allowance for what may be missing
LANCZOS_CHECKS = frozenset(
    (14, 30, 42, 60, 90, 130)
)  # steps at which convergence is tested: a test costs too
MOSTLY_ROUNDING = 1e-6  # of the operator: a new direction this short has lost half of its digits
MAX_GROWTH = 2.0**300  # of an image beyond the first one, whose numbers are about 1
FAILURE_PROBABILITY = 1e-8  # the chance, over the secret start, that Lanczos' allowance is too small
MAX_RELATIVE_ALLOWANCE = 1e-3  # of the eigenvalue: with a larger allowance it goes on
ALLOWANCES = np.exp2(np.arange(-50.0, 11.0))  # allowances to choose from, relative to the eigenvalue
MAX_SINGLE_THREAD_PRODUCTS = 9_000  # multiplications that OpenBLAS does not share out
MIN_PART_ROWS = 8  # rows: smaller parts cost more than they save


def top_of_large_matrix(matrix: Array, start: Array) -> Top:
    """`top_of_operator` for a matrix that is at hand."""
    return top_of_operator(partial(product, matrix), start)


def top_of_operator(apply: Operator, start: Array) -> Top:
    """The top eigenpair by Lanczos with full reorthogonalisation, so that no n×n matrix is needed.

    It ends when the residual is below RELATIVE_RESIDUAL, or after MAX_LANCZOS_STEPS. The value is a Rayleigh
    quotient, so never too high; it is too low by more than the allowance with a chance of at most
    FAILURE_PROBABILITY over a start that is uniform among directions (see `upper_allowance`).
    """
    first = unit(start[:, 0])
    image = apply(first)
    peak = float(abs(image).max())
    if not math.isfinite(peak):
        return Top(math.inf, first)
    if exponent := binary_exponent(peak):
        top = top_of_operator(lambda vector: np.ldexp(apply(vector), -exponent), start)
        return top.scaled(exponent)
    steps = min(first.size, MAX_LANCZOS_STEPS)
    basis = np.empty((steps + 1, first.size))
    tridiagonal = np.zeros((steps, steps))  # the operator within the basis
    links = np.zeros(steps)
    basis[0] = first
    largest = previous = allowance = 0.0
    for j in range(steps):
        latest, earlier, new = basis[j], basis[: j + 1], basis[j + 1]
        if j:
            image = apply(latest)
            if not abs(image).max() < MAX_GROWTH:  # the first image was what rounding left of a larger one
                return top_of_operator(apply, latest[:, None])
        tridiagonal[j, j] = diagonal = float(latest @ image)
        np.subtract(image, diagonal * latest, out=new)
        if j:
            new -= previous * basis[j - 1]
        new -= np.dot(
            np.dot(earlier, new), earlier
        )  # once more, against all: rounding lets old directions back in
        previous = math.sqrt(new @ new)
        largest = max(largest, abs(diagonal), previous)  # of rounding alone the operator may be negative
        if previous <= MOSTLY_ROUNDING * largest:  # then what is left is not orthogonal yet
            new -= np.dot(np.dot(earlier, new), earlier)
            previous = math.sqrt(new @ new)
        links[j] = previous
        last = j + 1 == steps or previous <= 1e-14 * largest
        if last or j + 1 in LANCZOS_CHECKS:
            values, vectors = decomposed(tridiagonal[: j + 1, : j + 1])
            if last or previous * abs(vectors[-1, -1]) <= RELATIVE_RESIDUAL * values[-1]:
                allowance = upper_allowance(values, links[: j + 1], first.size)
                if last or allowance <= MAX_RELATIVE_ALLOWANCE * values[-1]:
                    break
        tridiagonal[j + 1, j] = previous  # eigh reads the lower triangle
        new /= previous
    if not np.isfinite(values[-1]):  # LAPACK failed on a small tridiagonal matrix: nothing is certain
        return Top(max(largest, 0.0), first, math.inf)
    return Top(max(float(values[-1]), 0.0), unit(np.dot(vectors[:, -1], basis[: j + 1])), allowance)


def upper_allowance(
    values: Array,
    links: Array,
    n: float,
    chance: float = FAILURE_PROBABILITY,
    rounding: float = 2.0**-52,
    choices: Array = ALLOWANCES,
) -> float:
    """How far above the largest of the k Ritz values the largest eigenvalue λ can lie.

    With χ(x) = Π(x − θⱼ) over the Ritz values, |χ(A)·start| is the product of the links β₁…βₖ, and it is at
    least |c|·χ(λ), where c is the start's component along the top eigenvector. For a start uniform among
    directions P(|c| ≤ t) ≤ t·sqrt(2n/π). So but for a chance of δ, Π(λ − θⱼ) ≤ Π βⱼ·sqrt(2n/π)/δ, and as the
    left side grows with λ, this bounds it. Rounded up to one of the choices, which are relative to θₖ.
    """
    top = float(values[-1])
    if not top > 0:
        return 0.0
    links = np.maximum(links / top, rounding)  # a link is known to rounding only
    most = float(np.log(links).sum()) + math.log(math.sqrt(2 * n / math.pi) / chance)
    beyond = np.log(choices[:, None] + np.maximum(1 - values / top, 0.0)).sum(axis=1) > most
    return top * float(choices[beyond.argmax()]) if beyond.any() else math.inf


def product(matrix: Array, vector: Array) -> Array:
    """Their product in parts so small that BLAS keeps to one thread; waking a busy one can cost 8 ms.

    Of large matrices each core that is free takes one part after the other.
    """
    n, rows = vector.size, MAX_SINGLE_THREAD_PRODUCTS // vector.size
    if rows >= n:
        return np.asarray(np.dot(matrix, vector))
    out = np.empty(n)

    def work(i: int) -> None:
        np.dot(matrix[i : i + rows], vector, out=out[i : i + rows])

    if rows < MIN_PART_ROWS:
        rows = -(-n // POINT_PARTS)
        parallel_map(work, range(0, n, rows))
    else:
        for i in range(0, n, rows):
            work(i)
    return out
