"""The point from which a sketch measures a block of columns: near most rows, and set by no minority.

Model weights and running statistics put offsets into some columns, of any size. What is projected is
therefore always the difference from a pivot: the median, column by column, of secret rows that are finite. It
is one of the rows' own numbers, so that subtracting it from numbers near it is exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import as_float64, median, to_host_float64
from randeigen.types import Array, Block

SAMPLED_ROWS = 511  # rows: with 40% of all corrupt, most of these are corrupt with a chance of 2e-6
WORSE = 4.0  # a pivot from which the typical row is this many times further away than from 0 is corrupt
NARROW = 2.0**-60, 2.0**60  # magnitudes whose products float32 can hold


class Centred(NamedTuple):
    """A block measured from its pivot."""

    block: Block  # (n, b) rows less the pivot
    pivot: Any  # (b,)
    squared_norms_from_pivot: Array  # (n,) the largest magnitude in each row


def centre(
    block: Block, reach: Array, alive: NDArray[np.intp], sample: NDArray[np.intp], scale: float
) -> Centred:
    """The rows, times `scale`, from the median of the sampled ones.

    `reach` holds the magnitudes of the rows, `alive` those that are finite, and `sample` some of these.
    Numbers that float32 could not hold, or whose products it could not, are handled in float64.
    """
    typical = median(reach[alive])
    largest, least = float(reach[alive].max()), typical or float(reach[alive].max())
    if scale != 1 or (block.dtype.itemsize < 8 and not (NARROW[0] <= least and largest <= NARROW[1])):
        block = as_float64(block) * scale
    found = _from(block, sample)
    if (
        median(found.squared_norms_from_pivot[alive]) > WORSE * typical * scale
    ):  # most of the sample is corrupt
        found = _from(block, alive if alive.size % 2 else alive[:-1])
    return found


def magnitudes(block: Block) -> Array:
    """(n,) the largest magnitude in each row; not finite where one of its numbers is not."""
    if isinstance(block, np.ndarray):
        high, low = block.max(axis=1), block.min(axis=1)
    else:
        high, low = block.amax(1), block.amin(1)
    return np.maximum(to_host_float64(high), -to_host_float64(low))


def sampled(order: NDArray[np.intp], alive: NDArray[np.intp]) -> NDArray[np.intp]:
    """The first rows of a secret order that are alive; an odd number, so that one is in the middle."""
    count = min(alive.size - 1 + alive.size % 2, SAMPLED_ROWS)
    return np.sort(order[np.isin(order, alive)][:count])


def _from(block: Block, rows: NDArray[np.intp]) -> Centred:
    pivot = _middle(block, rows)
    apart = block - pivot
    return Centred(apart, pivot, magnitudes(apart))


def _middle(block: Block, rows: NDArray[np.intp]) -> Any:
    """(b,) the median of an odd number of rows."""
    if not isinstance(block, np.ndarray):
        return block[rows.tolist()].median(dim=0).values
    columns = np.ascontiguousarray(block[rows].T)
    return np.partition(columns, rows.size // 2, axis=1)[:, rows.size // 2]
