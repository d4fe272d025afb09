"""The point from which a sketch measures a block of columns: near most rows, and set by no minority.

Model weights and running statistics put offsets into some columns, of any size. What is projected is
therefore always the difference from a pivot: the median, column by column, of secret rows that are finite. It
is one of the rows' own numbers, so that subtracting it from numbers near it is exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import as_float64, largest_magnitudes, median, median_of_odd_rows
from randeigen.types import Array, Block

MAX_SAMPLED_ROWS = 511  # with 40% of all rows corrupt, most of these are corrupt with a chance of 2e-6
CORRUPT_PIVOT_RATIO = (
    4.0  # a pivot this many times further from the typical row than 0 is was set by corrupt rows
)
FLOAT32_RANGE = 2.0**-60, 2.0**60  # magnitudes whose products float32 can hold


class Centred(NamedTuple):
    """A block measured from its pivot."""

    block: Block  # (n, b) rows less the pivot
    pivot: Any  # (b,)
    magnitudes: Array  # (n,) the largest magnitude in each row


def centre(
    block: Block, magnitudes: Array, usable: NDArray[np.intp], sample: NDArray[np.intp], scale: float
) -> Centred:
    """The rows, times `scale`, less the median of the sampled ones.

    `magnitudes` are the largest of each row, `usable` the rows that are finite, and `sample` some of these.
    Numbers that float32 could not hold, or whose products it could not, are handled in float64.
    """
    typical, largest = median(magnitudes[usable]), float(magnitudes[usable].max())
    least = typical or largest
    low, high = FLOAT32_RANGE
    if scale != 1 or (block.dtype.itemsize < 8 and not (low <= least and largest <= high)):
        block = as_float64(block) * scale
    centred = _from(block, sample)
    if median(centred.magnitudes[usable]) > CORRUPT_PIVOT_RATIO * typical * scale:
        centred = _from(block, usable if usable.size % 2 else usable[:-1])
    return centred


def sampled(
    order: NDArray[np.intp], usable: NDArray[np.intp], most: int = MAX_SAMPLED_ROWS
) -> NDArray[np.intp]:
    """The first usable rows of a secret order, in the caller's; if the most is odd, one is in the middle."""
    count = min(usable.size - 1 + usable.size % 2, most)
    if usable.size < order.size:
        order = order[np.isin(order, usable)]
    return np.sort(order[:count])


def _from(block: Block, rows: NDArray[np.intp]) -> Centred:
    pivot = median_of_odd_rows(block, rows)
    centred = block - pivot
    return Centred(centred, pivot, largest_magnitudes(centred))
