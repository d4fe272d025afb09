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
    for columns, block in _narrow(rows):
        answer.write(columns, weighted_sum(block))
        if progress:
            progress("averaging", columns.stop, rows.d)
    return answer.finish(weights)


def merge_columns(
    rows: Rows,
    weights: Weights,
    usable: Mask,
    merge: Callable[[slice, Block, int, Weights], Any],
    f: int,
    progress: Progress | None = None,
) -> tuple[Any, float]:
    """`merge` of every block of usable rows, and how far the whole is from the weighted mean."""
    answer, weighted_sum = rows.answer(), _Sum(weights, usable)
    alive, square = np.flatnonzero(usable).tolist(), 0.0
    for columns, block in _narrow(rows):
        merged = merge(columns, block if usable.all() else block[alive], f, weights[alive])
        answer.write(columns, merged)
        apart = host(merged - weighted_sum(block))
        square += float(apart @ apart)
        if progress:
            progress("merging", columns.stop, rows.d)
    return answer.finish(weights), math.sqrt(square)


def _narrow(rows: Rows) -> Iterator[tuple[slice, Block]]:
    """The blocks, cut where they are wide views, so that what is made of them stays small."""
    for columns, block in rows.blocks():
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

    def __call__(self, block: Block) -> Any:
        if self._there is None:
            on_host = isinstance(block, np.ndarray)
            self._there = self.weights.astype(block.dtype) if on_host else block.new_tensor(self.weights)
        w = self._there
        if not isinstance(block, np.ndarray) and block.is_cuda:
            from randeigen import cuda

            if cuda.takes(block):
                return cuda.weighted_sum(block, w)
        total = w[self.runs[0]] @ block[self.runs[0]]
        for run in self.runs[1:]:
            total += w[run] @ block[run]
        return total


def _runs(usable: Mask, weights: Weights) -> list[slice]:
    """Stretches of consecutive rows to read, so that each is a view and a single product."""
    mask = np.ones_like(usable) if usable.all() else usable & (weights > 0)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [slice(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
