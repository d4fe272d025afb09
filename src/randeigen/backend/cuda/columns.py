"""Rules that work column by column, on a GPU: each column in registers, in one reading of the rows."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.cuda.bisection import bisected
from randeigen.backend.cuda.gram import triton_dtype
from randeigen.backend.cuda.language import Launch, jit, tl, triton
from randeigen.backend.cuda.sorting_network import network_sorted
from randeigen.backend.cuda.tables import (
    addresses,
    alignment,
    lengths_of,
    on_device,
    processors,
    sorts_pairs,
    steps_of,
)
from randeigen.types import Array

KINDS = ("median", "trimmed mean", "mean around the median", "mean around the trimmed mean")
LOWEST_BIT = {
    "float64": 0,
    "float32": 0,
    "float16": 13,
    "bfloat16": 16,
}  # that a number of this dtype has set
MAX_ROWS = 1024  # rows: the columns of more do not fit the registers of a program
# Rows up to which a column is sorted in the registers of one thread, by the bytes of a number.
NETWORK_ROWS = {8: 64, 4: 208, 2: 208}


class Shape(NamedTuple):
    """How columns are cut."""

    lines: int  # numbers in a column, and padding: of a network's at most PADDING
    columns: int  # in a program at once
    warps: int
    programs: int  # for each processor


def shape_for(n: int, network: bool, pairs: bool = False) -> Shape:
    """What was fastest on an H200."""
    if network:
        return Shape(max(8, -(-n // 8) * 8), 256 if pairs else 128, 4, 16)
    lines = max(64, triton.next_power_of_2(n))
    return Shape(lines, 32, lines // 64, 16)


def merge_columns_into(
    answers: Sequence[Any],
    block: Any,
    kind: str,
    f: int,
    chosen: Sequence[int],
    weights: Array,
    shape: Shape | None = None,
    network: bool | None = None,
) -> Any:
    """answers[k] ← what `kind` makes of each column of leaf k of the chosen rows; and what must be known.

    That is (4,) on the device: how many answers are not finite; the squared distances from Σ wᵢ xᵢ and from
    the plain mean, over all rows whose weight is not NaN; and that by which the cast to the answers' dtype
    has moved them.
    """
    import torch

    n, wide = len(chosen), block.dtype.itemsize == 8
    if network is None:
        network = n <= NETWORK_ROWS[block.dtype.itemsize]
    pairs = network and block.dtype.itemsize == 2 and sorts_pairs(block.device)
    shape = shape or shape_for(n, network, pairs)
    order = [*chosen, *sorted(set(np.flatnonzero(~np.isnan(weights)).tolist()) - set(chosen))]
    lengths = lengths_of(block)
    steps = steps_of(block.device, lengths, shape.columns)
    programs = min(processors(block.device) * shape.programs, steps.total)
    events = torch.empty((programs, 4), dtype=torch.float64, device=block.device)
    numbers = np.zeros(-(-(len(order) + shape.lines) // 2) * 2, np.float64 if wide else np.float32)
    numbers[: len(order)] = weights[order]
    # Behind the weights: the lines of a sorted column that a trimmed mean keeps.
    first = len(order) + (shape.lines - n) // 2
    numbers[first + f : first + n - f] = 1
    rows, out = addresses(block)[:, order], np.array([answer.data_ptr() for answer in answers])
    align = min(alignment(block, rows), alignment(block, out))
    weights_and_kept, starts, outputs = on_device(block.device, numbers, rows, out)
    dtype, working = triton_dtype(block.dtype), tl.float64 if wide else tl.float32
    columns = Launch(
        _columns_kernel, (programs,), block.device,
        {"DTYPE": dtype, "OUT": triton_dtype(answers[0].dtype), "ALIGN": align,
         "FLOAT": working, "INT": tl.int64 if wide else tl.int32,
         "BITS": 64 if wide else 32, "LOW": LOWEST_BIT[str(block.dtype).removeprefix("torch.")],
         "KIND": KINDS.index(kind), "LEAST": (n - f) // 8 * 8 if network and "around" in kind else 0,
         "SORTED": dtype if pairs else working, "NETWORK": network,
         "LINES": shape.lines, "COLUMNS": shape.columns},
        num_warps=shape.warps,
    )  # fmt: skip
    columns(
        weights_and_kept, starts, steps.lengths, steps.before, outputs, events,
        steps.leaves, len(order), n, f,
    )  # fmt: skip
    return events.sum(0)


@jit(do_not_specialize=["leaves", "m", "n", "f"])
def _columns_kernel(
    weights, pointers, lengths, steps_before, outputs, events, leaves, m, n, f,
    DTYPE: tl.constexpr, OUT: tl.constexpr, ALIGN: tl.constexpr, FLOAT: tl.constexpr, INT: tl.constexpr,
    BITS: tl.constexpr, LOW: tl.constexpr, KIND: tl.constexpr, LEAST: tl.constexpr, SORTED: tl.constexpr,
    NETWORK: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    overflowed = tl.zeros((COLUMNS,), tl.int32)
    from_sum = tl.zeros((COLUMNS,), tl.float64)
    from_mean = tl.zeros((COLUMNS,), tl.float64)
    rounding = tl.zeros((COLUMNS,), tl.float64)
    line = tl.arange(0, triton.next_power_of_2(LINES))
    live = (line < n)[:, None]
    for leaf in range(leaves):
        length = tl.load(lengths + leaf)
        first = (program + programs - tl.load(steps_before + leaf) % programs) % programs * COLUMNS
        out = tl.multiple_of(tl.load(outputs + leaf).to(tl.pointer_type(OUT)), ALIGN)
        rows = pointers + leaf * m
        for start in range(first, length, programs.to(tl.int64) * COLUMNS):
            c = start + tl.arange(0, COLUMNS)
            inside = c < length
            if NETWORK:
                WIDE: tl.constexpr = 2 if SORTED.primitive_bitwidth == 16 else 1
                column = start + tl.arange(0, COLUMNS // WIDE) * WIDE
                left = tl.minimum(length - column, WIDE).to(tl.int32)
                answer, total, plain = network_sorted(
                    rows, weights, column, left, m, n, f, KIND, LEAST, DTYPE, SORTED, FLOAT, ALIGN > 2, LINES,
                    COLUMNS // WIDE,
                )  # fmt: skip
            else:
                at = tl.load(rows + line, mask=line < n, other=0).to(tl.pointer_type(DTYPE))
                x = tl.load(at[:, None] + c[None, :], mask=live & inside[None, :], other=0.0).to(FLOAT)
                w = tl.load(weights + line, mask=line < n, other=0.0).to(FLOAT)
                total = tl.sum(x * w[:, None], 0)
                plain = tl.sum(x, 0)
                answer = bisected(x, live, n, f, KIND, FLOAT, INT, BITS, LOW, COLUMNS)
                for k in range(n, m):  # rows that take no part but in the sums
                    other = tl.multiple_of(tl.load(rows + k).to(tl.pointer_type(DTYPE)), ALIGN)
                    y = tl.load(other + c, mask=inside, other=0.0).to(FLOAT)
                    total += tl.load(weights + k).to(FLOAT) * y
                    plain += y
            stored = answer.to(OUT)
            tl.store(out + c, stored, mask=inside)
            overflowed += (inside & ~(tl.abs(stored.to(FLOAT)) < float("inf"))).to(tl.int32)
            if FLOAT != OUT:
                off = tl.where(inside, answer.to(tl.float64) - stored.to(tl.float64), 0.0)
                rounding += off * off
            off = tl.where(inside, answer.to(tl.float64) - total.to(tl.float64), 0.0)
            from_sum += off * off
            off = tl.where(inside, answer.to(tl.float64) - plain.to(tl.float64) / m, 0.0)
            from_mean += off * off
    tl.store(events + 4 * program, tl.sum(overflowed, 0).to(tl.float64))
    tl.store(events + 4 * program + 1, tl.sum(from_sum, 0))
    tl.store(events + 4 * program + 2, tl.sum(from_mean, 0))
    tl.store(events + 4 * program + 3, tl.sum(rounding, 0))
