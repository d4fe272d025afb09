"""One tile of the rows: the median of some of them, and their numbers in float32."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from randeigen.backend import native
from randeigen.backend.host_leaves import HostLeaves
from randeigen.geometry.folds import Points, Tile, median_of_rows
from randeigen.geometry.gram import Index
from randeigen.types import Block

MEDIAN_COLUMNS = 2**14  # columns whose median is taken at once


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
