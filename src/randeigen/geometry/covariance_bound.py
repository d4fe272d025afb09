"""An upper bound on the top eigenvalue of thousands of points: each product reads all, so few are made.

Products are made in float32, some points at a time on every core; what is small is kept in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from randeigen.backend import native
from randeigen.backend.chunking import POINT_PARTS, memory_for_rows, parallel_map
from randeigen.geometry.eigen import Top
from randeigen.geometry.lanczos import upper_allowance
from randeigen.geometry.products import CACHE_LINE_NUMBERS, SMALL_PRODUCT
from randeigen.geometry.subspace import Points, over_points, total_of, weighted_sum
from randeigen.types import Array

STARTS = 8  # independent Lanczos iterations behind an upper bound: it fails only if each of them does
UPPER_FAILURE_PROBABILITY = 1e-8
UPPER_TOLERANCE = 0.1  # of the eigenvalue: how much too high an upper bound may be
MIN_UPPER_STEPS, MAX_UPPER_STEPS = 5, 160  # steps
FEW_UPPER_STEPS, CHECKED_STEPS = 12, 4  # beyond so many steps the bound is made after every few
ALLOWANCES = np.exp2(np.arange(-16.0, 10.0, 0.125))  # to choose from, relative to the eigenvalue
ROUNDING = 2.0**-18  # of a link between Lanczos vectors, whose products are made in float32
MAX_CACHED_NUMBERS, CACHED_PARTS = 2**23, 4  # numbers of points that a cache holds, and parts of those
PRODUCT_ROWS = 48  # points whose products with a few vectors are made in one call


def upper_bound(
    points: Points, w: Array, rng: np.random.Generator, tolerance: float = UPPER_TOLERANCE
) -> Top:
    """The top eigenvalue of the weighted covariance, and an allowance for what may be missing.

    Several Lanczos iterations from independent starts go through the points together. Each gives a bound that
    is too low with the chance UPPER_FAILURE_PROBABILITY**(1/STARTS), so the largest of them is with the
    product of these chances; and a bound that may fail so often takes far fewer steps. A start is the sum of
    the centred points times the roots of their weights and Gaussian numbers: along the top direction it has
    as much as one such number times the root of the eigenvalue λ. That is what a uniform start has in n
    dimensions, n being its square over λ.
    """
    chance = UPPER_FAILURE_PROBABILITY ** (1 / STARTS)
    shares = np.sqrt(w)[:, None] * rng.standard_normal((len(w), STARTS))
    mean, sums = _combined(points, w, shares)
    vectors = sums - shares.sum(axis=0)[:, None] * mean
    sizes = np.sqrt((vectors**2).sum(axis=1))
    if not (sizes.min() > 0 and sizes.max() < math.inf):
        return Top(0.0 if sizes.max() == 0 else math.inf, mean)
    most = min(MAX_UPPER_STEPS, int(np.count_nonzero(w)))
    basis = np.empty((STARTS, most + 1, mean.size), np.float32)  # takes no memory until it is written to
    basis[:, 0] = vectors / sizes[:, None]
    within, links = np.zeros((STARTS, most, most)), np.zeros((STARTS, most))  # each basis
    for step in range(most):
        earlier = basis[:, : step + 1]
        images = _covariance_times(points, w, mean, earlier[:, -1])
        within[:, step, step] = diagonal = (earlier[:, -1] * images).sum(axis=1)
        # What is large goes first: the part of it that rounding leaves would grow from step to step.
        images -= diagonal[:, None] * earlier[:, -1]
        if step:
            images -= links[:, step - 1, None].astype(np.float32) * earlier[:, -2]
        images -= (np.matmul(earlier, images[:, :, None]).transpose(0, 2, 1) @ earlier)[:, 0]
        links[:, step] = np.sqrt(np.square(images, dtype=np.float64).sum(axis=1))
        spanned = bool((links[:, step] <= ROUNDING * within.max()).any())  # all that a start has a part in
        if step + 1 < most:
            within[:, step + 1, step] = links[:, step]  # the lower triangle is read
        early = step + 1 < MIN_UPPER_STEPS or (step >= FEW_UPPER_STEPS and step % CHECKED_STEPS)
        if step + 1 < most and early and not spanned:
            np.divide(images, links[:, step, None], out=basis[:, step + 1])
            continue
        bounds, value = [], 0.0
        for ritz, link, size in zip(
            _eigenvalues(within[:, : step + 1, : step + 1]), links[:, : step + 1], sizes, strict=True
        ):
            top = float(ritz[-1])
            n = float(size**2 / top) if top > 0 else 1.0
            bounds.append(top + upper_allowance(ritz, link, n, chance, ROUNDING, ALLOWANCES))
            value = max(value, top)
        if max(bounds) <= (1 + tolerance) * value or spanned:
            break
        np.divide(images, links[:, step, None], out=basis[:, step + 1])
    return Top(value, mean, max(max(bounds) - value, 0.0) if value < math.inf else 0.0)


def _eigenvalues(matrices: Array) -> Array:
    """Of each matrix in ascending order, NaN where LAPACK does not converge."""
    try:
        return np.asarray(np.linalg.eigvalsh(matrices), np.float64)
    except np.linalg.LinAlgError:
        return np.full(matrices.shape[:-1], math.nan)


def _combined(points: Points, w: Array, shares: Array) -> tuple[Array, Array]:
    """(k,) the sum of the points, each times its weight, and (p, k) the sums of each times its shares."""
    if shares.shape[1] == native.VECTORS and native.take(points):
        narrow = shares.astype(np.float32)
        parts = over_points(lambda rows: native.combined(points[rows], narrow[rows]), len(points))
        return weighted_sum(points, w), np.asarray(_total_of_few(parts), np.float64)
    all_shares = np.ascontiguousarray(np.column_stack((shares, w)).T, np.float32)
    sums = _sums_of_products(points, len(all_shares), lambda rows, pieces: all_shares[:, rows])
    return sums[-1], sums[:-1]


def _covariance_times(points: Points, w: Array, mean: Array, vectors: Array | Points) -> Array | Points:
    """(p, k) the weighted covariance times each of p vectors; points that no cache holds are read once."""
    if len(vectors) == native.VECTORS and native.take(points):
        return _covariance_times_by_loops(points, w, mean, vectors)
    if points.size <= MAX_CACHED_NUMBERS:
        return _covariance_times_in_cache(points, w, mean, vectors)
    weights, shift = w.astype(np.float32), (vectors @ mean).astype(np.float32)[:, None]
    shares = np.empty((len(vectors), len(w)), np.float32)
    many, width = _cut(mean.size, len(vectors))
    narrow = np.zeros((len(vectors), many * width), np.float32)
    narrow[:, : mean.size] = vectors
    pieces_of_vectors = _pieces(narrow, many)

    def centred(rows: slice, pieces: Points) -> Points:
        here = np.matmul(pieces_of_vectors, pieces.transpose(0, 2, 1)).sum(axis=0)
        here -= shift
        here *= weights[rows]
        shares[:, rows] = here
        return np.asarray(here)

    total = _sums_of_products(points, len(vectors), centred)
    return np.asarray(total - shares.sum(axis=1, dtype=np.float64)[:, None] * mean)


def _covariance_times_by_loops(points: Points, w: Array, mean: Array, vectors: Array | Points) -> Points:
    """The same in C, a few points at a time, in float32."""
    weights, narrow, narrow_mean = w.astype(np.float32), vectors.astype(np.float32), mean.astype(np.float32)
    shifts = narrow @ narrow_mean

    def work(rows: slice) -> tuple[Points, Array]:
        shares, sums = native.covariance_times(points[rows], narrow, shifts, weights[rows])
        return sums, shares.sum(axis=0, dtype=np.float64)

    parts = CACHED_PARTS if points.size <= MAX_CACHED_NUMBERS else POINT_PARTS
    sums, totals = zip(*over_points(work, len(points), parts=parts), strict=True)
    total = _total_of_few(list(sums))
    total -= np.multiply.outer(sum(totals).astype(np.float32), narrow_mean)
    return total


def _total_of_few(parts: list[Points]) -> Points:
    """Their sum, in float32 as the parts are; the first is written over."""
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total


def _covariance_times_in_cache(points: Points, w: Array, mean: Array, vectors: Array | Points) -> Array:
    """The same by few products, which copy what they work on themselves."""
    weights, shift = w.astype(np.float32)[:, None], (vectors @ mean).astype(np.float32)
    narrow = np.ascontiguousarray(vectors.T, np.float32)
    step = -(-len(points) // CACHED_PARTS)

    def work(start: int) -> tuple[Points, Points]:
        some = points[start : start + step]
        shares = some @ narrow
        shares -= shift
        shares *= weights[start : start + step]
        return shares.T @ some, shares.sum(axis=0, dtype=np.float64)

    sums, totals = zip(*parallel_map(work, range(0, len(points), step)), strict=True)
    return np.asarray(total_of(list(sums)) - sum(totals)[:, None] * mean)


def _cut(k: int, count: int) -> tuple[int, int]:
    """Into how many pieces of how many columns points are cut for products with so many vectors.

    The last piece may reach beyond the points; there it holds zeros.
    """
    most = SMALL_PRODUCT // (count * PRODUCT_ROWS)
    many = -(-k // (most - most % CACHE_LINE_NUMBERS))
    width = -(-k // many)
    return many, width + -width % CACHE_LINE_NUMBERS


def _pieces(numbers: Points, many: int) -> Points:
    """(m, r, b) pieces of the columns, where they lie."""
    return np.asarray(numbers.reshape(len(numbers), many, -1).transpose(1, 0, 2))


def _sums_of_products(points: Points, count: int, shares: Callable[[slice, Points], Points]) -> Array:
    """(p, k) p sums over the points, each times its (p, r) shares.

    Some points at a time are copied first: that reads them as memory gives them soonest, and the products,
    which read here and there, find them in a cache.
    """
    k = points.shape[1]
    many, width = _cut(k, count)

    def work(rows: slice) -> Points:
        total, product = np.zeros((2, many, count, width), np.float32)
        room = memory_for_rows((PRODUCT_ROWS, many * width), np.dtype(np.float32))
        room[:] = 0
        for i in range(rows.start, rows.stop, PRODUCT_ROWS):
            some = slice(i, min(i + PRODUCT_ROWS, rows.stop))
            here = room[: some.stop - i]
            np.copyto(here[:, :k], points[some])
            pieces = _pieces(here, many)
            np.matmul(shares(some, pieces), pieces, out=product)
            np.add(total, product, out=total)
        return total

    total = total_of(over_points(work, len(points), PRODUCT_ROWS))
    return np.asarray(total.transpose(1, 0, 2).reshape(count, -1)[:, :k])
