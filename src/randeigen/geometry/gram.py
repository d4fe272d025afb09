"""The exact geometry: the (n+1, n+1) Gram matrix of the rows and the origin, filled block by block."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import ClassVar

import numpy as np

from randeigen.backend.arrays import largest_magnitudes, to_host_float64
from randeigen.backend.chunking import parts, pieces
from randeigen.backend.parallel import parallel_map
from randeigen.backend.random_streams import Stream
from randeigen.backend.scaling import ScaledGram, added, in_one_unit, nothing, without
from randeigen.geometry.base import (
    START_DIRECTIONS,
    Index,
    MeasuredGeometry,
    is_offset,
    project_rows,
    random_pairs,
    top_direction_by_power,
    top_direction_of,
)
from randeigen.geometry.eigen import top_of_covariance
from randeigen.geometry.products import (
    Pivot,
    gram_of_scaled_rows,
    rounding,
    scale_exponent,
    scaled_gram,
    unlike_pivot,
)
from randeigen.types import Array, Block, Mask, TopDirection

CENTRING_ROUNDING = 2.0**-48  # of the mean square: what is left of equal rows when the mean is subtracted
USUAL_ROUNDING = 2.0**-21  # rounding of a float32 entry whose numbers nobody arranged


@dataclass(frozen=True, eq=False)
class GramGeometry(MeasuredGeometry):
    """The exact Gram matrix. The caller's origin is its last line, so norms survive a shift of all rows."""

    gram: Array  # (n+1, n+1) inner products, measured from a pivot near the rows
    prior_weights: Array  # (n,)
    start: Array  # (n, p) secret directions from which the search for the top direction starts
    unit: float = 1.0
    precision: float = 0.0  # rounding of an entry, relative to the two rows' norms
    distortion: float = 0.0
    floor: float = 0.0  # squared norms below this may have underflowed
    beyond: Mask | None = None  # (n,) rows further out than the matrix says; None: there are none
    coordinates: ClassVar[None] = None  # inner products are all there is
    origin: ClassVar[None] = None
    check: ClassVar[None] = None  # it is exact: the certificate needs no other measurement

    def top_direction(self, weights: Array) -> TopDirection:
        covariance, root_weights = self._covariance(weights)
        trace = float(covariance.trace())
        if trace <= CENTRING_ROUNDING * self._mean_square(weights):  # rounding is all there is
            return TopDirection(max(trace, 0.0), np.zeros(self.n))
        top = top_of_covariance(covariance, root_weights, self.start)
        projected = project_rows(covariance, root_weights, top.vector)
        return top_direction_of(top, projected, weights, covariance.diagonal())

    def top_direction_by_power_iteration(
        self, weights: Array, steps: int, rng: np.random.Generator
    ) -> TopDirection:
        """The paper's power iteration, run where it has the same iterates: among the rows."""
        covariance, root_weights = self._covariance(weights)
        # A Gaussian start g in d dimensions appears to the rows as X·g, whose covariance is X·Xᵀ.
        start = covariance @ rng.standard_normal(self.n)
        project = partial(project_rows, covariance, root_weights)
        return top_direction_by_power(covariance.__matmul__, project, start, steps, weights)

    def inner_products(self) -> Array:
        return self.gram[:-1, :-1]

    def squared_norms(self) -> Array:
        squares = self.gram.diagonal()
        return np.asarray(np.maximum(squares[:-1] + squares[-1] - 2 * self.gram[:-1, -1], 0.0))

    def squared_norms_from_pivot(self) -> Array:
        return np.array(self.gram.diagonal()[:-1])

    def distance_between(self, weights_a: Array, weights_b: Array) -> float:
        difference = weights_a - weights_b
        difference = np.append(difference, -difference.sum())
        return math.sqrt(max(float(difference @ self.gram @ difference), 0.0))

    def _take(self, index: Index) -> GramGeometry:
        lines = np.append(index, self.n)
        return replace(
            self,
            gram=self.gram[np.ix_(lines, lines)],
            prior_weights=self.prior_weights[index],
            start=self.start[index],
            beyond=self._beyond_among(index),
        )

    def combine_rows(self, matrix: Array) -> GramGeometry:
        """The Gram matrix of m combinations of the rows and, last, the origin.

        Rounding averages out among rows that are averaged, so no more of it is assumed than is usual.
        Certificates are made of the rows' own matrix.
        """
        lines = np.vstack((matrix, np.append(np.zeros(self.n), 1.0)))
        m = matrix.shape[0]
        return replace(
            self,
            gram=lines @ self.gram @ lines.T,
            prior_weights=np.ones(m),
            start=self.start[:m],
            precision=min(self.precision, USUAL_ROUNDING),
            beyond=self._beyond_in(matrix),
        )

    def with_prior_weights(self, prior: Array) -> GramGeometry:
        return replace(self, prior_weights=prior)

    def _covariance(self, weights: Array) -> tuple[Array, Array]:
        """sqrt(wᵢwⱼ)·⟨xᵢ − μ_w, xⱼ − μ_w⟩, which has the eigenvalues of Σ_w; and the roots of the weights."""
        inner = self.inner_products()
        w = weights / weights.sum()
        root_weights, pair = np.sqrt(w), np.ones((2, self.n))
        np.matmul(inner, w, out=pair[0])
        pair[0] -= w @ pair[0] / 2
        covariance = pair.T @ pair[::-1]  # all sums of two: BLAS is faster at them than numpy line by line
        np.subtract(inner, covariance, out=covariance)
        covariance *= np.dot(root_weights[:, None], root_weights[None])
        return covariance, root_weights


SMALLEST_EXACT_SQUARE = {4: 1e-30, 8: 1e-280}  # squares above this are exact but for rounding, by item size
LARGEST_EXACT_SQUARE = {4: math.inf, 8: 1e280}  # sums of smaller squares over all blocks fit a float64
MAX_UNDERFLOW = {
    4: 2.0**-126,
    8: 2.0**-1022,
}  # of each product, by item size: a GPU flushes smaller ones to 0
GLIMPSED_COLUMNS = 16  # columns looked at before a block is multiplied
MAX_PIVOTS = 3  # pivots tried for a block: each is set by corrupt rows only if two of its three rows are


class GramAccumulator:
    """Accumulates the exact Gram matrix block by block.

    A block is measured plainly or, if its rows are far from the origin, from a pivot. The few rows whose
    squares overflow or underflow are scaled to a norm near 1 first, at a cost that grows with their number;
    all rows are only if most of them are such.
    """

    def __init__(self, n: int, seed: int) -> None:
        self.rng = np.random.default_rng([seed, Stream.MEASUREMENT])
        self.n, self.unusable = n, np.zeros(n, dtype=bool)
        self.total = nothing(n)
        self.precision = self.underflow = 0.0  # what rounding, and underflow, may take from an entry
        self.offset = False  # whether some block was far from the origin: the next ones will be too
        self.pairs = random_pairs(n, self.rng)

    def add(self, columns: slice, block: Block) -> None:
        """One block of columns, from the first pivot near its rows: none, random ones, the median."""
        if not (self.offset or self._looks_offset(block)) and self._add_from(block, None):
            return
        self.offset = True
        for _ in range(MAX_PIVOTS):
            usable = np.flatnonzero(~self.unusable)
            if usable.size >= 3:
                three = self.rng.choice(usable, 3, replace=False)
                if self._add_from(block, (int(three[0]), int(three[1]), int(three[2]))):
                    return
        self._find_unusable(block, self._usable())
        if usable_rows := self._usable():
            self._add(*self._scaled(block, usable_rows, "median", alone=True))

    def geometry(self) -> GramGeometry:
        """The finished matrix. Lines of unusable rows are zero."""
        start = self.rng.standard_normal((self.n, START_DIRECTIONS))
        total = in_one_unit(self.total, self.unusable)
        return GramGeometry(
            total.gram,
            np.ones(self.n),
            start,
            2.0**total.exponent,
            self.precision,
            floor=total.floor + float(np.ldexp(self.underflow, -2 * total.exponent)),
            beyond=total.beyond if total.beyond.any() else None,
        )

    def _looks_offset(self, block: Block) -> bool:
        """Whether a few columns show an offset that most rows share, which saves the plain product."""
        if not isinstance(block, np.ndarray):
            return False
        few = to_host_float64(block[:, :: -(-block.shape[1] // GLIMPSED_COLUMNS)])
        few = few * 2.0 ** -scale_exponent(largest_magnitudes(few))
        i, j = self.pairs
        squares, distances = (few**2).sum(1), ((few[i] - few[j]) ** 2).sum(1)
        return is_offset(np.where(self.unusable, math.nan, squares), distances)

    def _add_from(self, block: Block, pivot_rows: Pivot | None) -> bool:
        """Add the block as measured from this pivot, unless that is far from the rows."""
        measured, precision = scaled_gram(block, pivot_rows)
        squares = measured.gram.diagonal()[:-1]
        odd = self._odd(block, squares, pivot_rows)
        if not np.isfinite(squares).any() and pivot_rows and self.unusable[list(pivot_rows)].any():
            return False  # the pivot itself is not finite
        if 2 * len(odd) > len(self._usable()):
            measured, precision = self._scaled(block, self._usable(), pivot_rows, alone=True)
            if self._is_offset(in_one_unit(measured, self.unusable).gram, []):
                return False
        else:
            measured = without(measured, odd)
            if self._is_offset(measured.gram, odd):
                return False
            if odd:
                lines, their_precision = self._scaled(block, odd, pivot_rows, alone=False)
                measured, precision = added(measured, lines), max(precision, their_precision)
        self._add(measured, precision)
        return True

    def _add(self, measured: ScaledGram, precision: float) -> None:
        measured = without(measured, np.flatnonzero(self.unusable).tolist())
        self.total = added(self.total, measured)
        self.precision = max(self.precision, precision)

    def _scaled(
        self, block: Block, index: list[int], pivot: Pivot | str | None, alone: bool
    ) -> tuple[ScaledGram, float]:
        cut = parts(block) if isinstance(block, np.ndarray) else pieces(block)
        terms = parallel_map(lambda part: gram_of_scaled_rows(part, index, pivot, alone), cut)
        return reduce(added, terms), rounding(self.n, cut[0].shape[1], block.dtype.itemsize)

    def _odd(self, block: Block, squares: Array, pivot_rows: Pivot | None) -> list[int]:
        """Rows whose squares overflowed or, where those of the typical row are too small, underflowed."""
        size = block.dtype.itemsize
        large = ~(squares < LARGEST_EXACT_SQUARE[size]) & ~self.unusable
        overflowed: list[int] = np.flatnonzero(large).tolist()
        if overflowed:
            self._find_unusable(block, overflowed)
            overflowed = [i for i in overflowed if not self.unusable[i]]
        usable_squares = squares[~self.unusable]
        small: list[int] = np.flatnonzero((squares < SMALLEST_EXACT_SQUARE[size]) & ~self.unusable).tolist()
        if not small:
            return overflowed
        small = unlike_pivot(block, small, pivot_rows)
        if usable_squares.size == 0 or np.median(usable_squares) >= SMALLEST_EXACT_SQUARE[size]:
            self.underflow += block.shape[1] * MAX_UNDERFLOW[size] if small else 0.0
            return overflowed
        return sorted({*overflowed, *small})

    def _find_unusable(self, block: Block, index: list[int]) -> None:
        """Rows that hold NaN or infinity."""
        for i in index:
            self.unusable[i] |= not np.isfinite(largest_magnitudes(block[i : i + 1])[0])

    def _usable(self) -> list[int]:
        usable: list[int] = np.flatnonzero(~self.unusable).tolist()
        return usable

    def _is_offset(self, gram: Array, odd: list[int]) -> bool:
        squares = np.where(self.unusable, math.nan, gram.diagonal()[:-1])
        squares[odd] = math.nan
        i, j = self.pairs
        return is_offset(squares, squares[i] + squares[j] - 2 * gram[i, j])
