"""Pass 1 for those who ask for the answer alone: no more is measured than the rule asks for.

A rule says what it `needs`: the "table" (the whole measurement), "lengths" of the rows, a "line" of the table
(distances from a trusted row), or "nothing". What is measured here is measured plainly; rows for which that
will not do, hostile ones or ones far from the origin, are left to the whole measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import as_host_array, to_host_float64
from randeigen.backend.chunking import parts
from randeigen.backend.parallel import parallel_map
from randeigen.geometry.base import is_offset
from randeigen.types import Array, Block, Rows, Rule

MIN_SQUARED_NORM = {
    4: 1e-20,
    8: 1e-260,
}  # squared lengths may be made of squares that vanished below this, by item size


@dataclass(frozen=True, eq=False)
class PartialGeometry:
    """A geometry of which only this much is known."""

    prior_weights: Array  # (n,)
    squares: Array | None = None  # (n,) lengths, squared
    apart: Array | None = None  # (n,) squared distances from the trusted row
    partial: ClassVar[bool] = True
    unit: ClassVar[float] = 1.0

    @property
    def n(self) -> int:
        """How many rows."""
        return self.prior_weights.size

    def squared_norms(self) -> Array:
        """(n,) squared distances from the caller's origin."""
        assert self.squares is not None, "a rule asked for lengths without saying that it needs them"
        return self.squares

    def squared_distances_from(self, row: int) -> Array:
        """(n,) squared distances from the trusted row."""
        assert self.apart is not None, "a rule asked for distances without saying that it needs them"
        return self.apart

    def take(self, index: NDArray[np.intp]) -> PartialGeometry:
        """All rows: none was found unusable."""
        return self

    def combine_rows(self, matrix: Array) -> PartialGeometry:
        """m combinations of the rows, of which nothing is known."""
        return PartialGeometry(np.ones(matrix.shape[0]))

    def with_prior_weights(self, prior: Array) -> PartialGeometry:
        """The same with other masses."""
        return replace(self, prior_weights=prior)


def statistic_needed(rule: Rule, rows: Rows) -> str:
    """What must be measured of these rows before the rule can answer."""
    asked: str = getattr(rule, "needs", "table")
    # Integers are settled by weights, and a rule that merges columns has none without the table.
    carried = getattr(rows, "carries", False) and hasattr(rule, "merge")
    return "table" if rows.unusable or carried else asked


def measure_partly(rows: Rows, asked: str, trusted: int | None = None) -> PartialGeometry | None:
    """As much of the geometry as was asked for; None where the whole measurement must be made."""
    if asked == "table":
        return None
    even = np.ones(rows.n)
    if asked == "nothing":
        return PartialGeometry(even)
    squares, inner, short = np.zeros(rows.n), np.zeros(rows.n), 0.0
    for _, block in rows.blocks():
        block = as_host_array(block)
        if not isinstance(block, np.ndarray):
            return None  # on a GPU the table costs no more than another reading
        for found in parallel_map(lambda part: _seen(part, trusted), parts(block)):
            squares += found[0]
            inner += found[1]
        short = MIN_SQUARED_NORM[block.dtype.itemsize]
    if not (np.isfinite(squares).all() and squares.min() > short):
        return None
    if asked == "lengths":
        return PartialGeometry(even, squares)
    apart = np.maximum(squares + squares[trusted] - 2 * inner, 0.0)
    apart[trusted] = 0.0
    return None if is_offset(squares, apart) else PartialGeometry(even, squares, apart)


def _seen(part: Block, trusted: int | None) -> Sequence[Any]:
    """Squared lengths, and products with the trusted row, of some columns."""
    squares = to_host_float64(
        np.einsum("ij,ij->i", part, part)
    )  # vecdot is faster, but keeps other threads waiting
    return squares, 0.0 if trusted is None else to_host_float64(part @ part[trusted])
