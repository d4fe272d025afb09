"""Pass 2: the weights are spent on the rows, block by block, in the caller's form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from randeigen.blocks import at_hand, host, like, parts
from randeigen.threads import each
from randeigen.types import Block, Mask, Progress, Rows, Weights

WIDE = 4_200_000  # columns; a multiple of every chunk in use
COPIED = 2**24  # bytes
HUGE = 1e100  # squares of smaller numbers fit a float64, so the whole measurement would pass them too


class Unmeasured(Exception):
    """A number that asks for the whole measurement was met by a pass that had none."""


def combine(
    rows: Rows,
    weights: Weights,
    usable: Mask,
    scale: float = 1.0,
    progress: Progress | None = None,
    unread: bool = False,
) -> Any:
    """scale · Σ wᵢ xᵢ over the usable rows. `unread`: nobody has measured them, and each has some weight."""
    answer, weighted_sum = rows.answer(), _Sum(weights * scale, usable)
    for columns, block in _at_hand(rows):
        place = answer.place(columns, block)
        if weighted_sum.into(place, block):
            if unread:
                _refuse_wild(place, block)
        else:
            for part, narrow in _narrow(columns, block):
                total = weighted_sum(narrow)
                if unread:
                    _refuse_wild(total, narrow)
                answer.write(part, total)
        if progress:
            progress("averaging", columns.stop, rows.d)
    return answer.finish(weights)


def merge_columns(
    rows: Rows,
    weights: Weights,
    usable: Mask,
    merge: Callable[[slice, Block], Any],
    chunk: int,
    scale: float = 1.0,
    progress: Progress | None = None,
    unread: bool = False,
) -> tuple[Any, float]:
    """`merge` of every block of usable rows, and how far the whole is from scale · Σ wᵢ xᵢ.

    Where nobody has read the rows before there is no such mean to be far from: 0.
    """
    answer, weighted_sum = rows.answer(), _Sum(weights * scale, usable)
    alive, square = np.flatnonzero(usable).tolist(), 0.0
    # Where rows are left out, the others are copied, and no copy may be large.
    wide = WIDE if usable.all() else max(COPIED // (8 * rows.n) // chunk, 1) * chunk
    for columns, block in _at_hand(rows):
        for part, narrow in _narrow(columns, block, wide):
            total = weighted_sum(narrow)
            if unread:
                _refuse_wild(total, narrow)
            merged = merge(part, narrow if usable.all() else narrow[alive])
            answer.write(part, merged)
            if not unread:
                apart = host(merged - total)
                square += float(apart @ apart)
        if progress:
            progress("merging", columns.stop, rows.d)
    return answer.finish(weights), math.sqrt(square)


def _at_hand(rows: Rows) -> Iterator[tuple[slice, Block]]:
    return ((columns, at_hand(block)) for columns, block in rows.blocks())


def _narrow(columns: slice, block: Block, wide: int = WIDE) -> Iterator[tuple[slice, Block]]:
    """A block, cut if it is a wide view, so that what is made of it stays small."""
    for start in range(columns.start, columns.stop, wide):
        part = slice(start, min(start + wide, columns.stop))
        yield part, block[:, part.start - columns.start : part.stop - columns.start]


def _refuse_wild(total: Any, block: Block) -> None:
    """Raise Unmeasured unless every number is finite and, in float64, can be squared.

    A sum in which all rows have a part shows it: what is not finite stays so whatever is added.
    """
    if not math.isfinite(_reach(total)) or (block.dtype.itemsize == 8 and not _reach(block) < HUGE):
        raise Unmeasured


def _reach(values: Any) -> float:
    """The largest magnitude; NaN if there is one."""
    return max(abs(float(values.max())), abs(float(values.min())))


class _Sum:
    """Σ wᵢ xᵢ of block after block. Rows outside the runs are skipped, not multiplied: 0 · NaN is NaN."""

    def __init__(self, weights: Weights, usable: Mask) -> None:
        self.runs = _runs(usable, weights)
        self.weights = np.zeros_like(weights)
        for run in self.runs:
            self.weights[run] = weights[run]
        self._there: Any = None  # the weights where the blocks are

    def into(self, place: Any, block: Block) -> bool:
        """Sum a block straight into its place, if that can be done; at memory speed."""
        if isinstance(block, np.ndarray):
            return isinstance(place, np.ndarray) and self._spread(place, block)
        if place is None or not block.is_cuda:
            return False
        from randeigen import cuda

        if cuda.takes(block):
            cuda.weighted_sum(block, self._beside(block), place)
        return cuda.takes(block)

    def _beside(self, block: Block) -> Any:
        if self._there is None:
            self._there = like(self.weights, block)
        return self._there

    def __call__(self, block: Block) -> Any:
        w = self._beside(block)
        if isinstance(block, np.ndarray):
            total = np.empty(block.shape[1], block.dtype)
            self._spread(total, block)
            return total
        total = block.new_empty(block.shape[1])
        return total if self.into(total, block) else self._total(w, block)

    def _spread(self, place: Any, block: Any) -> bool:
        """Every part of the columns on its own, wherever there is a core for it."""
        w, cut = self._beside(block), parts(block)
        ends = np.cumsum([part.shape[1] for part in cut]).tolist()
        places = [place[end - part.shape[1] : end] for part, end in zip(cut, ends, strict=True)]
        each(lambda at: self._total(w, *at), list(zip(cut, places, strict=True)))
        return True

    def _total(self, w: Any, part: Block, place: Any = None) -> Any:
        first = self.runs[0]
        total = w[first] @ part[first] if place is None else np.matmul(w[first], part[first], out=place)
        for run in self.runs[1:]:
            total += w[run] @ part[run]
        return total


def _runs(usable: Mask, weights: Weights) -> list[slice]:
    """Stretches of consecutive rows to read, so that each is a view and a single product."""
    mask = usable & (weights > 0)
    if not mask.any() or (usable.all() and 2 * mask.sum() > mask.size):
        mask = usable  # a few zeros cost less than a few more products
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [slice(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
