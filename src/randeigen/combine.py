"""Pass 2: the weights are spent on the rows, block by block, in the caller's form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from randeigen.blocks import host
from randeigen.types import Block, Mask, Progress, Rows, Weights

WIDE = 4_200_000  # columns; a multiple of every chunk in use


def combine(
    rows: Rows, weights: Weights, usable: Mask, scale: float = 1.0, progress: Progress | None = None
) -> Any:
    """scale · Σ wᵢ xᵢ over the usable rows."""
    answer, weighted_sum = rows.answer(), _Sum(weights * scale, usable)
    for columns, block in rows.blocks():
        if not weighted_sum.into(answer.place(columns, block), block):
            for part, narrow in _narrow(columns, block):
                answer.write(part, weighted_sum(narrow))
        if progress:
            progress("averaging", columns.stop, rows.d)
    return answer.finish(weights)


def merge_columns(
    rows: Rows,
    weights: Weights,
    usable: Mask,
    merge: Callable[[slice, Block], Any],
    scale: float = 1.0,
    progress: Progress | None = None,
) -> tuple[Any, float]:
    """`merge` of every block of usable rows, and how far the whole is from scale · Σ wᵢ xᵢ."""
    answer, weighted_sum = rows.answer(), _Sum(weights * scale, usable)
    alive, square = np.flatnonzero(usable).tolist(), 0.0
    for columns, block in rows.blocks():
        for part, narrow in _narrow(columns, block):
            merged = merge(part, narrow if usable.all() else narrow[alive])
            answer.write(part, merged)
            apart = host(merged - weighted_sum(narrow))
            square += float(apart @ apart)
        if progress:
            progress("merging", columns.stop, rows.d)
    return answer.finish(weights), math.sqrt(square)


def _narrow(columns: slice, block: Block) -> Iterator[tuple[slice, Block]]:
    """A block, cut if it is a wide view, so that what is made of it stays small."""
    for start in range(columns.start, columns.stop, WIDE):
        part = slice(start, min(start + WIDE, columns.stop))
        yield part, block[:, part.start - columns.start : part.stop - columns.start]


class _Sum:
    """Σ wᵢ xᵢ of block after block. Rows outside the runs are skipped, not multiplied: 0 · NaN is NaN."""

    def __init__(self, weights: Weights, usable: Mask) -> None:
        self.runs = _runs(usable, weights)
        self.weights = np.zeros_like(weights)
        for run in self.runs:
            self.weights[run] = weights[run]
        self._there: Any = None  # the weights where the blocks are

    def into(self, place: Any, block: Block) -> bool:
        """Sum a block on a GPU straight into its place, if that can be done; at memory speed."""
        if place is None or isinstance(block, np.ndarray) or not block.is_cuda:
            return False
        from randeigen import cuda

        if cuda.takes(block):
            cuda.weighted_sum(block, self._beside(block), place)
        return cuda.takes(block)

    def _beside(self, block: Block) -> Any:
        if self._there is None:
            on_host = isinstance(block, np.ndarray)
            self._there = self.weights.astype(block.dtype) if on_host else block.new_tensor(self.weights)
        return self._there

    def __call__(self, block: Block) -> Any:
        w = self._beside(block)
        total = w[self.runs[0]] @ block[self.runs[0]]
        for run in self.runs[1:]:
            total += w[run] @ block[run]
        return total


def _runs(usable: Mask, weights: Weights) -> list[slice]:
    """Stretches of consecutive rows to read, so that each is a view and a single product."""
    mask = usable & (weights > 0)
    if not mask.any() or (usable.all() and 2 * mask.sum() > mask.size):
        mask = usable  # a few zeros cost less than a few more products
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [slice(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
