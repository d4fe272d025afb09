"""The top eigenpair of a covariance that is a tensor on a GPU, by squaring it.

A GPU squares a matrix of a thousand rows in the time of a few launches, and nobody waits for it in between:
A^N after a dozen of these squarings has one direction left, or few that are all but equal. The bound on what
may be missing is that of `batched_eigen`, λ ≤ tr(A^N)^(1/N), whatever the spectrum. Everything comes to the
host in one transfer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.arrays import to_host_float64
from randeigen.geometry.batched_eigen import MAX_RELATIVE_ALLOWANCE, bound_on_another
from randeigen.geometry.eigen import RELATIVE_RESIDUAL, Top, unit
from randeigen.types import Array

# Squarings after which the pair is looked at: one look costs as much as several of them. Eigenvalues that are
# not told apart after the last are equal to four digits.
STAGES = (14, 20)
MAX_BETWEEN = 4  # squarings after which a power is brought back to trace 1: λ ≥ 1/n, so λ^16 is a number
POLISHING_STEPS = 2  # products with the matrix itself, which take out the rounding of its powers
ROUNDING = 2.0**-50  # of an eigenvalue, for each row of the matrix


class SquaredTop(NamedTuple):
    """A top eigenpair of a covariance, and what else came to the host with it."""

    top: Top
    image: Array  # (n,) the covariance times the vector
    row_variances: Array  # (n,) its diagonal


def top_by_squaring(covariance: Any, is_rounding: Callable[[float], bool]) -> SquaredTop:
    """The top eigenpair of an (n, n) covariance, which is overwritten.

    Where `is_rounding` holds for its trace, that stands for the eigenvalue.
    """
    import torch

    n = len(covariance)
    row_variances = covariance.diagonal().clone()
    sizes = [row_variances.sum()]  # traces, each over a power of the one before
    power = covariance.div_(sizes[0])
    matrix, spare, done = power, (torch.empty_like(power), torch.empty_like(power)), 0
    exponents = [1.0]
    for squarings in STAGES:
        for squared in range(done + 1, squarings + 1):
            power = torch.mm(power, power, out=spare[squared % 2])
            if squared == squarings or (squared - done) % MAX_BETWEEN == 0:
                sizes.append(power.diagonal().sum())
                exponents.append(2.0**squared)
                power.div_(sizes[-1])
        done = squarings
        # The line with the largest diagonal entry holds at least 1/sqrt(n) of the top eigenvector.
        vector = power.index_select(0, power.diagonal().argmax().reshape(1))[0]
        for _ in range(POLISHING_STEPS):
            vector = torch.mv(matrix, vector)
        numbers = to_host_float64(
            torch.cat((row_variances, vector, torch.mv(matrix, vector), torch.stack(sizes)))
        )
        diagonal, at, image, traces = np.split(numbers, (n, 2 * n, 3 * n))
        trace = float(traces[0])
        if is_rounding(trace) or not 0 < trace < math.inf:
            return SquaredTop(Top(max(trace, 0.0), unit(at)), np.zeros(n), diagonal)
        logarithm = float((np.log(traces[1:]) / exponents[1:]).sum())
        pair, image, residual = _pair(at, image, logarithm, exponents[-1])
        top = Top(pair.value * trace, pair.vector, pair.allowance * trace)
        if (
            residual <= RELATIVE_RESIDUAL * pair.value
            and pair.allowance <= MAX_RELATIVE_ALLOWANCE * pair.value
        ):
            break
    return SquaredTop(top, image * trace, diagonal)


def _pair(vector: Array, image: Array, logarithm: float, exponent: float) -> tuple[Top, Array, float]:
    """The eigenpair of a matrix A of trace 1, given a vector and its image, the image and the residual.

    `logarithm` is ln tr(A^N) / N, with N the exponent.
    """
    size = math.sqrt(vector @ vector)
    if not 0 < size < math.inf:  # of rounding alone a power may be anything
        return Top(1.0, unit(vector)), np.zeros_like(image), math.inf
    vector, image = vector / size, image / size
    value = float(vector @ image)
    rest = image - value * vector
    residual, rounding = math.sqrt(rest @ rest), len(vector) * ROUNDING
    another = float(
        bound_on_another(np.array([value - residual]), np.array([logarithm]), exponent, rounding)[0]
    )
    allowance = max(another - value, residual + rounding * value)
    # The trace's own bound holds whatever the residual, which is large of a matrix that is rounding alone.
    allowance = max(min(allowance, math.exp(logarithm + rounding) - value), 0.0)
    return Top(max(value, 0.0), vector, allowance), image, residual
