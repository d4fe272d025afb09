"""Pass 2: the rows are combined by their weights, block by block, in the caller's form.

The answer comes with a bound on its own rounding, which the certificate needs. A float32 sum of m rows is
off by at most (m + 2)·2⁻²⁴ of their root mean square norm: nothing beside the distances between updates.
Where it is more, since the rows are far from the origin, the sum is made in float64. What the cast to the
answer's dtype moves is measured. It counts in half precision, and in float32 if it is more than
`SMALLEST_VISIBLE_ROUNDING` of the rows' spread. A sum that overflows, of rows near the largest float, is made
again with care.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from randeigen.backend.arrays import (
    apart,
    as_host_array,
    joined,
)
from randeigen.backend.chunking import (
    MAX_BLOCK_COLUMNS,
    MAX_COPY_BYTES,
    narrower,
)
from randeigen.backend.device_blocks import InRegisters, MergedColumns, as_matrix, is_matrix, takes
from randeigen.types import (
    Block,
    Combiner,
    Mask,
    Progress,
    Rows,
    Weights,
)
from randeigen.weighted_sum import RowSizes, WeightedSum, largest_magnitude, largest_number_like

MAX_SQUARABLE = (
    1e100  # squares of smaller numbers fit a float64, so the whole measurement would take them too
)


class NeedsFullPass(Exception):
    """Rows that were not measured hold a value that is not finite or overflows when squared."""


def combine(
    rows: Rows,
    weights: Weights,
    usable: Mask,
    scale: float = 1.0,
    progress: Progress | None = None,
    unmeasured: bool = False,
    size: RowSizes | None = None,
) -> tuple[Any, float]:
    """scale · Σ wᵢ xᵢ over the usable rows, and how far rounding may have moved it.

    `unmeasured`: nothing is known of the rows, and each has some weight. Without `size` only a cast to a
    narrower dtype is in that distance.
    """
    answer, weighted_sum, moved = rows.answer(), WeightedSum(weights * scale, usable, size), 0.0
    with np.errstate(all="ignore"):  # sums of the largest numbers overflow, and are made again
        for columns, block in _at_hand(rows):
            place = answer.place(columns, block)
            cast = weighted_sum.into(place, block)
            if cast is not None:
                moved = math.hypot(moved, cast)
                if unmeasured:
                    _need_full_pass_if_hostile(place, block)
            else:
                for part, narrow in narrower(columns, block):
                    total = weighted_sum(narrow)
                    if unmeasured:
                        _need_full_pass_if_hostile(total, narrow)
                    moved = math.hypot(moved, answer.write(part, total))
            if progress:
                progress("averaging", columns.stop, rows.d)
    return answer.finish(weights), weighted_sum.rounding_error(moved)


def merge_columns(
    rows: Rows,
    weights: Weights,
    usable: Mask,
    combiner: Combiner,
    scale: float = 1.0,
    progress: Progress | None = None,
    unmeasured: bool = False,
    size: RowSizes | None = None,
) -> tuple[Any, float]:
    """What `combiner` makes of every block of usable rows, and how far the whole is from scale · Σ wᵢ xᵢ.

    That distance is 0 where the rows are `unmeasured`: then there is no such mean to be far from.
    """
    answer, weighted_sum = rows.answer(), WeightedSum(weights * scale, usable, size)
    alive, distance, moved = np.flatnonzero(usable).tolist(), 0.0, 0.0
    # Where rows are left out, the others are copied, and no copy may be large.
    multiple = combiner.block_multiple
    copied = max(MAX_COPY_BYTES // (8 * rows.n) // multiple, 1) * multiple
    with np.errstate(all="ignore"):
        for columns, block in _at_hand(rows):
            as_it_lies = (usable.all() and is_matrix(block)) or _is_on_gpu(combiner, block)
            for part, narrow in narrower(columns, block, MAX_BLOCK_COLUMNS if as_it_lies else copied):
                if found := _in_registers(combiner, narrow, alive, weighted_sum, unmeasured):
                    moved = math.hypot(moved, answer.write(part, found.answer))
                    distance = math.hypot(distance, found.from_sum)
                    continue
                total = weighted_sum(narrow)
                if unmeasured:
                    _need_full_pass_if_hostile(total, narrow)
                narrow = as_matrix(narrow)
                merged = combiner(part, narrow if usable.all() else narrow[alive])
                if not math.isfinite(largest_magnitude(merged)):
                    merged = _merged_small(combiner, part, narrow, alive)
                moved = math.hypot(moved, answer.write(part, merged))
                if not unmeasured:
                    distance = math.hypot(distance, apart(merged, total))
            if progress:
                progress("merging", columns.stop, rows.d)
    return answer.finish(weights), 0.0 if unmeasured else distance + weighted_sum.rounding_error(moved)


def _is_on_gpu(combiner: Combiner, block: Block) -> bool:
    return not isinstance(block, np.ndarray) and takes(block) and isinstance(combiner, InRegisters)


def _in_registers(
    combiner: Combiner, block: Block, alive: list[int], weighted_sum: WeightedSum, unmeasured: bool
) -> MergedColumns | None:
    """The answer of a GPU's kernel, which sums up in float32 on the way; None if that will not do."""
    if not _is_on_gpu(combiner, block) or weighted_sum.in_float64(block):
        return None
    if unmeasured and block.dtype.itemsize == 8:  # all of its numbers must be seen
        return None
    assert isinstance(combiner, InRegisters)
    return combiner.in_registers(block, alive, weighted_sum.weights)


def _merged_small(combiner: Combiner, columns: slice, block: Block, alive: list[int]) -> Any:
    """The answer made of numbers scaled down, where sums of large ones overflowed, and scaled up again."""
    down, multiple = 2.0 ** (len(alive).bit_length() + 1), combiner.block_multiple
    wide, merged = max(MAX_COPY_BYTES // (8 * len(alive)) // multiple, 1) * multiple, []
    for part, narrow in narrower(columns, block, wide):
        small = combiner(part, narrow[alive] * (1 / down))
        top = largest_number_like(small) / down
        merged.append(small.clip(-top, top) * down)
    return joined(merged)


def _at_hand(rows: Rows) -> Iterator[tuple[slice, Block]]:
    return ((columns, as_host_array(block)) for columns, block in rows.blocks())


def _need_full_pass_if_hostile(total: Any, block: Block) -> None:
    """Raise NeedsFullPass unless every number is finite and, in float64, can be squared.

    A sum in which all rows have a part shows it: what is not finite stays so whatever is added.
    """
    totals = total if isinstance(total, list) else [total]
    if not all(math.isfinite(largest_magnitude(leaf)) for leaf in totals) or (
        block.dtype.itemsize == 8 and not largest_magnitude(as_matrix(block)) < MAX_SQUARABLE
    ):
        raise NeedsFullPass
