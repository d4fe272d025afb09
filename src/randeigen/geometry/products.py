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

from randeigen.backend.arrays import (
    UNIT_ROUNDOFF,
    as_float64,
    as_host_array,
    bordered,
    largest_exponent,
    largest_magnitudes,
    median_of_columns,
    middle_of_three,
    scaled,
    to_host_float64,
)
from randeigen.backend.chunking import is_host_block, parallel_map, parts, pieces
from randeigen.backend.device_blocks import as_matrix
from randeigen.types import Array, Block

Pivot: TypeAlias = tuple[int, int, int]  # three rows: the pivot is their middle, column by column

MAX_WHOLE_PRODUCT_ROWS = 32  # rows: of more, half of the products are saved
MIN_LOOP_ROWS = 64  # rows: for fewer numpy's own loop over products is quicker than Python's
NEAR_OVERFLOW = {4: 2.0**125, 8: 2.0**1021}  # the difference of two larger numbers may not be finite
MAX_PLAIN_EXPONENT = 300  # magnitudes within 2^±this are left in the caller's own units
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
    if _on_gpu(block):
        from randeigen.backend import cuda

        gram, exponent, precision = cuda.gram_on_device(block, pivot_rows, norms)
        meanwhile()
        exponents = np.zeros(n + 1, np.int64)
        exponents[n] = UNSET if pivot_rows is None else exponent
        return ScaledGram(to_host_float64(gram), exponents), precision
    cut = parts(block)
    terms = parallel_map(lambda part: _term(part, pivot_rows), cut)
    exponent = max(term[-1] for term in terms)
    total, to_origin, origin = np.zeros((n, n)), np.zeros(n), 0.0
    for gram, border, corner, exponent_here in terms:
        total += gram
        to_origin += np.ldexp(border, exponent_here - exponent)
        origin += np.ldexp(corner, 2 * (exponent_here - exponent))
    exponents = np.append(np.zeros(n, np.int64), exponent)
    measured = ScaledGram(bordered(total, to_origin, origin), exponents)
    return measured, rounding(n, cut[0].shape[1], block.dtype.itemsize)


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
    part = as_host_array(part)
    if pivot_rows is None:
        return inner(part, part), 0.0, 0.0, UNSET
    pivot = middle_of_three(*(part[i] for i in pivot_rows))
    shifted = np.subtract(part, pivot, out=part if is_copy else None)
    return inner(shifted, shifted), *_border(shifted, pivot)


def inner(a: Any, b: Any) -> Any:
    """a·bᵀ by products of a few columns each. Of many rows with themselves BLAS does half the work."""
    if not isinstance(a, np.ndarray):
        return a @ b.T  # on a GPU in float64, where every launch costs and rounding does not
    n, width = b.shape
    if a is b and 1 < n <= MAX_WHOLE_PRODUCT_ROWS:
        # BLAS has quick ways for small products, but none for those that are symmetric: two halves are none.
        half = n // 2
        total = np.concatenate([inner(a[:half], b), inner(a[half:], b)])
        below = _below_diagonal(n)
        total[below] = total.T[below]
        return total
    step = columns_at_once(n)
    if n < MIN_LOOP_ROWS and width >= 2 * step:
        even = width - width % step
        left = a[:, :even].reshape(a.shape[0], -1, step).swapaxes(0, 1)
        right = left if a is b else b[:, :even].reshape(n, -1, step).swapaxes(0, 1)
        total = (left @ right.swapaxes(1, 2)).sum(0)
        return total if even == width else total + a[:, even:] @ b[:, even:].T
    step = -(-width // -(-width // step))  # products of equal length
    total = a[:, :step] @ b[:, :step].T
    for i in range(step, width, step):
        left = a[:, i : i + step]
        total += left @ (left if a is b else b[:, i : i + step]).T
    return total


@lru_cache(maxsize=MAX_WHOLE_PRODUCT_ROWS)
def _below_diagonal(n: int) -> tuple[NDArray[np.intp], ...]:
    return np.tril_indices(n, -1)


def unlike_pivot(block: Block, index: list[int], pivot_rows: Pivot | None = None) -> list[int]:
    """Which of these rows differ anywhere from the pivot or, without one, from 0."""

    def unlike(part: Any) -> Any:
        part = as_matrix(part)
        pivot = 0 if pivot_rows is None else middle_of_three(*(part[i] for i in pivot_rows))
        some = part if len(index) == part.shape[0] else part[index]
        return to_host_float64((some != pivot).any(1))

    cut = parts(block) if is_host_block(block) else pieces(block)
    differ = np.sum(parallel_map(unlike, cut), axis=0)
    return [i for i, differs in zip(index, differ.tolist(), strict=True) if differs]


def gram_of_scaled_rows(
    piece: Block, index: list[int], pivot_rows: Pivot | str | None, alone: bool
) -> ScaledGram:
    """The Gram matrix of some rows, each scaled to a norm near 1 before it is squared.

    For rows whose squares overflow or underflow. Unless `alone`, with all other rows too, whose squares fit;
    what these are among themselves is left unset. From "median": from the median of each column.
    """
    n = piece.shape[0]
    if not isinstance(piece, np.ndarray):
        piece = as_float64(piece)  # a GPU's float32 products may be TF32
    few, down, pivot = piece[index], 0, None
    if pivot_rows is not None and _may_overflow(few if isinstance(pivot_rows, str) else piece):
        if piece.dtype.itemsize == 4:  # scaled down, the smallest float32 numbers would be rounded
            piece, few = piece.astype(np.float64), few.astype(np.float64)
        else:
            down = 2
            few = scaled(few, -down)
    if pivot_rows is not None:
        if isinstance(pivot_rows, str):
            pivot = median_of_columns(few)
        else:
            pivot = middle_of_three(*(piece[i] for i in pivot_rows))
            piece = piece if alone else piece - pivot
            pivot = scaled(pivot, -down)
        few = few - pivot
    own = np.frexp(largest_magnitudes(few))[1].astype(np.int64)
    few = scaled(few, -own)
    exponents, lines = np.full(n + 1, UNSET), np.zeros((len(index), n + 1))
    if not alone:
        lines[:, :n] = to_host_float64(inner(few, piece))
        exponents[:n] = 0
    lines[:, index] = to_host_float64(inner(few, few))
    exponents[index] = own + down
    gram = np.zeros((n + 1, n + 1))
    if pivot is not None:
        border, corner, exponent = _border(few, pivot)
        lines[:, n], exponents[n], gram[n, n] = border, exponent + down, corner if alone else 0.0
    gram[index] = lines
    gram[:, index] = lines.T
    return ScaledGram(gram, exponents)


def _may_overflow(piece: Block) -> bool:
    """Whether the difference of two of these rows may; one that is not finite makes no other overflow."""
    magnitudes = largest_magnitudes(piece)
    most = magnitudes[np.isfinite(magnitudes)].max(initial=0.0)
    return bool(most >= NEAR_OVERFLOW[piece.dtype.itemsize])


def _border(shifted: Any, pivot: Any) -> tuple[Array, float, int]:
    """Products of the rows with the origin, the origin's own, and its exponent.

    The pivot's own square may overflow where no difference does, so it is scaled to a norm near 1.
    """
    exponent = largest_exponent(pivot)
    near = scaled(pivot, -exponent)[None]
    return to_host_float64(inner(shifted, -near))[:, 0], float(inner(near, near)[0, 0]), exponent


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


def _on_gpu(block: Block) -> bool:
    return not isinstance(block, np.ndarray) and block.is_cuda


def in_plain_units(measured: ScaledGram) -> Array:
    """The Gram matrix in the caller's units, if these can hold it."""
    return at_exponents(measured.gram, measured.exponents)


def nothing(n: int) -> ScaledGram:
    """The Gram matrix of no columns."""
    return ScaledGram(np.zeros((n + 1, n + 1)), np.full(n + 1, UNSET))


def without(measured: ScaledGram, rows: list[int]) -> ScaledGram:
    """The same with the lines of these rows unset."""
    gram, exponents = measured
    if rows:
        gram, exponents = gram.copy(), exponents.copy()
        gram[rows] = gram[:, rows] = 0.0
        exponents[rows] = UNSET
    return ScaledGram(gram, exponents)


def added(first: ScaledGram, second: ScaledGram) -> ScaledGram:
    """The Gram matrix of the columns of both."""
    if first.exponents.max() == UNSET:
        return second
    if np.array_equal(first.exponents, second.exponents):
        return ScaledGram(first.gram + second.gram, first.exponents)
    first, second = _unset_zeros(first), _unset_zeros(second)
    exponents = np.maximum(first.exponents, second.exponents)
    return ScaledGram(_at(first, exponents) + _at(second, exponents), exponents)


def _unset_zeros(measured: ScaledGram) -> ScaledGram:
    """The same with lines of zeros unset: their exponents must not make another block's numbers underflow."""
    return ScaledGram(measured.gram, np.where(measured.gram.any(axis=1), measured.exponents, UNSET))


def _at(measured: ScaledGram, exponents: NDArray[np.int64]) -> Array:
    return at_exponents(measured.gram, measured.exponents - exponents)


def at_exponents(gram: Array, shift: NDArray[np.int64]) -> Array:
    """gram[i, j]·2^(shift[i] + shift[j])."""
    if not shift.any():
        return gram
    # What is shifted out of range was unset, or is nothing beside what else its row holds.
    shift = np.clip(shift, -(2**14), 2**14)
    return np.asarray(np.ldexp(gram, shift[:, None] + shift))
