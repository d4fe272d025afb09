"""The paper's Gaussian sketch, drawn from its distribution instead of made by a projection.

The sketch of rows X is Y = X·A, with entries N(0, 1/k) in A. Given X, its k columns are independent and each
is N(0, X·Xᵀ/k): all that Y tells of X it tells through the Gram matrix. So with any root L of it, for which
L·Lᵀ = X·Xᵀ, and an n×k matrix Z of entries N(0, 1/k), L·Z has the distribution of Y, and d·k random numbers
become n·k.
"""

from __future__ import annotations

import math

import numpy as np

from randeigen.backend.random_streams import Stream
from randeigen.geometry.gram_accumulator import GramAccumulator
from randeigen.geometry.projection import key_of, tile_generator
from randeigen.geometry.sketch import SketchGeometry
from randeigen.types import Array, Block, Mask


class GaussianLawAccumulator:
    """Accumulates the exact Gram matrix, and draws from it a sketch of k columns."""

    block_multiple = GramAccumulator.block_multiple
    copies_parts = GramAccumulator.copies_parts

    def __init__(self, n: int, k: int, seed: int, eps_jl: float) -> None:
        self.exact, self.k, self.eps_jl = GramAccumulator(n, seed), k, eps_jl
        self.unusable: Mask = self.exact.unusable  # the same array
        self._generator = tile_generator(key_of(seed, Stream.GAUSSIAN_PROJECTION), 0)

    def add(self, columns: slice, block: Block) -> None:
        """One block of columns."""
        self.exact.add(columns, block)

    def geometry(self) -> SketchGeometry:
        """The sketch, and the Gram matrix for its certificate. The origin's point is the last."""
        exact = self.exact.geometry()
        normals = self._generator.standard_normal((exact.n + 1, self.k)) / math.sqrt(self.k)
        points = root_of(exact.gram) @ normals
        return SketchGeometry(
            points[:-1],
            points[-1],
            exact.prior_weights,
            self.exact.start,
            exact.scale,
            exact.precision,
            self.eps_jl,
            exact.beyond,
            exact,
            exact.floor,
        )


def root_of(gram: Array) -> Array:
    """L with L·Lᵀ = gram. Rows are brought to one norm first: a long one takes no digits from the others."""
    norms = np.sqrt(np.maximum(gram.diagonal(), 0.0))
    unit = np.where(norms > 0, norms, 1.0)
    values, vectors = np.linalg.eigh(gram / unit[:, None] / unit)
    return np.asarray(norms[:, None] * (vectors * np.sqrt(np.maximum(values, 0.0))))
