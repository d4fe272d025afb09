"""The Gram matrices of many parts of the same rows at once: chunks of columns, rows of a table, tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from randeigen.backend.arrays import as_float64, as_host, middle_of_three
from randeigen.backend.batched import (
    BatchVerdict,
    Flags,
    Indices,
    Numbers,
    SoftFilter,
    TopDirections,
    along,
    beside,
    namespace,
    stacked,
    where_true,
)
from randeigen.backend.chunking import CHUNK_GROUP_NUMBERS, DEVICE_SLICE_NUMBERS
from randeigen.backend.device_blocks import in_kernels
from randeigen.backend.openblas import has_small_kernels
from randeigen.geometry.batched_eigen import MAX_SQUARED_ROWS, ROUNDING, Tops
from randeigen.geometry.cloud_batch import Centred, CloudBatch
from randeigen.geometry.gram import (
    CENTRING_ROUNDING,
    SMALLEST_MEAN_SQUARE,
    START_DIRECTIONS,
    UNDERFLOW,
    GramGeometry,
)
from randeigen.geometry.gram_accumulator import LARGEST_EXACT_SQUARE, MAX_PIVOTS, SMALLEST_EXACT_SQUARE
from randeigen.geometry.near_pivots import central_rows, is_near_by_pairs
from randeigen.geometry.products import OFFSET_RATIO, PANEL_ROWS, columns_at_once, random_pairs, rounding
from randeigen.types import Array, Index


@dataclass(frozen=True, eq=False)
class GramBatch(CloudBatch):
    """The exact Gram matrices of p clouds of n rows, in one unit; a `GeometryBatch`."""

    gram: Numbers  # (p, n, n) inner products, measured from a pivot near the rows
    prior_weights: Numbers  # (p, n)
    start: Numbers  # (k, n) secret directions from which the search for top directions starts
    precision: float  # rounding of an entry, relative to the two rows' norms
    floor: float = 0.0  # squared norms below this may have underflowed
    beyond: Flags | None = None  # (p, n) rows that were shortened, being too long to be squared

    def take(self, index: Indices) -> GramBatch:
        beyond = None if self.beyond is None else self.beyond[index]
        return replace(self, gram=self.gram[index], prior_weights=self.prior_weights[index], beyond=beyond)

    @cached_property
    def _squares(self) -> Numbers:
        return namespace(self.gram).einsum("pii->pi", self.gram) * 1.0  # a copy, side by side

    def squared_norms_from_pivot(self) -> Numbers:
        return self._squares

    def squared_distances(self) -> Numbers:
        squares = self.squared_norms_from_pivot()
        between = squares[:, :, None] + squares[:, None, :] - 2 * self.gram
        xp = namespace(between)
        between = xp.clip(between, 0, None)
        xp.einsum("pii->pi", between)[...] = 0.0
        return between

    def squared_distances_from_means(self, weights: Numbers) -> Numbers:
        """(p, n) from each cloud's weighted mean; the weights of each sum to 1."""
        to_mean = (self.gram @ weights[:, :, None])[:, :, 0]
        squares = self.squared_norms_from_pivot() - 2 * to_mean + (weights * to_mean).sum(1)[:, None]
        return namespace(squares).clip(squares, 0, None)

    def centred(self, weights: Numbers) -> Centred:
        covariances, roots = self.covariances(weights)

        def projections(tops: Tops, some: Any) -> Numbers:
            xp, own = namespace(weights), roots[some]
            projected = (covariances[some] @ tops.vectors[:, :, None])[:, :, 0]
            return projected / xp.where(own > 0, own * xp.sqrt(tops.values)[:, None], xp.inf)

        return Centred(covariances, namespace(covariances).einsum("pii->pi", covariances), projections)

    def top_directions(self, weights: Numbers) -> TopDirections:
        if not in_kernels(self.gram):
            return super().top_directions(weights)
        from randeigen.backend.cuda.spectral_filter import top_directions

        return top_directions(self.gram, weights, CENTRING_ROUNDING, ROUNDING)

    def has_kernel(self) -> bool:
        return self.beyond is None and in_kernels(self.gram)

    def filtered(self, f: int, rule: SoftFilter) -> tuple[Numbers, Indices, TopDirections] | None:
        if not self.has_kernel():
            return None
        from randeigen.backend.cuda.spectral_filter import filtered

        return filtered(self.gram, self.prior_weights, f, rule, self._limits())

    def _limits(self) -> Any:
        from randeigen.backend.cuda.spectral_filter import Limits

        return Limits(
            CENTRING_ROUNDING, ROUNDING, SMALLEST_MEAN_SQUARE, UNDERFLOW, self.precision, self.floor
        )

    def facts(self, verdict: BatchVerdict, corrupt: int) -> Any:
        """What must be known of each verdict in main memory, `VerdictFacts`, by one transfer from a GPU.

        Those of clouds that were not measured well are NaN. `corrupt` rows are the heaviest.
        """
        from randeigen.backend.cuda.part_verdicts import facts_of

        return facts_of(self.gram, verdict.weights, verdict.tops, verdict.codes, corrupt, self._limits())

    def influence(self, weights: Numbers, factors: Numbers) -> Numbers:
        """(n, n) the Gram matrices of the rows wᵢ·(xᵢ − μ), added up over all clouds, times their factors."""
        if self.has_kernel():
            from randeigen.backend.cuda.part_verdicts import influence

            return influence(self.gram, weights, as_host(factors))
        spread = where_true(self._mean_squares(weights) != 0)  # all others have their rows at the mean
        some = slice(None) if len(spread) == self.p else spread
        gram, w = self.gram[some], weights[some] / weights[some].sum(1)[:, None]
        to_mean = self._to_mean(gram, w)
        w = w * factors[some, None] ** 0.5
        products = namespace(w).einsum("pij,pj->ij", gram * w[:, :, None], w)
        from_mean = (w * to_mean).T @ w
        return products - from_mean - from_mean.T

    def distances_between(self, weights_a: Numbers, weights_b: Numbers) -> Numbers:
        """(p,) length of Σ (aᵢ − bᵢ)·xᵢ; both sum to the same."""
        difference = (weights_a - weights_b)[:, :, None]
        squares = (difference * (self.gram @ difference)).sum(1)[:, 0]
        distances = namespace(squares).clip(squares, 0, None) ** 0.5
        if self.beyond is None:
            return distances
        moves = (self.beyond & (weights_a != weights_b)).any(1)
        return namespace(squares).where(moves, math.inf, distances)

    def covariances(self, weights: Numbers) -> tuple[Numbers, Numbers]:
        """sqrt(wᵢwⱼ)·⟨xᵢ − μ_w, xⱼ − μ_w⟩ of each cloud, and the roots of its weights."""
        w = weights / weights.sum(1)[:, None]
        root_weights = w**0.5
        to_mean = self._to_mean(self.gram, w)
        covariances = self.gram - to_mean[:, :, None]
        covariances -= to_mean[:, None, :]
        covariances *= root_weights[:, :, None]
        covariances *= root_weights[:, None, :]
        return covariances, root_weights

    @staticmethod
    def _to_mean(gram: Numbers, w: Numbers) -> Numbers:
        """(p, n) tᵢ = ⟨xᵢ, μ⟩ − ‖μ‖²/2, so that ⟨xᵢ − μ, xⱼ − μ⟩ = ⟨xᵢ, xⱼ⟩ − tᵢ − tⱼ."""
        to_mean = (gram @ w[:, :, None])[:, :, 0]
        return to_mean - (w * to_mean).sum(1)[:, None] / 2

    def summed_gram(self, index: list[int]) -> Array:
        """(n, n) the inner products of some clouds, added up."""
        return np.asarray(as_host(self.gram[index].sum(0)))

    def few_on_host(self, index: list[int]) -> GramBatch:
        """Some of the clouds in main memory, each row with the same prior weight."""
        gram = as_host(self.gram[index])
        return replace(self, gram=gram, prior_weights=np.ones_like(gram[:, 0]))

    def on_host(self) -> GramBatch:
        """The same in main memory; none of its rows is `beyond`."""
        gram, prior, start = (as_host(each) for each in (self.gram, self.prior_weights, self.start))
        return replace(self, gram=gram, prior_weights=prior, start=start)


def measured_batch(
    pieces: Any, rng: np.random.Generator, in_float64: bool = False
) -> tuple[GramBatch, Flags]:
    """The geometries of (p, n, w) pieces of at least three rows, and which of them are sound.

    From the middle of three secret rows; pieces for which that is far out, from the row that half of the
    others are nearest to. Some pieces at a time, `in_float64` if that is asked for.
    """
    _, n, width = pieces.shape
    pairs = random_pairs(n, rng)
    three = rng.permutation(n)[:3]
    if in_float64 and in_kernels(pieces):  # which read float32 and multiply in float64
        gram = _measured_as_they_lie(pieces, three, pairs)
        first = gram[:, 0, 0]
        sound = first == first
    else:
        pairs = tuple(beside(each, pieces) for each in pairs)
        cut = slices_of(pieces, in_float64)
        measured = [_measured(some, three.tolist(), pairs) for some in cut]
        gram, sound = (stacked(each) for each in zip(*measured, strict=True))
    size = 8 if in_float64 else pieces.dtype.itemsize
    # Of a GPU's matrices powers are made, which need no directions to start from.
    start = rng.standard_normal((START_DIRECTIONS, n))
    batch = GramBatch(gram, namespace(gram).ones_like(gram[:, 0]), start, rounding(n, width, size))
    return batch, sound


def slices_of(pieces: Any, in_float64: bool) -> Iterator[Any]:
    """Some of the pieces at a time, as many as may be copied."""
    p, n, width = pieces.shape
    most = CHUNK_GROUP_NUMBERS if isinstance(pieces, np.ndarray) else DEVICE_SLICE_NUMBERS
    step = max(most // (n * width), 1)
    for start in range(0, p, step):
        some = pieces[start : start + step]
        yield as_float64(some) if in_float64 and some.dtype.itemsize < 8 else some


def _measured(pieces: Any, three: list[int], pairs: tuple[Indices, ...]) -> tuple[Numbers, Flags]:
    """(p, n, n) inner products, and (p,) whether they are sound."""
    gram, fits = _measured_from(middle_of_three(*(pieces[:, i] for i in three)), pieces)
    near = is_near_by_pairs(gram, pairs)
    again = where_true(fits & ~near)
    for _ in range(MAX_PIVOTS):
        if not len(again):
            break
        centre, sound = central_rows(gram[again])
        near[again] = sound
        again, centre = again[~sound], centre[~sound]
        if not len(again):
            break
        some = pieces[again]
        gram[again], fits[again] = _measured_from(along(some, centre[:, None, None])[:, 0], some)
        again = again[fits[again]]
    return gram, fits & near


def as_batch(geometries: Sequence[GramGeometry]) -> GramBatch:
    """Exact geometries of the same rows in one unit, as one batch in this unit."""
    first = geometries[0]
    return GramBatch(
        np.stack([each.gram[:-1, :-1] for each in geometries]),
        np.stack([each.prior_weights for each in geometries]),
        first.start.T if first.n > MAX_SQUARED_ROWS else np.empty((0, first.n)),  # of few powers are made
        max(each.precision for each in geometries),
        max(each.floor for each in geometries),
    )


def _products(shifted: Any) -> Numbers:
    """(p, n, n) inner products in float64, of float32 numbers by products of a few columns each."""
    width, step = shifted.shape[2], columns_at_once(shifted.shape[1])
    if shifted.dtype.itemsize == 8:
        return product_of_each(shifted)
    total: Any = 0.0
    for start in range(0, width, step):
        total = total + as_float64(product_of_each(shifted[:, :, start : start + step]))
    return total


def product_of_each(some: Any) -> Any:
    """Each times its own transpose; of few rows in two halves, where BLAS is quicker by small products."""
    half = some.shape[1] // 2
    if not isinstance(some, np.ndarray) or not 1 <= half <= PANEL_ROWS or not has_small_kernels():
        return some @ some.swapaxes(1, 2)
    out = np.empty((*some.shape[:2], some.shape[1]), some.dtype)
    for rows in (slice(0, half), slice(half, None)):
        np.matmul(some[:, rows], some.swapaxes(1, 2), out=out[:, rows])
    return out


def _measured_as_they_lie(pieces: Any, three: Index, pairs: tuple[Index, Index]) -> Numbers:
    """`_measured` by a GPU's kernel that reads the pieces themselves; what is not sound is NaN."""
    from randeigen.backend.cuda.part_grams import PivotLimits, grams

    n = pieces.shape[1]
    numbers = np.empty(3 + n, np.int64)
    numbers[:3], numbers[3:][pairs[0]] = three, pairs[1]
    largest, smallest = min(LARGEST_EXACT_SQUARE[8], 1e300), SMALLEST_EXACT_SQUARE[8]
    return grams(pieces, beside(numbers, pieces), PivotLimits(largest, smallest, OFFSET_RATIO, MAX_PIVOTS))


def _measured_from(pivots: Any, pieces: Any) -> tuple[Numbers, Flags]:
    """(p, n, n) inner products measured from (p, w) pivots; (p,) whether no square over- or underflowed."""
    shifted = pieces - pivots[:, None]
    gram = _products(shifted)
    return gram, squares_fit(namespace(gram).einsum("pii->pi", gram), shifted)


def squares_fit(squares: Numbers, shifted: Any) -> Flags:
    """(p,) whether none of the (p, n) squared norms of (p, n, w) pieces over- or underflowed."""
    size = shifted.dtype.itemsize
    fits = (squares < min(LARGEST_EXACT_SQUARE[size], 1e300)).all(1)  # which NaN is not
    small = squares < SMALLEST_EXACT_SQUARE[size]
    if bool(small.any()):
        fits = fits & ~(small & (shifted != 0).any(2)).any(1)
    return fits
