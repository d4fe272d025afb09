"""What some columns of all rows add to their Gram matrix: shares of different columns add up to the whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from randeigen.backend.arrays import as_host_array
from randeigen.backend.host_leaves import as_copied
from randeigen.geometry.gram import GramGeometry
from randeigen.geometry.gram_accumulator import GramAccumulator
from randeigen.geometry.products import ScaledGram, added, nothing
from randeigen.types import Mask, Rows


@dataclass(frozen=True, eq=False)
class GramShare:
    """A share of a Gram matrix, measured wherever its columns are.

    Each share is about a pivot of its own, the line of the origin included, so shares need no common coins. A
    row that is not finite in one share is unusable in the sum.
    """

    measured: ScaledGram
    unusable: Mask  # (n,) rows that hold NaN or infinity in these columns
    precision: float = 0.0  # what rounding may take from an entry, relative to the two rows' norms
    underflow: float = 0.0  # what underflow may take from it
    columns: int = 0

    @property
    def n(self) -> int:
        return self.unusable.size

    @classmethod
    def of_nothing(cls, n: int) -> GramShare:
        """The share of no columns: what a worker without any adds."""
        return cls(nothing(n), np.zeros(n, dtype=bool))

    @classmethod
    def measure(cls, rows: Rows, seed: int) -> GramShare:
        """One reading of rows that hold some of the columns."""
        accumulator = GramAccumulator(rows.n, seed)
        with np.errstate(all="ignore"):  # hostile numbers overflow; what they did is looked at afterwards
            for columns, block in as_copied(rows.blocks()):
                accumulator.add(columns, as_host_array(block))
        unusable = accumulator.unusable.copy()
        unusable[list(rows.unusable)] = True
        return cls(accumulator.total, unusable, accumulator.precision, accumulator.underflow, rows.d)

    def __add__(self, other: GramShare) -> GramShare:
        if not isinstance(other, GramShare):
            return NotImplemented
        return GramShare(
            added(self.measured, other.measured),
            self.unusable | other.unusable,
            max(self.precision, other.precision),
            self.underflow + other.underflow,
            self.columns + other.columns,
        )

    def geometry(self, seed: int) -> GramGeometry:
        """The geometry of the rows, if this is the sum of all shares. Lines of unusable rows are zero.

        The start directions come from a fresh generator: how many coins the pivots of a share took does not
        matter.
        """
        whole = GramAccumulator(self.n, seed)
        whole.total, whole.unusable = self.measured, self.unusable
        whole.precision, whole.underflow, whole.columns = self.precision, self.underflow, self.columns
        return whole.geometry()
