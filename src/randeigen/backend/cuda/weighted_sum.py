"""Σ wᵢ xᵢ of rows on a GPU, in one reading at memory speed, cast to the answer's dtype on the way."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.cuda.gram import triton_dtype
from randeigen.backend.cuda.language import jit, tl
from randeigen.backend.cuda.tables import addresses, alignment, in_steps, on_device, processors
from randeigen.types import Array


class Shape(NamedTuple):
    """How rows and columns are cut."""

    columns: int = 1024  # that a program sums up at once
    rows: int = 8  # that a thread loads before it adds any
    programs: int = 4  # for each processor
    warps: int = 8


def weighted_sum(
    block: Any, weights: Array, answers: Sequence[Any], wide: bool = False, shape: Shape | None = None
) -> Any:
    """answers[k] ← Σ wᵢ xᵢ of leaf k; rows of weight 0 are not read. (2,) on the device: what must be known.

    That is how many sums are not finite, and the squared distance by which the cast to the answers' dtype has
    moved them. `wide`: sums in float64 whatever the rows are.
    """
    import torch

    shape = shape or Shape()
    live = np.flatnonzero(weights)
    found = addresses(block)[:, live]
    m = -(-live.size // shape.rows) * shape.rows  # the last addresses are 0, where nothing is read
    padded, w = np.zeros((found.shape[0], m), np.int64), np.zeros(m)
    padded[:, : live.size], w[: live.size] = found, weights[live]
    places = np.array([answer.data_ptr() for answer in answers], np.int64)
    lengths, before, steps = in_steps(block, shape.columns)
    programs = min(processors(block.device) * shape.programs, steps)
    events = torch.empty((programs, 2), dtype=torch.float64, device=block.device)
    _sum_kernel[(programs,)](
        *on_device(block.device, w, padded, lengths, before, places), events, lengths.size, m,
        DTYPE=triton_dtype(block.dtype), OUT=triton_dtype(answers[0].dtype),
        SUM=tl.float64 if wide or block.dtype.itemsize == 8 else tl.float32,
        ALIGN=alignment(block, found, places),
        COLUMNS=shape.columns, ROWS_AT_ONCE=shape.rows, num_warps=shape.warps,
    )  # fmt: skip
    return events.sum(0)


@jit
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
    stored = total.to(tl.float32).to(OUT) if tl.float64 != OUT else total.to(OUT)
    if MASKED:
        tl.store(answer + c, stored, mask=c < stop)
    else:
        tl.store(answer + c, stored)
    overflowed += (~(tl.abs(stored.to(SUM)) < float("inf"))).to(tl.int32)
    if SUM != OUT:
        off = total.to(tl.float64) - stored.to(tl.float64)
        moved += off * off
    return overflowed, moved


@jit
def _sum_kernel(
    weights, pointers, lengths, steps_before, answers, events, leaves, m,
    DTYPE: tl.constexpr, OUT: tl.constexpr, SUM: tl.constexpr, ALIGN: tl.constexpr,
    COLUMNS: tl.constexpr, ROWS_AT_ONCE: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    overflowed = tl.zeros((COLUMNS,), tl.int32)
    moved = tl.zeros((COLUMNS,), tl.float64)
    for leaf in range(leaves):
        length = tl.load(lengths + leaf)
        first = (program + programs - tl.load(steps_before + leaf) % programs) % programs * COLUMNS
        answer = tl.multiple_of(tl.load(answers + leaf).to(tl.pointer_type(OUT)), ALIGN)
        for start in range(first, length, programs.to(tl.int64) * COLUMNS):
            if start + COLUMNS <= length:
                overflowed, moved = _step(
                    weights, pointers + leaf * m, answer, start, length, m, overflowed, moved,
                    DTYPE, OUT, SUM, ALIGN, False, COLUMNS, ROWS_AT_ONCE,
                )  # fmt: skip
            else:  # what is left at the end of a leaf
                overflowed, moved = _step(
                    weights, pointers + leaf * m, answer, start, length, m, overflowed, moved,
                    DTYPE, OUT, SUM, ALIGN, True, COLUMNS, ROWS_AT_ONCE,
                )  # fmt: skip
    tl.store(events + 2 * program, tl.sum(overflowed, 0).to(tl.float64))
    tl.store(events + 2 * program + 1, tl.sum(moved, 0))
