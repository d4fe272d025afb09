"""Rules that work column by column, on a GPU: order statistics found in registers, in one reading of the rows.

A number is found by its bits, from the highest: how many of the column's numbers lie below a candidate is counted
in registers, 32 times for float32. Nothing is sorted or written but the answer.
"""

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

KINDS = ("median", "trimmed mean", "mean around median", "mean around trimmed mean")
LOW_BIT = {"float32": 0, "float64": 0, "bfloat16": 16, "float16": 13}  # the lowest bit that a number can have


def merged(block: Any, kind: str, f: int, chosen: Sequence[int], weights: Any, columns: int = 0, warps: int = 0, programs: int = 0) -> tuple[Any, Any]:
    """(d,) what `kind` makes of each column of the chosen rows; and (3,) on the device: what must be known of it.

    That is how many answers are not finite, and the squared distances from Σ wᵢ xᵢ and from the plain mean, both
    over all rows whose weight is not NaN.
    """
    import torch

    others = [i for i in np.flatnonzero(~np.isnan(weights)).tolist() if i not in set(chosen)]
    order = [*chosen, *others]
    m, n = len(order), len(chosen)
    wide = block.dtype.itemsize == 8
    lines = max(16, triton.next_power_of_2(n))
    if not columns:
        columns = 32
    if not warps:
        warps = max(1, lines // 64)
    found = addresses(block)[:, order]
    items, firsts = dealt(lengths(block), _processors(block.device) * (programs or 16), columns, 2**31)
    at = np.cumsum([0, *lengths(block)[:-1]])
    w = np.asarray(weights, np.float64)[order]
    table = np.concatenate((w.view(np.int64), found.ravel(), items.ravel(), firsts, at))
    table = torch.from_numpy(table).to(block.device, non_blocking=True)
    cuts = np.cumsum((w.size, found.size, items.size, firsts.size))
    answer = torch.empty(block.shape[1], dtype=torch.float64 if wide else torch.float32, device=block.device)
    events = torch.empty((firsts.size - 1, 3), dtype=torch.float64, device=block.device)
    _bisection_kernel[(firsts.size - 1,)](
        table.view(torch.float64), table[cuts[0]:], table[cuts[1]:], table[cuts[2]:], table[cuts[3]:], answer, events,
        m, n, f, DTYPE=_dtype(block.dtype), FLOAT=tl.float64 if wide else tl.float32, INT=tl.int64 if wide else tl.int32,
        BITS=64 if wide else 32, LOW=LOW_BIT[str(block.dtype)[6:]], KIND=KINDS.index(kind),
        LINES=lines, COLUMNS=columns, num_warps=warps,
    )  # fmt: skip
    return answer, events.sum(0)


if triton is not None:

    @triton.jit
    def _order_key(x, INT: tl.constexpr, BITS: tl.constexpr):
        """Integers that are in the order of the numbers."""
        bits = x.to(INT, bitcast=True)
        return bits ^ ((bits >> (BITS - 1)) & ~(tl.full((1, 1), 1, INT) << (BITS - 1)))

    @triton.jit
    def _kth(keys, k, FLOAT: tl.constexpr, INT: tl.constexpr, BITS: tl.constexpr, TOP: tl.constexpr, LOW: tl.constexpr, COLUMNS: tl.constexpr):
        """The key with k others below it."""
        one = tl.full((COLUMNS,), 1, INT)
        if TOP == BITS - 1:
            found = one << (BITS - 1)  # the least of all
        else:
            found = one - 1
        for bit in range(TOP, LOW - 1, -1):
            candidate = found + (one << bit)
            below = tl.sum((keys < candidate[None, :]).to(tl.int32), 0)
            found = tl.where(below <= k, candidate, found)
        return found

    @triton.jit
    def _value(key, FLOAT: tl.constexpr, INT: tl.constexpr, BITS: tl.constexpr):
        """The number of a key."""
        return (key ^ ((key >> (BITS - 1)) & ~(tl.full((1,), 1, INT) << (BITS - 1)))).to(FLOAT, bitcast=True)

    @triton.jit
    def _trimmed(keys, n, f, live, FLOAT: tl.constexpr, INT: tl.constexpr, BITS: tl.constexpr, LOW: tl.constexpr, COLUMNS: tl.constexpr):
        low = _kth(keys, f, FLOAT, INT, BITS, BITS - 1, LOW, COLUMNS)
        high = _kth(keys, n - f - 1, FLOAT, INT, BITS, BITS - 1, LOW, COLUMNS)
        inner = live & (keys > low[None, :]) & (keys < high[None, :])
        total = tl.sum(tl.where(inner, _value(keys, FLOAT, INT, BITS), 0.0), 0)
        below = tl.sum((live & (keys <= low[None, :])).to(tl.int32), 0) - f
        above = tl.sum((live & (keys >= high[None, :])).to(tl.int32), 0) - f
        same = low == high
        left, right = _value(low, FLOAT, INT, BITS), _value(high, FLOAT, INT, BITS)
        total += below.to(FLOAT) * left + above.to(FLOAT) * right
        return tl.where(same, left, total / (n - 2 * f).to(FLOAT))

    @triton.jit
    def _median(keys, n, live, FLOAT: tl.constexpr, INT: tl.constexpr, BITS: tl.constexpr, LOW: tl.constexpr, COLUMNS: tl.constexpr):
        high = _kth(keys, n // 2, FLOAT, INT, BITS, BITS - 1, LOW, COLUMNS)
        below = live & (keys < high[None, :])
        right = _value(high, FLOAT, INT, BITS)
        under = tl.max(tl.where(below, _value(keys, FLOAT, INT, BITS), float("-inf")), 0)
        left = tl.where(tl.sum(below.to(tl.int32), 0) == n // 2, under, right)
        # Halved before they are added: the sum of two large numbers may not be finite.
        return tl.where(n % 2 == 1, right, left * 0.5 + right * 0.5)

    @triton.jit
    def _around(x, centre, k, live, FLOAT: tl.constexpr, INT: tl.constexpr, BITS: tl.constexpr, COLUMNS: tl.constexpr):
        """The mean of the k numbers nearest to the centre; of those equally near the lower ones first."""
        away = tl.where(live, tl.abs(x - centre[None, :]), float("inf"))
        keys = away.to(INT, bitcast=True)
        furthest = _kth(keys, k - 1, FLOAT, INT, BITS, BITS - 2, 0, COLUMNS)
        nearer = live & (keys < furthest[None, :])
        level = live & (keys == furthest[None, :])
        lower = level & (x <= centre[None, :])
        upper = level & (x > centre[None, :])
        missing = (k - tl.sum(nearer.to(tl.int32), 0)).to(FLOAT)
        lowers, uppers = tl.sum(lower.to(FLOAT), 0), tl.sum(upper.to(FLOAT), 0)
        from_lower = tl.minimum(missing, lowers)
        total = tl.sum(tl.where(nearer, x, 0.0), 0)
        total += tl.sum(tl.where(lower, x, 0.0), 0) * (from_lower / tl.maximum(lowers, 1.0))
        total += tl.sum(tl.where(upper, x, 0.0), 0) * ((missing - from_lower) / tl.maximum(uppers, 1.0))
        return total / k.to(FLOAT)

    @triton.jit
    def _bisection_kernel(
        weights, pointers, items, firsts, offsets, answers, events, m, n, f,
        DTYPE: tl.constexpr, FLOAT: tl.constexpr, INT: tl.constexpr, BITS: tl.constexpr, LOW: tl.constexpr,
        KIND: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        program = tl.program_id(0)
        overflowed = tl.zeros((COLUMNS,), tl.int32)
        from_sum = tl.zeros((COLUMNS,), tl.float64)
        from_mean = tl.zeros((COLUMNS,), tl.float64)
        line = tl.arange(0, LINES)
        live = (line < n)[:, None]
        w = tl.load(weights + line, mask=line < n, other=0.0).to(FLOAT)
        for item in range(tl.load(firsts + program), tl.load(firsts + program + 1)):
            leaf = tl.load(items + 3 * item)
            begin = tl.load(items + 3 * item + 1)
            stop = tl.load(items + 3 * item + 2)
            out = answers + tl.load(offsets + leaf)
            for start in range(begin, stop, COLUMNS):
                c = start + tl.arange(0, COLUMNS)
                inside = c < stop
                rows = tl.load(pointers + leaf * m + line, mask=line < n, other=0).to(tl.pointer_type(DTYPE))
                x = tl.load(rows[:, None] + c[None, :], mask=live & inside[None, :], other=0.0).to(FLOAT)
                total, plain = tl.sum(x * w[:, None], 0), tl.sum(x, 0)
                for k in range(n, m):  # rows that take no part but in the sums
                    row = tl.load(pointers + leaf * m + k).to(tl.pointer_type(DTYPE))
                    y = tl.load(row + c, mask=inside, other=0.0).to(FLOAT)
                    total += tl.load(weights + k).to(FLOAT) * y
                    plain += y
                keys = _order_key(tl.where(live, x, float("inf")), INT, BITS)
                if KIND == 0 or KIND == 2:
                    answer = _median(keys, n, live, FLOAT, INT, BITS, LOW, COLUMNS)
                else:
                    answer = _trimmed(keys, n, f, live, FLOAT, INT, BITS, LOW, COLUMNS)
                if KIND >= 2:
                    answer = _around(_value(keys, FLOAT, INT, BITS), answer, n - f, live, FLOAT, INT, BITS, COLUMNS)
                tl.store(out + c, answer, mask=inside)
                overflowed += (inside & ~(tl.abs(answer) < float("inf"))).to(tl.int32)
                off = tl.where(inside, answer.to(tl.float64) - total.to(tl.float64), 0.0)
                from_sum += off * off
                off = tl.where(inside, answer.to(tl.float64) - plain.to(tl.float64) / m, 0.0)
                from_mean += off * off
        tl.store(events + 3 * program, tl.sum(overflowed, 0).to(tl.float64))
        tl.store(events + 3 * program + 1, tl.sum(from_sum, 0))
        tl.store(events + 3 * program + 2, tl.sum(from_mean, 0))
