"""One tile of the rows: the pivot that they are measured from, and their numbers in float32."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from randeigen.backend import native
from randeigen.backend.arrays import as_host_array
from randeigen.backend.host_leaves import HostLeaves
from randeigen.geometry.folds import Points, Tile, median_of_rows
from randeigen.geometry.gram import Index
from randeigen.geometry.pivot import CORRUPT_PIVOT_RATIO, sampled
from randeigen.types import Block

MEDIAN_COLUMNS = 2**14  # columns whose median is taken at once
NEAR_ORIGIN_RATIO = 1.5  # rows no further from the origin than so many times from the pivot need none
PROBED_ROWS = 8  # secret rows on which the pivot is tried; so many more where these are not alike
MANY_PROBED_ROWS = 128
COMPARED_ROWS = 32  # of these: rows with which one is compared that may be the pivot
ALIKE_RATIO = 4.0  # rows are, if the longest is this many times the shortest at most
CANDIDATES = 7  # rows that may be the pivot


class Cut(NamedTuple):
    """One tile of the rows."""

    part: Block
    tile: Tile
    scale: float  # brings its numbers into the range of float32: 1 in the ordinary case
    probed: NDArray[Any]  # (p, b) a few secret rows
    few: Index  # secret rows, whose median is the pivot

    @property
    def columns(self) -> slice:
        """Which columns of the rows these are."""
        return slice(self.tile.start, self.tile.start + self.part.shape[1])


def are_read_in_place(cut: Cut) -> bool:
    """Whether the loops in C take the numbers where they lie."""
    return isinstance(cut.part, np.ndarray) and cut.scale == 1 and native.take(cut.part)


def from_pivot(
    cut: Cut, rows: slice, pivot: NDArray[Any] | None, inside: Points
) -> tuple[Points, Points | None]:
    """Some rows as float32, where they lie or in this memory, and the pivot, if it is not subtracted yet."""
    part = cut.part[rows]
    inside = inside[:, : part.shape[1]]
    plain = cut.scale == 1 and part.dtype == np.float32
    if isinstance(part, HostLeaves):
        part = part.copied_to(inside) if plain else part.numpy()
    if plain:
        if part.strides[1] != part.itemsize:  # such sums have other bits
            inside[...], part = part, inside
        return part, pivot
    part = part * np.float64(cut.scale)
    np.subtract(part, 0.0 if pivot is None else pivot, out=inside, casting="same_kind")
    return inside, None


def pivot_of(cut: Cut, order: Index, usable: Index) -> NDArray[Any] | None:
    """The median of a few secret rows, of many if it is far from most; None if the origin is as near.

    A few rows decide where all of them are alike, else many do: corrupt ones may be most of a few.
    """
    if not usable.size:
        return None
    scale, part, pivot, rows = cut.scale, cut.part, None, cut.probed
    for is_last in (False, True):
        if is_last:
            rows = as_host_array(part[sampled(order, usable, MANY_PROBED_ROWS).tolist()])
        rows = rows if scale == 1 else rows * np.float64(scale)
        some, sizes = rows[:: -(-len(rows) // COMPARED_ROWS)], _sizes(rows)
        apart = _least_apart(some)
        plain, are_alike = _middle(sizes), _are_alike(sizes)
        if (are_alike or is_last) and plain <= NEAR_ORIGIN_RATIO * apart / math.sqrt(2):
            return None  # any two are as far from one another
        pivot = median_row(part, cut.few, scale) if pivot is None else pivot
        sizes = _sizes(rows - pivot)
        if are_alike and _are_alike(sizes):
            break
    assert pivot is not None
    away = _middle(sizes)
    if not away <= CORRUPT_PIVOT_RATIO * plain:
        pivot = median_row(part, sampled(order, usable), scale)
        away = _middle(_sizes(rows - pivot))
    # Corrupt rows may have set it: any row near most will do.
    if plain <= NEAR_ORIGIN_RATIO * away or away > NEAR_ORIGIN_RATIO * apart:
        few = some[:: -(-len(some) // CANDIDATES)]
        middles = [_middle(_sizes(some - row)) for row in few]
        if (least := min(middles)) < away:
            pivot, away = few[middles.index(least)], least
    if plain <= NEAR_ORIGIN_RATIO * away:
        return None
    return pivot if scale != 1 or part.dtype != np.float32 else pivot.astype(np.float32)


def _sizes(rows: NDArray[Any]) -> list[float]:
    """Norms; infinite where a number is NaN."""
    return [math.inf if math.isnan(size := norm(x)) else size for x in rows]


def _least_apart(rows: NDArray[Any]) -> float:
    """How far honest rows are from one another, if no more than half are corrupt: a low distance of many.

    Rows are compared with the next two, so that some pairs are of honest ones however these are spread.
    """
    pairs = sorted(_sizes(rows[1:] - rows[:-1]) + _sizes(rows[2:] - rows[:-2]))
    return pairs[len(pairs) // 4 if len(rows) > PROBED_ROWS else 0] if pairs else 0.0


def _are_alike(sizes: list[float]) -> bool:
    return max(sizes) <= ALIKE_RATIO * min(sizes)


def _middle(sizes: list[float]) -> float:
    return float(np.sort(sizes)[len(sizes) // 2])


def median_row(part: Block, rows: Index, scale: float) -> NDArray[Any]:
    """(b,) the median of an odd number of rows, 0 where that is not finite."""
    some = part if isinstance(part, np.ndarray) else part[rows.tolist()].numpy()
    lines = rows if some is part else np.arange(rows.size)
    values = np.empty(part.shape[1], part.dtype if scale == 1 else np.float64)
    for i in range(0, values.size, MEDIAN_COLUMNS):
        columns = slice(i, i + MEDIAN_COLUMNS)
        few = some[lines, columns]
        values[columns] = median_of_rows(few if scale == 1 else few * np.float64(scale))
    values[~np.isfinite(values)] = 0
    return values


def norm(vector: NDArray[Any]) -> float:
    """The norm of a vector, in float64 where float32 cannot hold its square."""
    square = float(vector @ vector)
    return math.sqrt(square) if math.isfinite(square) else float(np.linalg.norm(vector.astype(np.float64)))
