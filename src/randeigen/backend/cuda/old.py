"""The same two passes on an NVIDIA GPU, each one kernel that reads the rows once.

Products are made on tensor cores from two bfloat16 halves of every float32: x = hi + lo to 2⁻¹⁷, and
x·y ≈ hi·hi' + hi·lo' + lo·hi'. What is left out is below 2⁻¹⁶ of the rows' norms whoever chose them,
and about 1e-6 in practice. TF32 alone would leave 2⁻¹¹ to an adversary who rounds to his liking.

Sums are off by more if somebody arranges it: tensor cores cut them short, by up to 2⁻²³ of the largest term
for each product between two ordinary additions, and each of those rounds. A launch takes so few columns that
no reader makes more than `_additions`; launches are added up in float64. `_precision` is their sum.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from randeigen.backend.arrays import (
    UNIT_ROUNDOFF,
    bordered,
    largest_magnitudes,
    middle_of_three,
    scaled,
    to_host_float64,
)
from randeigen.backend.chunking import pieces
from randeigen.types import Array, Block

try:
    import triton
    import triton.language as tl
except ImportError:  # pragma: no cover - torch ships it wherever it has a GPU
    triton = None

TILE = 128  # rows of a product
STRIP = 64  # columns that tensor cores multiply at once
STRIPS = 2  # strips whose products tensor cores add up before an ordinary addition
SUM_COLUMNS = 2048  # columns of a weighted sum that one program makes


def gram_and_origin_exponent(
    block: Block, pivot_rows: tuple[int, int, int] | None
) -> tuple[Array, int, float]:
    """(n+1, n+1) inner products of the rows, the origin last, from the middle of three rows if given.

    The origin's are at an exponent of their own, the second number, since the pivot's square may overflow
    where no difference does. The third is how far an entry can be off, relative to the two rows' norms,
    whoever chose the numbers.
    """
    exponent = 0 if pivot_rows is None else _size_of_middle(block, pivot_rows)
    if takes(block):
        return _by_kernel(block, pivot_rows, exponent), exponent, _precision(block.shape[0])
    return _by_torch(block, pivot_rows, exponent), exponent, (block.shape[1] + 8) * UNIT_ROUNDOFF[8]


def _precision(n: int) -> float:
    """What a reader's products and additions can take from an entry, relative to the two rows' norms."""
    cut_short = 2 * STRIPS * STRIP if n <= TILE else 3 * STRIP  # products between two ordinary additions
    return 2.0**-16 + cut_short * 2.0**-23 + (_additions(n) + 8) * UNIT_ROUNDOFF[4]


def _additions(n: int) -> int:
    """Ordinary additions that one reader makes in a launch: fewer where more rows add up what is missing."""
    return 512 if n <= TILE else 256


def _size_of_middle(block: Block, three: tuple[int, int, int]) -> int:
    """An exponent that the middle of three rows does not exceed; without a copy of any."""
    sizes = sorted(
        size for i in three if math.isfinite(size := float(largest_magnitudes(block[i : i + 1])[0]))
    )
    if not sizes:
        return 0
    # Of three finite numbers two are at least as large as their middle.
    exponent = math.frexp(sizes[1] if len(sizes) == 3 else sizes[-1])[1]
    return max(-120, min(exponent, 120)) if block.element_size() == 4 else exponent


def _by_kernel(block: Block, pivot_rows: tuple[int, int, int] | None, exponent: int) -> Array:
    import torch

    n, d = block.shape
    tiles = triton.cdiv(n, TILE)
    pairs = tiles * (tiles + 1) // 2
    readers = max(1, min(triton.cdiv(d, 8 * STRIP), _processors(block) // pairs))
    strips = STRIPS if tiles == 1 else 1
    rows, step = tiles * TILE, STRIP * STRIPS
    make = torch.empty if tiles == 1 else torch.zeros  # one tile is written whole
    grams = make((readers, rows, rows), dtype=torch.float32, device=block.device)
    border = torch.zeros((readers, rows + 1), dtype=torch.float32, device=block.device)
    three = torch.tensor(pivot_rows or (0, 0, 0), device=block.device) * block.stride(0)
    inner = torch.zeros((rows, rows), dtype=torch.float64, device=block.device)
    edge = torch.zeros(rows + 1, dtype=torch.float64, device=block.device)
    # Most columns without a mask, which costs a sixteenth of the time, and the last few with one.
    even, most = d - d % step, readers * _additions(n) * STRIP * strips
    cuts = [(start, min(start + most, even)) for start in range(0, even, most)]
    for start, stop in [*cuts, (even, d)] if even < d else cuts:
        part = block[:, start:stop]
        _products_kernel[(readers, pairs)](
            part, grams, border, n, stop - start, block.stride(0), rows, three, 1.0,
            1.0 if pivot_rows is None else 2.0**-exponent,
            PIVOT=pivot_rows is not None, ONE_TILE=tiles == 1, EVEN=stop <= even,
            TILE=TILE, STRIP=STRIP, STRIPS=strips,
            num_warps=8, num_stages=3 if tiles == 1 else 2,
        )  # fmt: skip
        inner += grams.sum(0, dtype=torch.float64)
        edge += border.sum(0, dtype=torch.float64)
    inner = inner[:n, :n]
    inner = (inner + inner.T) / 2 if tiles == 1 else torch.triu(inner) + torch.triu(inner, 1).T
    found = to_host_float64(torch.cat((inner.reshape(-1), edge)))  # one transfer, one wait
    return bordered(found[: n * n].reshape(n, n), found[n * n : n * n + n], found[-1])


def takes(block: Block) -> bool:
    """Whether the kernels can read this block as it lies."""
    return triton is not None and block.element_size() == 4 and block.stride(1) == 1


def weighted_sum(block: Block, w: Any, total: Any) -> None:
    """total ← Σ wᵢ xᵢ over the rows whose weight is not 0, in one reading at memory speed."""
    grid = (triton.cdiv(block.shape[1], SUM_COLUMNS),)
    _sum_kernel[grid](block, w, total, block.shape[0], block.shape[1], block.stride(0), COLUMNS=SUM_COLUMNS)


def _by_torch(block: Block, pivot_rows: tuple[int, int, int] | None, exponent: int) -> Array:
    """Without Triton: in float64, since float32 products may be TF32 if the caller allowed that."""
    gram = np.zeros((block.shape[0] + 1, block.shape[0] + 1))
    for piece in pieces(block):
        exact, to_origin, origin = piece.double(), np.zeros(piece.shape[0]), np.zeros(())
        if pivot_rows is not None:
            pivot = middle_of_three(*(exact[i] for i in pivot_rows))
            exact, near = exact - pivot, scaled(pivot, -exponent)
            to_origin, origin = to_host_float64(exact @ -near), to_host_float64(near @ near)
        gram += bordered(to_host_float64(exact @ exact.T), to_origin, origin)
    return gram


def _processors(block: Block) -> int:
    import torch

    return int(torch.cuda.get_device_properties(block.device).multi_processor_count)


if triton is not None:

    @triton.jit
    def _products_kernel(  # type: ignore[no-untyped-def]
        x, grams, border, n, d, stride, rows, three, one, shrink,
        PIVOT: tl.constexpr, ONE_TILE: tl.constexpr, EVEN: tl.constexpr,
        TILE: tl.constexpr, STRIP: tl.constexpr, STRIPS: tl.constexpr,
    ):  # fmt: skip
        reader, pair = tl.program_id(0), tl.program_id(1)
        # Pairs of row tiles (ti ≤ tj) numbered along the columns of the upper triangle.
        tj = pair * 0
        while (tj + 1) * (tj + 2) // 2 <= pair:
            tj += 1
        ti = pair - tj * (tj + 1) // 2
        i = ti * TILE + tl.arange(0, TILE)
        j = tj * TILE + tl.arange(0, TILE)
        at_i = x + i.to(tl.int64)[:, None] * stride
        at_j = x + j.to(tl.int64)[:, None] * stride
        whole = tl.zeros((TILE, TILE), tl.float32)
        to_origin = tl.zeros((TILE,), tl.float32)
        origin = tl.zeros((1,), tl.float32)
        for start in range(reader * STRIP * STRIPS, d, tl.num_programs(0) * STRIP * STRIPS):
            part = tl.zeros((TILE, TILE), tl.float32)
            for strip in tl.static_range(STRIPS):
                c = start + strip * STRIP + tl.arange(0, STRIP)
                inside = c < d
                if EVEN:
                    a = tl.load(at_i + c[None, :], mask=i[:, None] < n, other=0.0)
                else:
                    a = tl.load(at_i + c[None, :], mask=(i[:, None] < n) & inside[None, :], other=0.0)
                if PIVOT:
                    p0 = tl.load(x + tl.load(three + 0) + c, mask=inside, other=0.0)
                    p1 = tl.load(x + tl.load(three + 1) + c, mask=inside, other=0.0)
                    p2 = tl.load(x + tl.load(three + 2) + c, mask=inside, other=0.0)
                    pivot = tl.maximum(tl.minimum(p0, p1), tl.minimum(tl.maximum(p0, p1), p2))
                    a = tl.where(i[:, None] < n, a - pivot[None, :], 0.0)
                    near = pivot * shrink  # so that its square fits
                    to_origin -= tl.sum(a * near[None, :], 1)
                    origin += tl.sum(near[None, :] * near[None, :], 1)
                a_hi = a.to(tl.bfloat16)
                a_lo = a - a_hi.to(tl.float32)
                if ONE_TILE:  # hi·(2 lo)', made symmetric afterwards, is hi·lo' + lo·hi'
                    part = tl.dot(a_hi, tl.trans(a_hi), part)
                    part = tl.dot(a_hi, tl.trans((2 * a_lo).to(tl.bfloat16)), part)
                else:
                    b = tl.load(at_j + c[None, :], mask=(j[:, None] < n) & inside[None, :], other=0.0)
                    if PIVOT:
                        b = tl.where(j[:, None] < n, b - pivot[None, :], 0.0)
                    b_hi = b.to(tl.bfloat16)
                    part = tl.dot(a_hi, tl.trans(b_hi), part)
                    part = tl.dot(a_hi, tl.trans((b - b_hi.to(tl.float32)).to(tl.bfloat16)), part)
                    part = tl.dot(a_lo.to(tl.bfloat16), tl.trans(b_hi), part)
            # Tensor cores cut their sums short, always downwards; an ordinary addition rounds. Times `one`,
            # or the compiler would fold it back into them (measured: 1e-3 off at d = 2^26, against 3e-6).
            whole += one * part
        out = grams + reader.to(tl.int64) * rows * rows + i[:, None] * rows + j[None, :]
        tl.store(out, whole)
        if PIVOT and ti == tj:
            edge = border + reader * (rows + 1)
            tl.store(edge + i, to_origin)
            if ti == 0:
                tl.store(edge + rows + tl.arange(0, 1), origin)

    @triton.jit
    def _sum_kernel(x, w, total, n, d, stride, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
        c = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
        inside = c < d
        acc = tl.zeros((COLUMNS,), tl.float32)
        at = x + c
        for i in range(n):
            weight = tl.load(w + i)
            if weight != 0.0:  # skipped, not multiplied: 0 · NaN is NaN
                acc += weight * tl.load(at, mask=inside, other=0.0)
            at += stride
        tl.store(total + c, acc, mask=inside)
