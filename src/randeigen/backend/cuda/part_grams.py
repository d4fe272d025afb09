"""The Gram matrices of parts of rows on a GPU: a program reads one where it lies, until its pivot is near.

Of float32 numbers every product is exact in float64, in which all sums are made. What `geometry.gram_batch`
does on a CPU, pivot after pivot for those parts that need another, is here one launch, and nobody waits.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

from randeigen.backend.cuda.gram import triton_dtype
from randeigen.backend.cuda.language import jit, kept_launch, tl, triton
from randeigen.backend.cuda.order_statistics import median, ranks, with_rank

COLUMNS = 64  # columns that are multiplied at once


class PivotLimits(NamedTuple):
    """When the inner products of a part are sound."""

    largest: float  # squares from here on overflow
    smallest: float  # squares below this underflow
    offset: float  # a median square this many times the distances between rows is that of a far pivot
    pivots: int  # that are tried after the first


def grams(pieces: Any, three_and_partners: Any, limits: PivotLimits) -> Any:
    """(p, n, n) inner products in float64 of (p, n, w) pieces; those of a piece that is not sound are NaN.

    From the middle of three rows; where that is far from the rows, by the distance of each from its partner,
    from the row that half of the others are nearest to. `three_and_partners`, (3 + n,), are 64-bit integers
    on the device.
    """
    import torch

    p, n, width = pieces.shape
    products = torch.empty((p, n, n), dtype=torch.float64, device=pieces.device)
    lines = max(16, triton.next_power_of_2(n))
    constants = ("DTYPE", triton_dtype(pieces.dtype)), ("LINES", lines), ("COLUMNS", COLUMNS)
    launch = kept_launch(_gram_kernel, p, pieces.device, constants, num_warps=1)
    base, apart, stride = pieces.data_ptr(), pieces.stride(0), pieces.stride(1)
    launch(three_and_partners, products, base, apart, stride, n, width, *limits)
    return products


@jit
def _middle(a, b, c):
    return tl.maximum(tl.minimum(a, b), tl.minimum(tl.maximum(a, b), c))


@jit
def _measured(
    start, stride, first, second, third, i, n, width, LINES: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Inner products from the middle of three rows, and in how many columns each row differs from that."""
    rows = start + i[:, None] * stride
    total = tl.zeros((LINES, LINES), tl.float64)
    unlike = tl.zeros((LINES,), tl.int32)
    for at in range(0, width, COLUMNS):
        c = at + tl.arange(0, COLUMNS)
        inside = c < width
        a = tl.load(start + first * stride + c, mask=inside, other=0.0)
        b = tl.load(start + second * stride + c, mask=inside, other=0.0)
        pivot = _middle(a, b, tl.load(start + third * stride + c, mask=inside, other=0.0)).to(tl.float64)
        live = (i < n)[:, None] & inside[None, :]
        x = tl.load(rows + c[None, :], mask=live, other=0.0).to(tl.float64)
        x = tl.where(live, x - pivot[None, :], 0.0)
        unlike += tl.sum((x != 0).to(tl.int32), 1)
        total = tl.dot(x, tl.trans(x), total, input_precision="ieee", out_dtype=tl.float64)
    return total, unlike


@jit
def _distances(gram, squares):
    return tl.maximum(squares[:, None] + squares[None, :] - 2 * gram, 0.0)


@jit
def _central(between, i, n, LINES: tl.constexpr):
    """The row whose distance from the median row is least, and that squared distance."""
    column, inside = i[None, :], i < n
    between = tl.where(inside[None, :], between, float("inf"))
    rank = tl.zeros((LINES, LINES), tl.int32)
    for k in range(n):
        values = tl.sum(tl.where(column == k, between, 0.0), 1)[:, None]
        rank += ((values < between) | ((values == between) & (k < column))).to(tl.int32)
    typical = tl.sum(tl.where((rank == (n - 1) // 2) & inside[None, :], between, 0.0), 1)
    typical = tl.where(inside, typical, float("inf"))
    return tl.argmin(typical, 0), tl.min(typical, 0)


@jit(do_not_specialize=["base", "apart", "stride", "n", "width", "pivots"])
def _gram_kernel(
    three, products, base: tl.int64, apart: tl.int64, stride: tl.int64, n, width,
    largest: tl.float64, smallest: tl.float64, offset: tl.float64, pivots,
    DTYPE: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    cloud = tl.program_id(0).to(tl.int64)
    start = base.to(tl.pointer_type(DTYPE)) + cloud * apart
    i = tl.arange(0, LINES)
    row, column, inside = i[:, None], i[None, :], i < n
    first, second, third = tl.load(three), tl.load(three + 1), tl.load(three + 2)
    gram = tl.zeros((LINES, LINES), tl.float64)
    left, near = pivots, 0  # pivots that may still be tried after this one
    while (left >= 0) & (near == 0):
        gram, unlike = _measured(start, stride, first, second, third, i, n, width, LINES, COLUMNS)
        squares = tl.sum(tl.where(row == column, gram, 0.0), 1)
        # What is NaN is not less than anything.
        odd = ~(squares < largest) | ((squares < smallest) & (unlike > 0))
        if tl.sum((odd & inside).to(tl.int32), 0) > 0:
            left = -1
        else:
            between = _distances(gram, squares)
            if left == pivots:
                partner = tl.load(three + 3 + i, mask=inside, other=0)
                apart_by = tl.sum(tl.where(column == partner[:, None], between, 0.0), 1)
                quartile = with_rank(apart_by, ranks(apart_by, i, inside), inside, n // 4)
                near = tl.where(median(squares, i, inside) > offset * quartile, 0, 1)
            if near == 0:
                first, least = _central(between, i, n, LINES)
                first = first.to(tl.int64)
                second, third = first, first
                lower = with_rank(squares, ranks(squares, i, inside), inside, (n - 1) // 2)
                near = tl.where(lower > offset * least, 0, 1)
            left -= 1
    gram = tl.where(near == 0, float("nan"), gram)
    tl.store(products + cloud * n * n + row * n + column, gram, mask=inside[:, None] & (column < n))
