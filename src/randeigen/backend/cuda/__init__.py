"""Both passes on an NVIDIA GPU: kernels that read the rows once, where they lie, whatever their float dtype.

A call waits for the device twice: for the Gram matrix, and for what happened while the rows were summed up.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from randeigen.backend.arrays import (
    UNIT_ROUNDOFF,
    as_float64,
    largest_magnitudes,
    middle_of_three,
    scaled,
    working_size,
)
from randeigen.backend.chunking import pieces
from randeigen.backend.device_blocks import Leaves, takes
from randeigen.types import Array, Block

__all__ = ["gram_on_device"]

Three = tuple[int, int, int]
MIN_CHUNKED_ROWS, MAX_CHUNKED_ROWS = 30, 128  # rows whose float64 products are made chunk by chunk
MIN_CHUNK, MAX_CHUNKS = 2**12, 256  # columns of a chunk; chunks, whose matrices stay below 32 MB
MIN_FOLDED_NUMBERS = 2**23  # numbers of float64 from which few rows are folded: below it launches cost more
MIN_KERNEL_COLUMNS = 64  # of fewer the rounding of a single product shows, and float64 costs nothing


def gram_on_device(
    block: Block, pivot_rows: Three | None, norms: Array | None = None
) -> tuple[Any, int, float]:
    """(n+1, n+1) inner products of the rows, the origin last, from the middle of three rows if given.

    The origin's are those of 2^-exponent times itself: the pivot's square may overflow where no difference
    does. And how far an entry can be off, relative to the two rows' norms, whoever chose the numbers. Nobody
    waits for it.
    """
    exponent = 0 if pivot_rows is None else _exponent_of_middle(block, pivot_rows, norms)
    if takes(block) and working_size(block) == 4 and block.shape[1] >= MIN_KERNEL_COLUMNS:
        from randeigen.backend.cuda.gram import gram

        matrix, precision = gram(block, pivot_rows, exponent)
    else:
        matrix, precision = _by_torch(block, pivot_rows, exponent), (block.shape[1] + 8) * UNIT_ROUNDOFF[8]
    if isinstance(block, Leaves) and block.missing:
        matrix[block.missing] = matrix[:, block.missing] = math.nan
    return matrix, exponent, precision


def _exponent_of_middle(block: Block, three: Three, norms: Array | None) -> int:
    """An exponent that the middle of three rows does not exceed: that of their norms, if these are known."""
    sizes = np.zeros(3) if norms is None else norms[list(three)]
    if not (np.isfinite(sizes) & (sizes > 0)).all():
        sizes = np.concatenate([largest_magnitudes(block[i : i + 1]) for i in three])
    finite = np.sort(sizes[np.isfinite(sizes)])
    if not finite.size:
        return 0
    # Of three finite numbers two are at least as large as their middle.
    exponent = math.frexp(finite[1] if finite.size == 3 else finite[-1])[1]
    return max(-120, min(exponent, 120)) if working_size(block) == 4 else exponent


def _in_chunks(block: Any, out: Any) -> None:
    """The Gram matrix of float64 rows; as a sum over chunks where that is a tenth to a fifth faster."""
    import torch

    n, d = block.shape
    if (folds := _folds(block)) > 1:
        folded = out.new_empty((n * folds, n * folds))
        _in_chunks(block.view(n * folds, d // folds), folded)
        torch.sum(folded.view(n, folds, n, folds).diagonal(dim1=1, dim2=3), 2, out=out)
        return
    width = max(MIN_CHUNK, 1 << (d // MAX_CHUNKS).bit_length())
    if not MIN_CHUNKED_ROWS <= n <= MAX_CHUNKED_ROWS or d < 2 * width:
        out[:] = block @ block.T
        return
    whole = d - d % width
    chunks = block.as_strided((whole // width, n, width), (width * block.stride(1), *block.stride()))
    torch.sum(chunks @ chunks.mT, 0, out=out)
    if whole < d:
        out += block[:, whole:] @ block[:, whole:].T


def _folds(block: Any) -> int:
    """How often each of few rows is folded: a product of 4 rows takes as long as one of 32."""
    n, d = map(int, block.shape)
    if n * d < MIN_FOLDED_NUMBERS or n >= MIN_CHUNKED_ROWS or not block.is_contiguous():
        return 1
    return min(1 << (-(-MIN_CHUNKED_ROWS // n) - 1).bit_length(), d & -d)


def _by_torch(block: Block, pivot_rows: Three | None, exponent: int) -> Any:
    """In float64: without Triton float32 products may be TF32 if the caller allowed that."""
    import torch

    n = block.shape[0]
    total = torch.zeros((n + 1, n + 1), dtype=torch.float64, device=block.device)
    if pivot_rows is None and not isinstance(block, Leaves) and block.dtype == torch.float64:
        _in_chunks(block, total[:-1, :-1])  # nothing is copied
        return total
    for piece in pieces(block):
        exact = piece if piece.dtype == torch.float64 and not isinstance(piece, Leaves) else as_float64(piece)
        if pivot_rows is not None:
            pivot = middle_of_three(*(exact[i] for i in pivot_rows))
            exact, near = exact - pivot, scaled(pivot, -exponent)
            total[:-1, -1] -= exact @ near
            total[-1, -1] += near @ near
        total[:-1, :-1] += exact @ exact.T
        del exact  # before the next is copied
    total[-1, :-1] = total[:-1, -1]
    return total
