"""Pass 2: the weights are spent on the rows, block by block, in the caller's form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from randeigen.blocks import host
from randeigen.types import Block, Mask, Progress, Rows, Weights


def combine(
    rows: Rows, weights: Weights, usable: Mask, scale: float = 1.0, progress: Progress | None = None
) -> Any:
    """scale · Σ wᵢ xᵢ over the usable rows. Others are skipped, not multiplied: 0 · NaN is NaN."""
    answer, runs = rows.answer(), _runs(usable, weights)
    for columns, block in rows.blocks():
        answer.write(columns, _weighted_sum(block, weights * scale, runs))
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
    answer, runs = rows.answer(), _runs(usable, weights)
    alive, square = np.flatnonzero(usable).tolist(), 0.0
    for columns, block in rows.blocks():
        merged = merge(columns, block if usable.all() else block[alive], f, weights[alive])
        answer.write(columns, merged)
        apart = host(merged - _weighted_sum(block, weights, runs))
        square += float(apart @ apart)
        if progress:
            progress("merging", columns.stop, rows.d)
    return answer.finish(weights), math.sqrt(square)


def _weighted_sum(block: Block, weights: Weights, runs: list[slice]) -> Any:
    if not isinstance(block, np.ndarray) and block.is_cuda:
        from randeigen import cuda

        return cuda.weighted_sum(block, weights, runs)
    w: Any = weights.astype(block.dtype) if isinstance(block, np.ndarray) else block.new_tensor(weights)
    total = w[runs[0]] @ block[runs[0]]
    for run in runs[1:]:
        total += w[run] @ block[run]
    return total


def _runs(usable: Mask, weights: Weights) -> list[slice]:
    """Stretches of consecutive rows to read, so that each is a view and a single product."""
    mask = np.ones_like(usable) if usable.all() else usable & (weights > 0)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [slice(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
