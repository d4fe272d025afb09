"""Parts of rows on a GPU, thousands at once: a program reads one part where it lies, once, all rows of it.

Of float32 numbers every product is exact in float64, in which all sums are made.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

from randeigen.backend.cuda.gram import triton_dtype
from randeigen.backend.cuda.language import Launch, jit, kept_launch, tl, triton
from randeigen.types import Array

SUMMED_COLUMNS = 64  # columns that are summed up at once


class SumFacts(NamedTuple):
    """Of the weighted sums of p parts, in main memory."""

    squares: Array  # (p,) Σ wᵢ‖xᵢ‖²
    largest: Array  # (p,) magnitude of a number of the sum; inf if one is not finite
    cast: Array  # (p,) the squared distance by which the dtype has moved it


def variances(pieces: Any, weights: Any) -> Any:
    """(p,) Σ wᵢ‖xᵢ − Σ wⱼxⱼ‖² in each part; rows of weight 0 are not read."""
    import torch

    answers = torch.empty(pieces.shape[0], dtype=torch.float64, device=pieces.device)
    _launch(_variance_kernel, pieces, SUMMED_COLUMNS)(weights, answers, *_where(pieces))
    return answers


def weighted_sums(pieces: Any, weights: Any) -> tuple[Any, SumFacts]:
    """(p, w) Σ wᵢxᵢ by (p, n) weights, in the dtype of the pieces; rows of weight 0 are not read.

    All sums are made in float64. Then waits for what must be known of each part.
    """
    import torch

    p, _, width = pieces.shape
    sums = torch.empty((p, width), dtype=pieces.dtype, device=pieces.device)
    facts = torch.empty((len(SumFacts._fields), p), dtype=torch.float64, device=pieces.device)
    _launch(_sum_kernel, pieces, SUMMED_COLUMNS)(weights.contiguous(), sums, facts, *_where(pieces))
    return sums, SumFacts(*facts.cpu().numpy())


def _launch(kernel: Any, pieces: Any, columns: int) -> Launch:
    lines = max(16, triton.next_power_of_2(pieces.shape[1]))
    constants = ("DTYPE", triton_dtype(pieces.dtype)), ("LINES", lines), ("COLUMNS", columns)
    return kept_launch(kernel, pieces.shape[0], pieces.device, constants, num_warps=1)


def _where(pieces: Any) -> tuple[int, ...]:
    """Address, strides in numbers, rows and columns."""
    return pieces.data_ptr(), pieces.stride(0), pieces.stride(1), pieces.shape[1], pieces.shape[2]


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
    weights, sums, facts, base: tl.int64, apart: tl.int64, stride: tl.int64, n, width,
    DTYPE: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    part, parts = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    i = tl.arange(0, LINES)
    w = tl.load(weights + part * n + i, mask=i < n, other=0.0)
    rows = base.to(tl.pointer_type(DTYPE)) + part * apart + i[:, None] * stride
    total = tl.zeros((LINES,), tl.float64)
    largest = tl.zeros((COLUMNS,), tl.float64)
    cast = tl.zeros((COLUMNS,), tl.float64)
    for at in range(0, width, COLUMNS):
        c = at + tl.arange(0, COLUMNS)
        live = (w != 0)[:, None] & (c < width)[None, :]
        x = tl.load(rows + c[None, :], mask=live, other=0.0).to(tl.float64)
        exact = tl.sum(w[:, None] * x, 0)
        stored = exact.to(DTYPE)
        tl.store(sums + part * width + c, stored, mask=c < width)
        off = exact - stored.to(tl.float64)
        cast += off * off
        size = tl.abs(stored.to(tl.float64))
        largest = tl.where(size < float("inf"), tl.maximum(largest, size), float("inf"))
        total += tl.sum(x * x, 1)
    tl.store(facts + part, tl.sum(w * total, 0))
    tl.store(facts + parts + part, tl.max(largest, 0))
    tl.store(facts + 2 * parts + part, tl.sum(cast, 0))
