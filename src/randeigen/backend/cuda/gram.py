"""The Gram matrix of rows on a GPU in one reading, made of tensor-core products.

Half precision: products of two numbers are exact in float32, so one tensor-core product does. float32: from
two bfloat16 halves of every number, x = hi + lo to 2⁻¹⁷, and x·y ≈ hi·hi' + hi·lo' + lo·hi'. What is left
out is below 2⁻¹⁶ of the rows' norms whoever chose them, and about 1e-6 in practice. TF32 alone would leave
2⁻¹¹ to an adversary who rounds to his liking.

Sums are off by more if somebody arranges it: tensor cores cut them short, by up to 2⁻²³ of the largest term
for each product between two ordinary additions, and each of those rounds. After `ADDITIONS` of them a program
adds what it has to a float64 matrix of its own. `precision` is their sum.

Few rows share a tile: one of 64 lines holds 16 rows four times, each time another stretch of columns, and the
four blocks on its diagonal are added up. So no line is loaded in vain.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.arrays import UNIT_ROUNDOFF
from randeigen.backend.cuda.gram_kernels import collect_kernel, gram_kernel
from randeigen.backend.cuda.language import Launch, tl, triton
from randeigen.backend.cuda.tables import (
    KEPT_SHAPES,
    Steps,
    addresses_of,
    lengths_of,
    on_device,
    processors,
    steps_of,
)

ADDITIONS = 512  # ordinary additions in float32 that a program makes before it adds to float64
TILES_SIDE_BY_SIDE = 12  # pairs of tiles are taken in squares of this side, whose rows the cache can share
MAX_MATRIX_BYTES = (
    2**26
)  # bytes of matrices of their own of programs that share the columns of a pair of tiles
ENTRIES_AT_ONCE = 4096  # entries of all programs' matrices that one program adds up


class Tiling(NamedTuple):
    """How rows and columns are cut for the tensor cores."""

    tile: int  # lines of a product
    rows: int  # rows among them, a power of 2: the lines hold these tile / rows times
    strip: int  # columns that tensor cores multiply at once
    strips: int  # strips whose products tensor cores add up before an ordinary addition
    warps: int
    stages: int  # loads under way
    programs: int  # on each processor at once


def tiling(n: int, pivot: bool, itemsize: int) -> Tiling:
    """What was fastest on an H200."""
    lines = n + pivot  # the origin is measured like a row
    if lines <= 64:
        rows = max(4, 1 << (lines - 1).bit_length())
        return Tiling(64, rows, 64, 1, 4, 2, 2) if pivot and rows < 64 else Tiling(64, rows, 64, 2, 4, 3, 2)
    if itemsize == 2 and not pivot:
        return Tiling(128, 128, 128, 2 if lines <= 128 else 1, 8, 3, 1)
    return Tiling(128, 128, 64, 2 if lines <= 128 else 1, 8, 3, 1)


def gram(
    block: Any, pivot_rows: tuple[int, int, int] | None = None, exponent: int = 0, shape: Tiling | None = None
) -> tuple[Any, float]:
    """(n+1, n+1) float64 on the device: inner products of the rows less the pivot, the origin last.

    The pivot is the middle of three rows, column by column, or none: then the origin's are 0. The origin is
    2**-exponent times itself. And how far an entry can be off, relative to the two rows' norms, whoever chose
    the numbers.
    """
    import torch

    n, pivot, device = block.shape[0], pivot_rows is not None, block.device
    base, rows, align = addresses_of(block)
    plan = _plan(device, block.dtype, n, lengths_of(block), pivot, align, shape)
    steps, side = plan.steps, plan.side
    grams = torch.empty((plan.readers, side, side), dtype=torch.float64, device=device)
    total = torch.empty((n + 1, n + 1), dtype=torch.float64, device=device)
    plan.multiply(
        rows, steps.lengths, steps.before, plan.pairs, grams, base, steps.leaves, n, side,
        *(pivot_rows or (0, 0, 0)), 1.0, 2.0**-exponent,
    )  # fmt: skip
    plan.collect(grams, total, plan.copies, n, n + pivot, side)
    return total, plan.precision


class _Plan(NamedTuple):
    """Everything about the Gram matrix of a block but where the block is."""

    steps: Steps
    pairs: Any  # of tiles
    readers: int  # programs that share the columns of a pair
    copies: int  # of the matrix, in all readers
    side: int  # of a reader's matrix
    multiply: Launch
    collect: Launch
    precision: float


@lru_cache(KEPT_SHAPES)
def _plan(
    device: Any, dtype: Any, n: int, lengths: tuple[int, ...], pivot: bool, align: int, shape: Tiling | None
) -> _Plan:
    shape = shape or tiling(n, pivot, dtype.itemsize)
    split = pivot or dtype.itemsize > 2
    segments, tiles = shape.tile // shape.rows, -(-(n + pivot) // shape.rows)
    side, steps = tiles * shape.tile, steps_of(device, lengths, shape.strip * shape.strips * segments)
    pairs = _pairs(device, tiles)
    readers = min(_readers(processors(device) * shape.programs, len(pairs), side), steps.total)
    multiply = Launch(
        gram_kernel, (readers, len(pairs)), device,
        {"DTYPE": triton_dtype(dtype), "ALIGN": align, "ONE_LEAF": steps.leaves == 1,
         "PIVOT": pivot, "SPLIT": split, "ONE_TILE": tiles == 1, "TILE": shape.tile, "ROWS": shape.rows,
         "STRIP": shape.strip, "STRIPS": shape.strips, "MOST": ADDITIONS // 2 - 1},
        num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
    copies = readers * segments
    together = min(256, triton.next_power_of_2(copies))
    entries = ENTRIES_AT_ONCE // together
    while together < copies and entries > 1 and (n + 1) ** 2 < entries * processors(device):
        together, entries = 2 * together, entries // 2  # few entries of many copies, for all processors
    collect = Launch(
        collect_kernel, (triton.cdiv((n + 1) ** 2, entries),), device,
        {"ONE_TILE": tiles == 1, "TILE": shape.tile, "ROWS": shape.rows, "COPIES": together,
         "ENTRIES": entries},
    )  # fmt: skip
    off = precision(shape, (2 if tiles == 1 else 3) if split else 1)
    return _Plan(steps, pairs, readers, copies, side, multiply, collect, off)


def precision(shape: Tiling, products: int) -> float:
    """What a program's products and additions can take from an entry, relative to the two rows' norms."""
    cut_short = products * shape.strips * shape.strip  # products between two ordinary additions
    split = 2.0**-16 if products > 1 else 0.0
    return split + cut_short * 2.0**-23 + (ADDITIONS + 8) * UNIT_ROUNDOFF[4]


def triton_dtype(dtype: Any) -> Any:
    """Triton's own name of a torch dtype."""
    return getattr(tl, str(dtype).removeprefix("torch."))


@cache
def _pairs(device: Any, tiles: int) -> Any:
    """Pairs of tiles i ≤ j as i·2³² + j, in squares of TILES_SIDE_BY_SIDE; on the device."""
    i, j = np.triu_indices(tiles)
    order = np.lexsort((i, j, i // TILES_SIDE_BY_SIDE, j // TILES_SIDE_BY_SIDE))
    return on_device(device, (i[order] << 32) + j[order], wait=True)[0][: i.size]


@cache
def _readers(programs: int, pairs: int, side: int) -> int:
    """Programs that share the columns of each pair, such that the last wave of programs is nearly full."""
    if pairs == 1:
        return programs
    choices = range(1, max(1, min(MAX_MATRIX_BYTES // (8 * side**2), 4 * programs // pairs)) + 1)
    return max(choices, key=lambda r: (round(r * pairs / (-(-r * pairs // programs) * programs), 2), -r))
