"""Σ wᵢ xᵢ of rows on a GPU, in one reading at memory speed, cast to the answer's dtype on the way."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.cuda.gram import triton_dtype
from randeigen.backend.cuda.language import Launch, jit, tl
from randeigen.backend.cuda.tables import (
    KEPT_SHAPES,
    VECTOR_BYTES,
    Steps,
    addresses_of,
    lengths_of,
    processors,
    steps_of,
)
from randeigen.types import Array


class Shape(NamedTuple):
    """How rows and columns are cut."""

    columns: int = 1024  # that a program sums up at once
    rows: int = 8  # that a thread loads before it adds any
    programs: int = 4  # for each processor
    warps: int = 8


def weighted_sum(
    block: Any, weights: Array, answers: Sequence[Any], wide: bool = False, shape: Shape | None = None
) -> tuple[float, float]:
    """answers[k] ← Σ wᵢ xᵢ of leaf k; rows of weight 0 are not read. Then waits for what must be known.

    That is how many sums are not finite, and the squared distance by which the cast to the answers' dtype has
    moved them. `wide`: sums in float64 whatever the rows are.
    """
    import torch

    n, device = block.shape[0], block.device
    base, rows, align = addresses_of(block)
    outputs = [answer.data_ptr() for answer in answers]
    if align == VECTOR_BYTES and any(output % VECTOR_BYTES for output in outputs):
        align = block.dtype.itemsize
    plan = _plan(device, block.dtype, answers[0].dtype, n, lengths_of(block), align, wide, shape or Shape())
    numbers = np.zeros(plan.padded + len(outputs))
    numbers[:n] = weights
    numbers[plan.padded :].view(np.int64)[:] = outputs
    weights_and_outputs = torch.from_numpy(numbers).to(device, non_blocking=True)
    events = torch.empty((plan.programs, 2), dtype=torch.float64, device=device)
    steps = plan.steps
    plan.sum(
        weights_and_outputs, rows, steps.lengths, steps.before, events, base, steps.leaves, n, plan.padded
    )
    overflowed, rounding = events.cpu().numpy().sum(0).tolist()
    return overflowed, rounding


class _Plan(NamedTuple):
    """Everything about the sum of a block but where the block is."""

    steps: Steps
    padded: int  # weights, with those of rows that are not there
    programs: int
    sum: Launch


@lru_cache(KEPT_SHAPES)
def _plan(
    device: Any, dtype: Any, out: Any, n: int, lengths: tuple[int, ...], align: int, wide: bool, shape: Shape
) -> _Plan:
    steps = steps_of(device, lengths, shape.columns)
    programs = min(processors(device) * shape.programs, steps.total)
    kernel = Launch(
        _sum_kernel, (programs,), device,
        {"DTYPE": triton_dtype(dtype), "OUT": triton_dtype(out),
         "SUM": tl.float64 if wide or dtype.itemsize == 8 else tl.float32, "ALIGN": align,
         "ONE_LEAF": steps.leaves == 1, "COLUMNS": shape.columns, "ROWS_AT_ONCE": shape.rows},
        num_warps=shape.warps,
    )  # fmt: skip
    return _Plan(steps, -(-n // shape.rows) * shape.rows, programs, kernel)


@jit
def _step(
    weights, pointers, answer, base, start, stop, n, overflowed, rounding,
    DTYPE: tl.constexpr, OUT: tl.constexpr, SUM: tl.constexpr, ALIGN: tl.constexpr, MASKED: tl.constexpr,
    COLUMNS: tl.constexpr, ROWS_AT_ONCE: tl.constexpr,
):  # fmt: skip
    c = start + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), SUM)
    for k in range(0, n, ROWS_AT_ONCE):
        for u in tl.static_range(ROWS_AT_ONCE):
            w = tl.load(weights + k + u)  # 0 beyond the last row
            to = base + tl.load(pointers + k + u, mask=k + u < n, other=0)
            row = tl.multiple_of(to.to(tl.pointer_type(DTYPE)), ALIGN)
            if MASKED:
                x = tl.load(row + c, mask=(c < stop) & (w != 0), other=0.0)
            else:
                x = tl.load(row + c, mask=(c >= 0) & (w != 0), other=0.0)
            total += w.to(SUM) * x.to(SUM)
    stored = total.to(tl.float32).to(OUT) if tl.float64 != OUT else total.to(OUT)
    if MASKED:
        tl.store(answer + c, stored, mask=c < stop)
    else:
        tl.store(answer + c, stored)
    overflowed += (~(tl.abs(stored.to(SUM)) < float("inf"))).to(tl.int32)
    if SUM != OUT:
        off = total.to(tl.float64) - stored.to(tl.float64)
        rounding += off * off
    return overflowed, rounding


@jit(do_not_specialize=["base", "leaves", "n", "m"])
def _sum_kernel(
    weights, pointers, lengths, steps_before, events, base: tl.int64, leaves, n, m,
    DTYPE: tl.constexpr, OUT: tl.constexpr, SUM: tl.constexpr, ALIGN: tl.constexpr, ONE_LEAF: tl.constexpr,
    COLUMNS: tl.constexpr, ROWS_AT_ONCE: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    # The addresses of the answers stand behind the weights.
    answers = (weights + m).to(tl.pointer_type(tl.int64), bitcast=True)
    overflowed = tl.zeros((COLUMNS,), tl.int32)
    rounding = tl.zeros((COLUMNS,), tl.float64)
    for leaf in range(1 if ONE_LEAF else leaves):
        length = tl.load(lengths + leaf)
        first = (program + programs - tl.load(steps_before + leaf) % programs) % programs * COLUMNS
        answer = tl.multiple_of(tl.load(answers + leaf).to(tl.pointer_type(OUT)), ALIGN)
        for start in range(first, length, programs.to(tl.int64) * COLUMNS):
            if start + COLUMNS <= length:
                overflowed, rounding = _step(
                    weights, pointers + leaf * n, answer, base, start, length, n, overflowed, rounding,
                    DTYPE, OUT, SUM, ALIGN, False, COLUMNS, ROWS_AT_ONCE,
                )  # fmt: skip
            else:  # what is left at the end of a leaf
                overflowed, rounding = _step(
                    weights, pointers + leaf * n, answer, base, start, length, n, overflowed, rounding,
                    DTYPE, OUT, SUM, ALIGN, True, COLUMNS, ROWS_AT_ONCE,
                )  # fmt: skip
    tl.store(events + 2 * program, tl.sum(overflowed, 0).to(tl.float64))
    tl.store(events + 2 * program + 1, tl.sum(rounding, 0))
