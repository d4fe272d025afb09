"""Rows whose squares overflow or underflow: which they are, and the Gram matrix in which each is scaled."""

from __future__ import annotations

from typing import Any

import numpy as np

from randeigen.backend.arrays import (
    as_float64,
    largest_magnitudes,
    median_of_columns,
    middle_of_three,
    scaled,
    to_host_float64,
)
from randeigen.backend.chunking import is_host_block, parallel_map, parts, pieces
from randeigen.backend.device_blocks import as_matrix
from randeigen.geometry.products import UNSET, Pivot, ScaledGram, border, inner
from randeigen.types import Block

NEAR_OVERFLOW = {4: 2.0**125, 8: 2.0**1021}  # the difference of two larger numbers may not be finite


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
        to_origin, corner, exponent = border(few, pivot)
        lines[:, n], exponents[n], gram[n, n] = to_origin, exponent + down, corner if alone else 0.0
    gram[index] = lines
    gram[:, index] = lines.T
    return ScaledGram(gram, exponents)


def _may_overflow(piece: Block) -> bool:
    """Whether the difference of two of these rows may; one that is not finite makes no other overflow."""
    magnitudes = largest_magnitudes(piece)
    most = magnitudes[np.isfinite(magnitudes)].max(initial=0.0)
    return bool(most >= NEAR_OVERFLOW[piece.dtype.itemsize])
