"""Columns sorted strip by strip: all that a coordinate-wise rule is made of.

A strip is transposed so that the n numbers of a column lie side by side, then sorted: numpy does this with
vector instructions, six times faster than selecting the middle, and all below can be read off it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from randeigen.backend.arrays import joined
from randeigen.backend.chunking import (
    DEVICE_STRIP_NUMBERS,
    MIN_STRIP_COLUMNS,
    STRIP_NUMBERS,
    STRIPS_PER_THREAD,
    parallel_map,
)
from randeigen.backend.device_blocks import BegunColumns, MergedColumns, empty_leaves, takes
from randeigen.types import Array, Block

Sorted = Any  # (s, n) array or tensor, each line a column in ascending order; may be written to


@dataclass(frozen=True)
class SortedColumns:
    """A combiner: what `answer` makes of each sorted column, over these rows of the usable ones or all."""

    answer: Callable[[Sorted], Any]
    rows: list[int] | None = None
    kind: str | None = None  # the name of that answer among a GPU's kernels, if it is there
    f: int = 0  # how many numbers it leaves out: at each end, or in all
    block_multiple: ClassVar[int] = 1

    def __call__(self, columns: slice, block: Block) -> Any:
        return (_on_host if isinstance(block, np.ndarray) else _on_device)(block, self.answer, self.rows)

    def in_registers(
        self, block: Block, usable: Sequence[int], weights: Array, out: Any
    ) -> BegunColumns | None:
        """By the kernel, if there is one."""
        rows = list(usable) if self.rows is None else [usable[i] for i in self.rows]
        if self.kind is None or not takes(block):
            return None
        from randeigen.backend.cuda.columns import MAX_ROWS, merge_columns_into

        if len(rows) > MAX_ROWS:
            return None
        counted = np.full(weights.size, np.nan)
        counted[usable] = weights[usable]
        answers = empty_leaves(block, False) if out is None else out if isinstance(out, list) else [out]
        events = merge_columns_into(answers, block, self.kind, self.f, rows, counted)

        def waited_for() -> MergedColumns | None:
            overflowed, *squares = events.tolist()
            if overflowed or not math.isfinite(sum(squares)):
                return None
            return MergedColumns(joined(answers) if out is None else None, *map(math.sqrt, squares))

        return waited_for


def median(lines: Sorted) -> Any:
    """The middle number; the mean of the middle two where n is even."""
    n = lines.shape[1]
    if n % 2:
        return lines[:, n // 2]
    # Halved before they are added: the sum of two large numbers may not be finite.
    return lines[:, n // 2 - 1] * 0.5 + lines[:, n // 2] * 0.5


def trimmed_mean(lines: Sorted, f: int) -> Any:
    """The mean without the f lowest and the f highest."""
    n = lines.shape[1]
    return _sum(lines[:, f : n - f]) / (n - 2 * f)


def mean_of_nearest(lines: Sorted, centre: Any, k: int) -> Any:
    """The mean of the k numbers nearest to `centre`; of two equally near, the lower. Overwrites `lines`."""
    out = lines.shape[1] - k
    if out:
        # The k nearest lie side by side. Number i is left of them iff number i+k is nearer than it.
        left = centre[:, None] - lines[:, :out] > lines[:, k:] - centre[:, None]
        lines[:, :out] *= ~left
        lines[:, k:] *= left
    return _sum(lines) / k


def _sum(lines: Sorted) -> Any:
    if isinstance(lines, np.ndarray):
        return lines @ np.ones(lines.shape[1], lines.dtype)  # BLAS: numpy's own sum of short lines is slow
    return lines.sum(1)


def _on_host(block: Any, answer_of: Callable[[Sorted], Any], rows: list[int] | None) -> Any:
    n, width = block.shape if rows is None else (len(rows), block.shape[1])
    answer, step = np.empty(width, block.dtype), max(MIN_STRIP_COLUMNS, STRIP_NUMBERS // n)

    def fill(start: int) -> None:
        space = np.empty((min(step, width - start), n), block.dtype)
        for at in range(start, min(start + STRIPS_PER_THREAD * step, width), step):
            strip = block[:, at : at + step]
            lines = space[: strip.shape[1]]
            np.copyto(lines, strip.T if rows is None else strip[rows].T)
            lines.sort(axis=1)
            with np.errstate(over="ignore"):  # corrupt numbers may be as large as floats go
                answer[at : at + step] = answer_of(lines)

    parallel_map(fill, range(0, width, STRIPS_PER_THREAD * step))
    return answer


def _on_device(block: Any, answer_of: Callable[[Sorted], Any], rows: list[int] | None) -> Any:
    n, width = block.shape
    answer, step = block.new_empty(width), max(MIN_STRIP_COLUMNS, DEVICE_STRIP_NUMBERS // n)
    for at in range(0, width, step):
        strip = block[:, at : at + step]
        lines = (strip if rows is None else strip[rows]).sort(dim=0).values.T
        answer[at : at + step] = answer_of(lines)
    return answer
