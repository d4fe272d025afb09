"""The exact Gram matrix of hundreds of rows and more on a GPU: it stays where the rows are."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from randeigen.backend.arrays import joined, median, to_host_float64
from randeigen.backend.batched import DeviceCloud, SoftFilter, beside
from randeigen.backend.device_blocks import has_kernels, takes
from randeigen.geometry.device_eigen import ROUNDING, top_by_squaring
from randeigen.geometry.gram import (
    CENTRING_ROUNDING,
    GramGeometry,
    Index,
    of_plain_size,
    top_direction_of,
)
from randeigen.geometry.gram_accumulator import GramAccumulator
from randeigen.geometry.gram_subspace import GramSubspace, upper_bound
from randeigen.geometry.products import UNSET, Pivot, ScaledGram, is_offset
from randeigen.geometry.wide_gram import WideGramGeometry
from randeigen.types import Array, Block, Mask, TopDirection

MAX_SHARED_ROWS = 512  # rows whose top direction is found in one launch
# Rows up to which the covariance is formed and squared, and directions are found to rounding; of more a
# subspace is kept.
MAX_SQUARED_ROWS = 1536
PLAIN_SQUARES = 2.0**-150, 2.0**200  # squared norms that are left in the caller's units


class DeviceGramAccumulator(GramAccumulator):
    """Accumulates on the device while every row can be squared as it is; else on the host, like others."""

    def __init__(self, n: int, seed: int) -> None:
        super().__init__(n, seed)
        self.gram: Any = None  # (n+1, n+1) on the device: all blocks so far, if they are there

    def _add_from(self, block: Block, pivot_rows: Pivot | None) -> bool:
        if not takes(block):
            self._to_host()
            return super()._add_from(block, pivot_rows)
        from randeigen.backend.cuda import gram_on_device

        gram, exponent, precision = gram_on_device(block, pivot_rows, self.norms)
        i, j = self._generator_and_pairs[1]
        squares, between = to_host_float64(_entries(gram, i, j))
        if pivot_rows is None:
            self.norms = np.sqrt(squares)
        odd = self._odd(block, squares, pivot_rows)
        usable = squares[~self.unusable]
        low, high = PLAIN_SQUARES
        if odd or not usable.size or not (usable.min() > low and usable.max() < high):
            self._to_host()
            exponents = np.append(np.zeros(self.n, np.int64), exponent if pivot_rows else UNSET)
            measured = ScaledGram(to_host_float64(gram), exponents)
            return self._add_measured(block, pivot_rows, measured, precision)
        squares[self.unusable] = math.nan
        if is_offset(squares, squares[i] + squares[j] - 2 * between):
            return False
        _clear(gram, self.unusable)
        if exponent:
            gram[-1] *= 2.0**exponent
            gram[:, -1] *= 2.0**exponent
        self.gram = gram if self.gram is None else self.gram + gram
        self.precision = max(self.precision, precision)
        return True

    def _to_host(self) -> None:
        """What is on the device, beside the others."""
        if self.gram is not None:
            whole = ScaledGram(to_host_float64(self.gram), np.zeros(self.n + 1, np.int64))
            self.gram = None
            self._add(whole, self.precision)

    def geometry(self) -> GramGeometry:
        """The finished matrix. Lines of unusable rows are zero."""
        if self.gram is None:
            return super().geometry()
        _clear(self.gram, self.unusable)  # some of them since a later block only
        return DeviceGramGeometry(
            self.gram,
            np.ones(self.n),
            lambda: self.start,
            precision=self.precision,
            floor=self.underflow,
            columns=self.columns,
        )


@dataclass(frozen=True, eq=False)
class DeviceGramGeometry(WideGramGeometry, DeviceCloud):
    """The exact Gram matrix, a tensor: what is n×n stays on its device, what is n×p goes to and fro."""

    @cached_property
    def _subspace(self) -> GramSubspace:
        return GramSubspace(self.gram[:-1, :-1], self.start[:, 0])

    @cached_property
    def _lines(self) -> Array:
        """(2, n+1) the diagonal and the origin's line."""
        gram: Any = self.gram
        return to_host_float64(joined((gram.diagonal(), gram[:, -1]))).reshape(2, -1)

    def _product(self, vector: Array) -> Array:
        """(n,) the inner products of each row with a combination of the rows."""
        inner: Any = self.gram[:-1, :-1]
        return to_host_float64(inner @ beside(vector, inner))

    def top_direction(self, weights: Array, settled: float = 0.0) -> TopDirection:
        w = weights / weights.sum()
        if self.n <= MAX_SQUARED_ROWS:
            return self._top_of_covariance(weights, w)
        variance, projections = self._subspace.top(w)
        if not 0 < variance < math.inf:
            return TopDirection(variance, np.zeros(self.n))
        with_mean = self._product(w)
        row_variances = (w * (self._lines[0, :-1] - 2 * with_mean + w @ with_mean))[weights > 0]
        projections = np.where(weights > 0, projections, 0.0)
        top = _Top(variance, projections, float(np.median(row_variances)))
        top.upper_bound = lambda: self._upper_bound(w)
        return top

    def _top_of_covariance(self, weights: Array, w: Array) -> TopDirection:
        """The same as of a matrix on the host; it is waited for once."""
        gram: Any = self.gram
        if self.n <= MAX_SHARED_ROWS and gram.is_cuda and has_kernels():
            return self._top_in_one_launch(weights)
        inner = gram[:-1, :-1]
        root_weights, shares = np.sqrt(w), beside(w, inner)
        roots, shift = shares.sqrt(), inner @ shares
        shift -= shares @ shift / 2
        covariance = inner - shift[:, None]
        covariance -= shift
        covariance *= roots[:, None]
        covariance *= roots
        top, image, row_variances = top_by_squaring(
            covariance, lambda trace: self._is_rounding(trace, weights)
        )
        if not image.any():
            return TopDirection(top.value, np.zeros(self.n))
        projected = image / np.where(root_weights > 0, root_weights, 1.0)
        return top_direction_of(top, projected, weights, row_variances)

    def _top_in_one_launch(self, weights: Array) -> TopDirection:
        from randeigen.backend.cuda.shared_top import top_of_cloud

        top = top_of_cloud(self.gram, weights, CENTRING_ROUNDING, self.n * ROUNDING)
        if not top.projections.any():  # rounding is all there is
            return TopDirection(top.variance, top.projections)
        row_variances = top.row_variances[weights > 0]
        return TopDirection(top.variance, top.projections, median(row_variances), top.allowance)

    def _upper_bound(self, w: Array) -> float:
        inner: Any = self.gram[:-1, :-1]
        return upper_bound(inner, inner.new_tensor(w), inner.new_tensor(self.start[:, 1]))

    def inner_products(self) -> Array:
        return self._inner if self.n <= MAX_SQUARED_ROWS else to_host_float64(self.gram[:-1, :-1])

    @cached_property
    def _inner(self) -> Array:
        return to_host_float64(self.gram[:-1, :-1])  # rules by distances ask for it more than once

    def squared_norms(self) -> Array:
        squares, to_origin = self._lines
        return np.asarray(np.maximum(squares[:-1] + squares[-1] - 2 * to_origin[:-1], 0.0))

    def squared_norms_from_pivot(self) -> Array:
        return np.array(self._lines[0, :-1])

    def squared_distances_from_mean(self, weights: Array) -> Array:
        w = weights / weights.sum()
        with_mean = self._product(w)
        return np.asarray(np.maximum(self._lines[0, :-1] - 2 * with_mean + w @ with_mean, 0.0))

    def distance_between(self, weights_a: Array, weights_b: Array) -> float:
        difference, peak = of_plain_size(weights_a - weights_b)
        away, (squares, to_origin) = -difference.sum(), self._lines
        square = difference @ self._product(difference) + 2 * away * (difference @ to_origin[:-1])
        return peak * math.sqrt(max(float(square + away * away * squares[-1]), 0.0))

    def filtered_rounds(self, f: int, rule: SoftFilter) -> None:
        """None: the rounds of so many rows do not fit a launch."""

    def pick_by_krum(self, apart: Array, f: int, count: int) -> Index | None:
        from randeigen.backend.cuda.krum_picks import krum_picks

        gram: Any = self.gram
        return krum_picks(apart, f, count, gram.device) if gram.is_cuda else None

    def _take(self, index: Index) -> DeviceGramGeometry:
        lines = beside(np.append(index, self.n), self.gram)
        return replace(
            self,
            gram=self.gram[lines][:, lines],
            prior_weights=self.prior_weights[index],
            directions=lambda: self.start[index],
            beyond=self._beyond_among(index),
        )

    def combine_rows(self, matrix: Array) -> GramGeometry:
        return self._on_host().combine_rows(matrix)

    def _on_host(self) -> GramGeometry:
        return GramGeometry(
            to_host_float64(self.gram),
            self.prior_weights,
            self.start,
            precision=self.precision,
            floor=self.floor,
            beyond=self.beyond,
            columns=self.columns,
        )


class _Top(TopDirection):
    """A top direction whose allowance is computed when it is asked for: rounds do without."""

    upper_bound: Any = None

    @property
    def allowance(self) -> float:
        return max(float(self.upper_bound()) - self.variance, 0.0)


def _entries(gram: Any, i: Index, j: Index) -> Any:
    """(2, n) diagonal entries, and those at (i, j), in one tensor."""
    first, second = beside(np.stack((i, j)), gram)
    return joined((gram.diagonal()[: len(i)], gram[first, second])).reshape(2, -1)


def _clear(gram: Any, unusable: Mask) -> None:
    """Lines of rows that cannot be used are 0."""
    if lines := np.flatnonzero(unusable).tolist():
        gram[lines] = gram[:, lines] = 0.0
