"""Σ wᵢ xᵢ of rows on a GPU, in one reading at memory speed, cast to the answer's dtype on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from randeigen.backend.cuda.gram import _dtype, _processors
from randeigen.backend.cuda.tables import addresses, aligned, dealt, lengths

try:
    import triton
    import triton.language as tl
except ImportError:  # pragma: no cover - torch ships it wherever it has a GPU
    triton = None

COLUMNS = 1024  # columns that a program sums up at once
ROWS_AT_ONCE = 8  # rows that a thread loads before it adds any
PROGRAMS = 12  # for each processor
WARPS = 4


def weighted_sum(block: Any, weights: Any, answers: Sequence[Any], wide: bool = False, columns: int = 0, rows: int = 0, programs: int = 0, warps: int = 0) -> Any:
    """answers[k] ← Σ wᵢ xᵢ of leaf k; a row of weight 0 is not read. (2,) on the device: what happened on the way.

    That is the number of sums that are not finite, and the squared distance by which the cast to the answers' dtype
    moved them. `wide`: sums in float64 whatever the rows are.
    """
    import torch

    columns, rows, programs, warps = columns or COLUMNS, rows or ROWS_AT_ONCE, programs or PROGRAMS, warps or WARPS
    live = np.flatnonzero(weights)
    found = addresses(block)[:, live]
    padding = -live.size % rows
    found = np.pad(found, ((0, 0), (0, padding)))
    items, firsts = dealt(lengths(block), _processors(block.device) * programs, columns, 2**31)
    to = np.array([answer.data_ptr() for answer in answers], np.int64)
    padded = np.pad(np.asarray(weights, np.float64)[live], (0, padding))
    table = np.concatenate((padded.view(np.int64), found.ravel(), items.ravel(), firsts, to))
    table = torch.from_numpy(table).to(block.device, non_blocking=True)
    cuts = np.cumsum((padded.size, found.size, items.size, firsts.size))
    events = torch.empty((firsts.size - 1, 2), dtype=torch.float64, device=block.device)
    _sum_kernel[(firsts.size - 1,)](
        table.view(torch.float64), table[cuts[0]:], table[cuts[1]:], table[cuts[2]:], table[cuts[3]:], events, padded.size,
        DTYPE=_dtype(block.dtype), OUT=_dtype(answers[0].dtype),
        SUM=tl.float64 if wide or block.dtype.itemsize == 8 else tl.float32,
        ALIGN=16 if aligned(found) and aligned(to) else block.dtype.itemsize,
        COLUMNS=columns, ROWS_AT_ONCE=rows, num_warps=warps,
    )  # fmt: skip
    return events.sum(0)


if triton is not None:

    @triton.jit
    def _step(
        weights, pointers, answer, start, stop, m, overflowed, moved,
        DTYPE: tl.constexpr, OUT: tl.constexpr, SUM: tl.constexpr, ALIGN: tl.constexpr, MASKED: tl.constexpr,
        COLUMNS: tl.constexpr, ROWS_AT_ONCE: tl.constexpr,
    ):  # fmt: skip
        c = start + tl.arange(0, COLUMNS)
        total = tl.zeros((COLUMNS,), SUM)
        for k in range(0, m, ROWS_AT_ONCE):
            for u in tl.static_range(ROWS_AT_ONCE):
                to = tl.load(pointers + k + u)
                row = tl.multiple_of(to.to(tl.pointer_type(DTYPE)), ALIGN)
                if MASKED:
                    x = tl.load(row + c, mask=(c < stop) & (to != 0), other=0.0)
                else:
                    x = tl.load(row + c, mask=(c >= 0) & (to != 0), other=0.0)
                total += tl.load(weights + k + u).to(SUM) * x.to(SUM)
        stored = total.to(OUT)
        if MASKED:
            tl.store(answer + c, stored, mask=c < stop)
        else:
            tl.store(answer + c, stored)
        overflowed += (~(tl.abs(stored.to(SUM)) < float("inf"))).to(tl.int32)
        if SUM != OUT:
            off = total.to(tl.float64) - stored.to(tl.float64)
            moved += off * off
        return overflowed, moved

    @triton.jit
    def _sum_kernel(
        weights, pointers, items, firsts, answers, events, m,
        DTYPE: tl.constexpr, OUT: tl.constexpr, SUM: tl.constexpr, ALIGN: tl.constexpr,
        COLUMNS: tl.constexpr, ROWS_AT_ONCE: tl.constexpr,
    ):  # fmt: skip
        program = tl.program_id(0)
        overflowed = tl.zeros((COLUMNS,), tl.int32)
        moved = tl.zeros((COLUMNS,), tl.float64)
        for item in range(tl.load(firsts + program), tl.load(firsts + program + 1)):
            leaf = tl.load(items + 3 * item)
            begin = tl.multiple_of(tl.load(items + 3 * item + 1), COLUMNS)
            stop = tl.load(items + 3 * item + 2)
            answer = tl.multiple_of(tl.load(answers + leaf).to(tl.pointer_type(OUT)), ALIGN)
            if (stop - begin) % COLUMNS == 0:
                for start in range(begin, stop, COLUMNS):
                    overflowed, moved = _step(
                        weights, pointers + leaf * m, answer, start, stop, m, overflowed, moved,
                        DTYPE, OUT, SUM, ALIGN, False, COLUMNS, ROWS_AT_ONCE,
                    )
            else:  # what is left at the end of a leaf
                overflowed, moved = _step(
                    weights, pointers + leaf * m, answer, begin, stop, m, overflowed, moved,
                    DTYPE, OUT, SUM, ALIGN, True, COLUMNS, ROWS_AT_ONCE,
                )
        tl.store(events + 2 * program, tl.sum(overflowed, 0).to(tl.float64))
        tl.store(events + 2 * program + 1, tl.sum(moved, 0))
