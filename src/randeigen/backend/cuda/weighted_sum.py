"""Σ wᵢ xᵢ of rows on a GPU, in one reading at memory speed, cast to the answer's dtype on the way."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.cuda.gram import triton_dtype
from randeigen.backend.cuda.language import jit, launch, tl
from randeigen.backend.cuda.tables import VECTOR_BYTES, layout_of, processors
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

    shape = shape or Shape()
    layout, n = layout_of(block, shape.columns), block.shape[0]
    m = -(-n // shape.rows) * shape.rows
    numbers, outputs = np.zeros(m + len(answers)), [answer.data_ptr() for answer in answers]
    numbers[:n] = weights
    numbers[m:].view(np.int64)[:] = outputs
    aligned = layout.align == VECTOR_BYTES and not any(output % VECTOR_BYTES for output in outputs)
    weights_and_outputs = torch.from_numpy(numbers).to(block.device, non_blocking=True)
    programs = min(processors(block.device) * shape.programs, layout.steps)
    events = torch.empty((programs, 2), dtype=torch.float64, device=block.device)
    launch(
        _sum_kernel, (programs,), block.device,
        (weights_and_outputs, layout.addresses, layout.lengths, layout.before, events, layout.base,
         layout.leaves, n, m),
        {"DTYPE": triton_dtype(block.dtype), "OUT": triton_dtype(answers[0].dtype),
         "SUM": tl.float64 if wide or block.dtype.itemsize == 8 else tl.float32,
         "ALIGN": VECTOR_BYTES if aligned else block.dtype.itemsize, "ONE_LEAF": layout.leaves == 1,
         "COLUMNS": shape.columns, "ROWS_AT_ONCE": shape.rows},
        num_warps=shape.warps,
    )  # fmt: skip
    overflowed, rounding = events.cpu().numpy().sum(0).tolist()
    return overflowed, rounding


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
