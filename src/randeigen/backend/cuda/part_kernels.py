"""Parts of rows on a GPU, thousands at once: a program reads one part where it lies, once, all rows of it.

Of float32 numbers every product is exact in float64, in which all sums are made.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

from randeigen.backend.cuda.gram import triton_dtype
from randeigen.backend.cuda.language import Launch, jit, tl, triton

COLUMNS = 64  # columns that are multiplied at once
SUMMED_COLUMNS = 64  # columns that are summed up at once


def grams(pieces: Any, pivots: Any) -> tuple[Any, Any]:
    """(p, n, n) inner products in float64 from the middle of three rows, whose numbers are (p, 3).

    And (p, n) in how many columns a row differs from that.
    """
    import torch

    p, n, _ = pieces.shape
    products = torch.empty((p, n, n), dtype=torch.float64, device=pieces.device)
    differs = torch.empty((p, n), dtype=torch.int32, device=pieces.device)
    _launch(_gram_kernel, pieces, COLUMNS)(pivots, products, differs, *_where(pieces))
    return products, differs


def variances(pieces: Any, weights: Any) -> Any:
    """(p,) Σ wᵢ‖xᵢ − Σ wⱼxⱼ‖² in each part; rows of weight 0 are not read."""
    import torch

    answers = torch.empty(pieces.shape[0], dtype=torch.float64, device=pieces.device)
    _launch(_variance_kernel, pieces, SUMMED_COLUMNS)(weights, answers, *_where(pieces))
    return answers


def weighted_sums(pieces: Any, weights: Any) -> tuple[Any, Any]:
    """(p, w) Σ wᵢxᵢ by (p, n) weights, and (p,) Σ wᵢ‖xᵢ‖²; rows of weight 0 are not read."""
    import torch

    p, _, width = pieces.shape
    sums = torch.empty((p, width), dtype=torch.float64, device=pieces.device)
    squares = torch.empty(p, dtype=torch.float64, device=pieces.device)
    _launch(_sum_kernel, pieces, SUMMED_COLUMNS)(weights, sums, squares, *_where(pieces))
    return sums, squares


def _launch(kernel: Any, pieces: Any, columns: int) -> Launch:
    lines = max(16, triton.next_power_of_2(pieces.shape[1]))
    constants = {"DTYPE": triton_dtype(pieces.dtype), "LINES": lines, "COLUMNS": columns}
    return Launch(kernel, (pieces.shape[0],), pieces.device, constants, num_warps=1)


def _where(pieces: Any) -> tuple[int, ...]:
    """Address, strides in numbers, rows and columns."""
    return pieces.data_ptr(), pieces.stride(0), pieces.stride(1), pieces.shape[1], pieces.shape[2]


@jit
def _middle(a, b, c):
    return tl.maximum(tl.minimum(a, b), tl.minimum(tl.maximum(a, b), c))


@jit(do_not_specialize=["base", "apart", "stride", "n", "width"])
def _gram_kernel(
    pivots, products, differs, base: tl.int64, apart: tl.int64, stride: tl.int64, n, width,
    DTYPE: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, LINES)
    start = base.to(tl.pointer_type(DTYPE)) + part * apart
    first = start + tl.load(pivots + 3 * part) * stride
    second = start + tl.load(pivots + 3 * part + 1) * stride
    third = start + tl.load(pivots + 3 * part + 2) * stride
    rows = start + i[:, None] * stride
    total = tl.zeros((LINES, LINES), tl.float64)
    unlike = tl.zeros((LINES,), tl.int32)
    for at in range(0, width, COLUMNS):
        c = at + tl.arange(0, COLUMNS)
        inside = c < width
        a = tl.load(first + c, mask=inside, other=0.0)
        b = tl.load(second + c, mask=inside, other=0.0)
        pivot = _middle(a, b, tl.load(third + c, mask=inside, other=0.0)).to(tl.float64)
        live = (i < n)[:, None] & inside[None, :]
        x = tl.load(rows + c[None, :], mask=live, other=0.0).to(tl.float64)
        x = tl.where(live, x - pivot[None, :], 0.0)
        unlike += tl.sum((x != 0).to(tl.int32), 1)
        total = tl.dot(x, tl.trans(x), total, input_precision="ieee", out_dtype=tl.float64)
    line, column = i[:, None], i[None, :]
    tl.store(products + part * n * n + line * n + column, total, mask=(line < n) & (column < n))
    tl.store(differs + part * n + i, unlike, mask=i < n)


@jit(do_not_specialize=["base", "apart", "stride", "n", "width"])
def _variance_kernel(
    weights, answers, base: tl.int64, apart: tl.int64, stride: tl.int64, n, width,
    DTYPE: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, LINES)
    w = tl.load(weights + i, mask=i < n, other=0.0)
    rows = base.to(tl.pointer_type(DTYPE)) + part * apart + i[:, None] * stride
    squares = tl.zeros((LINES,), tl.float64)
    for at in range(0, width, COLUMNS):
        c = at + tl.arange(0, COLUMNS)
        live = (w != 0)[:, None] & (c < width)[None, :]
        x = tl.load(rows + c[None, :], mask=live, other=0.0).to(tl.float64)
        x = tl.where(live, x - tl.sum(w[:, None] * x, 0)[None, :], 0.0)
        squares += tl.sum(x * x, 1)
    tl.store(answers + part, tl.sum(w * squares, 0))


@jit(do_not_specialize=["base", "apart", "stride", "n", "width"])
def _sum_kernel(
    weights, sums, squares, base: tl.int64, apart: tl.int64, stride: tl.int64, n, width,
    DTYPE: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, LINES)
    w = tl.load(weights + part * n + i, mask=i < n, other=0.0)
    rows = base.to(tl.pointer_type(DTYPE)) + part * apart + i[:, None] * stride
    total = tl.zeros((LINES,), tl.float64)
    for at in range(0, width, COLUMNS):
        c = at + tl.arange(0, COLUMNS)
        live = (w != 0)[:, None] & (c < width)[None, :]
        x = tl.load(rows + c[None, :], mask=live, other=0.0).to(tl.float64)
        tl.store(sums + part * width + c, tl.sum(w[:, None] * x, 0), mask=c < width)
        total += tl.sum(x * x, 1)
    tl.store(squares + part, tl.sum(w * total, 0))
