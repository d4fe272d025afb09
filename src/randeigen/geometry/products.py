"""The Gram matrix of one block: the only product that costs anything, on the library that holds the block.

A float32 product of k columns is off by at most k·2⁻²⁴ of the two rows' norms, in whatever order a BLAS
adds them up and whoever chose the numbers. So no product is longer than `columns_at_once`, the sums of each
part of a block are few, and parts are added up in float64; `rounding` bounds what may still be missing.

A row of 1e200 cannot be squared in a float64, nor one of 1e-200, and whether either is the odd one is known
only when every block has been read. So row i is measured as 2^-eᵢ times itself, blocks are added up at the
larger of their exponents, and at the end all rows are brought to one unit, that of the median row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from randeigen.backend import native
from randeigen.backend.arrays import (
    UNIT_ROUNDOFF,
    as_host_array,
    largest_exponent,
    median,
    middle_of_three,
    scaled,
    to_host_float64,
)
from randeigen.backend.chunking import as_blas_takes_them, parallel_map, parts, uncrowded
from randeigen.backend.openblas import has_small_kernels
from randeigen.types import Array, Block, Index

Pivot: TypeAlias = tuple[int, int, int]  # three rows: the pivot is their middle, column by column

MAX_PANELLED_ROWS = 128  # rows: of more BLAS's own symmetric product is as quick
MAX_VECTOR_ROWS = 7  # rows: of fewer a product of matrices takes longer to prepare than one of vectors
PANEL_ROWS = 16  # rows of a panel; of wide ones half as many, since fewer pairs are multiplied twice then
MIN_HALVED_COLUMNS = 2**13  # columns of such rows
MIN_PANELLED_NUMBERS = 2**13  # numbers: of fewer a single product is done before panels are cut
SMALL_PRODUCT = 10**6  # multiplications that OpenBLAS does without copying its operands
CACHE_LINE_NUMBERS = 16  # numbers of float32 that a line of the cache holds
MIN_LOOP_ROWS = 128  # rows: for fewer numpy's own loop over products is quicker than Python's
MAX_PLAIN_EXPONENT = 300  # magnitudes within 2^±this are left in the caller's own units
OFFSET_RATIO = 8.0  # squared norms this many times the squared distances between rows ask for a pivot
UNSET = -(2**20)  # the exponent of a line in which nothing has been measured yet


class ScaledGram(NamedTuple):
    """Inner products of which [i, j] stands for gram[i, j]·2^(exponents[i] + exponents[j])."""

    gram: Array  # (n+1, n+1), the origin last
    exponents: NDArray[np.int64]  # (n+1,)


def products(block: Block, pivot_rows: Pivot | None = None) -> Array:
    """(n+1, n+1) Gram matrix of the rows, the origin last, from the middle of three rows if given."""
    return in_plain_units(scaled_gram(block, pivot_rows)[0])


def scaled_gram(
    block: Block,
    pivot_rows: Pivot | None = None,
    norms: Array | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> tuple[ScaledGram, float]:
    """`products`, the origin's line at an exponent of its own; and how far an entry can be off.

    That is relative to the two rows' norms, and holds whoever chose the numbers. `norms` are those of the
    rows, where they are known: on a GPU that saves a reading of the three. While a GPU works, the host does
    `meanwhile`.
    """
    n = block.shape[0]
    if not isinstance(block, np.ndarray) and block.is_cuda:
        from randeigen.backend import cuda

        gram, exponent, precision = cuda.gram_on_device(block, pivot_rows, norms)
        meanwhile()
        exponents = np.zeros(n + 1, np.int64)
        exponents[n] = UNSET if pivot_rows is None else exponent
        return ScaledGram(to_host_float64(gram), exponents), precision
    cut = parts(block)
    total, exponents = np.zeros((n + 1, n + 1)), np.zeros(n + 1, np.int64)
    if pivot_rows is None and len(cut) == 1:
        total[:n, :n], exponents[n] = _term(block, None)[0], UNSET
        return ScaledGram(total, exponents), rounding(n, block.shape[1], block.dtype.itemsize)
    terms = parallel_map(lambda part: _term(part, pivot_rows), cut)
    exponents[n] = exponent = max(term[-1] for term in terms)
    for gram, to_origin, origin, exponent_here in terms:
        total[:n, :n] += gram
        if pivot_rows is not None:
            total[:n, n] += np.ldexp(to_origin, exponent_here - exponent)
            total[n, n] += np.ldexp(origin, 2 * (exponent_here - exponent))
    total[n, :n] = total[:n, n]
    return ScaledGram(total, exponents), rounding(n, cut[0].shape[1], block.dtype.itemsize)


def columns_at_once(n: int) -> int:
    """Columns in one product: as few as cost no time, and fewer where more rows add up what is missing."""
    return 1024 if n <= 128 else 512 if n <= 256 else 256


def rounding(n: int, width: int, itemsize: int) -> float:
    """The most that rounding takes from an entry over `width` columns, relative to the two rows' norms."""
    step = columns_at_once(n)
    # Six more: three for a pivot subtracted before, the rest for what is of second order.
    return (min(step, width) + -(-width // step) + 6) * UNIT_ROUNDOFF[itemsize]


def _term(part: Block, pivot_rows: Pivot | None) -> tuple[Any, Any, Any, int]:
    """What one part adds to the Gram matrix, its border, its corner; and the pivot's exponent."""
    is_copy = not isinstance(part, np.ndarray)
    part = as_blas_takes_them(as_host_array(part))
    if pivot_rows is None:
        return inner(part, part), 0.0, 0.0, UNSET
    pivot = middle_of_three(*(part[i] for i in pivot_rows))
    shifted = np.subtract(part, pivot, out=part if is_copy else None)
    return inner(shifted, shifted), *border(shifted, pivot)


def inner(a: Any, b: Any) -> Any:
    """a·bᵀ by products of a few columns each. Of many rows with themselves BLAS does half the work."""
    if not isinstance(a, np.ndarray):
        return a @ b.T  # on a GPU in float64, where every launch costs and rounding does not
    n, width = b.shape
    symmetric = a is b and n > 1 and n * width >= MIN_PANELLED_NUMBERS
    if symmetric and (loops := native.loops()) and a.strides[1] == a.itemsize:
        return _by_loops(a, loops.gram if a.itemsize == 4 else loops.wide_gram)
    step = columns_at_once(n)
    most = MAX_PANELLED_ROWS if width >= 2 * step else 2 * PANEL_ROWS
    if symmetric and n <= most and has_small_kernels():
        return _by_panels(a, step)
    if n < MIN_LOOP_ROWS and width >= 2 * step:
        left, right, even = _side_by_side(a, step), _side_by_side(b, step), width - width % step
        few = a is b and n <= MAX_VECTOR_ROWS
        total = _by_rows(left) if few else (left @ right.swapaxes(1, 2)).sum(0)
        return total if even == width else total + a[:, even:] @ b[:, even:].T
    step = -(-width // -(-width // step))  # products of equal length
    total = a[:, :step] @ b[:, :step].T
    for i in range(step, width, step):
        left = a[:, i : i + step]
        total += left @ (left if a is b else b[:, i : i + step]).T
    return total


def _by_loops(a: Any, gram: Callable[..., None]) -> Any:
    """a·aᵀ in C, where the sums over a few columns each are added up in float64."""
    (n, width), (more, columns) = a.shape, native.GRAM_ROOM
    total, room = np.zeros((n, n)), np.empty((n + more, columns), a.dtype)
    gram(a.ctypes.data, a.strides[0] // a.itemsize, n, width, room.ctypes.data, total.ctypes.data)
    return total


def _by_panels(a: Any, step: int) -> Any:
    """a·aᵀ, some rows times those before them: where BLAS has quick ways for small products alone."""
    n, width = a.shape
    step = -(-width // -(-width // step))  # products of equal length, which begin where a cache line does
    step = min(step + -step % CACHE_LINE_NUMBERS, width)
    blocks, even = _side_by_side(a := uncrowded(a), step), width - width % step
    total = np.empty((n, n), a.dtype)
    for left, right in _panels(n, step, PANEL_ROWS // (2 if width >= MIN_HALVED_COLUMNS else 1)):
        np.matmul(blocks[:, left], blocks[:, right].swapaxes(1, 2)).sum(0, out=total[left, right])
        if even < width:
            total[left, right] += a[left, even:] @ a[right, even:].T
    np.copyto(total, total.T.copy(), where=~np.tri(n, dtype=bool))
    return total


def _by_rows(blocks: Any) -> Any:
    """The sum of the products of each block with itself, each row times those before it: one number each."""
    total = np.empty((blocks.shape[1],) * 2, blocks.dtype)
    for i in range(len(total)):
        row = np.matmul(blocks[:, : i + 1], blocks[:, i, :, None])
        total[i, : i + 1] = total[: i + 1, i] = row.sum(0)[:, 0]
    return total


def _side_by_side(a: Any, step: int) -> Any:
    """(m, n, step) the same columns, so many at a time; what is left over is not in it."""
    return a[:, : a.shape[1] - a.shape[1] % step].reshape(a.shape[0], -1, step).swapaxes(0, 1)


@lru_cache(maxsize=MAX_PANELLED_ROWS)
def _panels(n: int, step: int, rows: int) -> list[tuple[slice, slice]]:
    """Which rows are multiplied with which: all pairs, one way round, in products small enough for BLAS."""
    pairs: list[tuple[slice, slice]] = []
    wide = SMALL_PRODUCT // (rows * step)
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        columns = -(-stop // -(-stop // wide))
        for j in range(0, stop, columns):
            right = slice(j, min(j + columns, stop))
            # A symmetric product is none of the quick ones: two halves are not.
            middle = (start + stop) // 2 if right == slice(start, stop) else start
            pairs += [(slice(i, k), right) for i, k in ((start, middle), (middle, stop)) if i < k]
    return pairs


def border(shifted: Any, pivot: Any) -> tuple[Array, float, int]:
    """Products of the rows with the origin, the origin's own, and its exponent.

    The pivot's own square may overflow where no difference does, so it is scaled to a norm near 1.
    """
    exponent = largest_exponent(pivot)
    near = scaled(pivot, -exponent)[None]
    return to_host_float64(inner(shifted, -near))[:, 0], float(inner(near, near)[0, 0]), exponent


def random_pairs(n: int, rng: np.random.Generator) -> tuple[Index, Index]:
    """Random pairs from a secret permutation: an adversary cannot choose which distances are sampled."""
    order = rng.permutation(n)
    return order, order[np.arange(n) - 1]


def is_offset(squared_norms: Array, squared_distances: Array) -> bool:
    """Whether the rows are far from the origin beside their mutual distances.

    The median and the lower quartile are set by honest rows: fewer than half are corrupt, so fewer than
    three quarters of the pairs hold a corrupt row.
    """
    norms, distances = _finite(squared_norms), _finite(squared_distances)
    if norms.size < 2 or distances.size == 0:  # a lone row has no other to be near
        return False
    quartile = float(np.partition(distances, distances.size // 4)[distances.size // 4])
    return median(norms) > OFFSET_RATIO * max(quartile, 0.0)


def all_apart(squared_norms: Array, inner_products: Array) -> bool:
    """Whether no two rows are so near that `is_offset` could hold, whichever pairs it is shown."""
    half = squared_norms / 2
    between = half[:, None] + half - inner_products  # half of the squared distances
    between.reshape(-1)[:: half.size + 1] = math.inf
    return bool(median(half) <= OFFSET_RATIO * between.min())


def _finite(values: Array) -> Array:
    """The finite ones: all, if the sum of their squares is."""
    return values if math.isfinite(values.dot(values)) else values[np.isfinite(values)]


def scale_exponent(magnitudes: Array) -> int:
    """0 while the squares of typical magnitudes fit a float64 with room to spare, else their exponent.

    Where the typical magnitude is 0, a minority could choose the scale. So it is 0 if that suits any of them.
    """
    ordered = np.sort(magnitudes)
    typical = float(ordered[ordered.size // 2]) if ordered.size else 0.0  # a mean of two may overflow
    if typical == 0 and (others := ordered[(ordered > 0) & np.isfinite(ordered)]).size:
        plain = (others > 2.0**-MAX_PLAIN_EXPONENT) & (others < 2.0**MAX_PLAIN_EXPONENT)
        typical = 1.0 if plain.any() else float(others[others.size // 2])
    exponent = math.frexp(typical)[1] if math.isfinite(typical) else 0
    return max(-1000, min(exponent, 1000)) if abs(exponent) > MAX_PLAIN_EXPONENT else 0


def in_plain_units(measured: ScaledGram) -> Array:
    """The Gram matrix in the caller's units, if these can hold it."""
    return at_exponents(measured.gram, measured.exponents)


def nothing(n: int) -> ScaledGram:
    """The Gram matrix of no columns."""
    return ScaledGram(np.zeros((n + 1, n + 1)), np.full(n + 1, UNSET))


def without(measured: ScaledGram, rows: list[int]) -> ScaledGram:
    """The same with the lines of these rows unset."""
    if not rows:
        return measured
    gram, exponents = measured.gram.copy(), measured.exponents.copy()
    gram[rows] = gram[:, rows] = 0.0
    exponents[rows] = UNSET
    return ScaledGram(gram, exponents)


def added(first: ScaledGram, second: ScaledGram) -> ScaledGram:
    """The Gram matrix of the columns of both."""
    if np.count_nonzero(first.exponents == UNSET) == first.exponents.size:
        return second
    if np.array_equal(first.exponents, second.exponents):
        return ScaledGram(first.gram + second.gram, first.exponents)
    first, second = _unset_zeros(first), _unset_zeros(second)
    exponents = np.maximum(first.exponents, second.exponents)
    one, other = (at_exponents(each.gram, each.exponents - exponents) for each in (first, second))
    return ScaledGram(one + other, exponents)


def _unset_zeros(measured: ScaledGram) -> ScaledGram:
    """The same with lines of zeros unset: their exponents must not make another block's numbers underflow."""
    return ScaledGram(measured.gram, np.where(measured.gram.any(axis=1), measured.exponents, UNSET))


def at_exponents(gram: Array, shift: NDArray[np.int64]) -> Array:
    """gram[i, j]·2^(shift[i] + shift[j])."""
    if not shift.any():
        return gram
    # What is shifted out of range was unset, or is nothing beside what else its row holds.
    shift = np.clip(shift, -(2**14), 2**14)
    return np.asarray(np.ldexp(gram, shift[:, None] + shift))
