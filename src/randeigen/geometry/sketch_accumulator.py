"""The points of a sketch, or of short rows, added up block by block."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import as_host, largest_magnitudes, median, working_size
from randeigen.backend.chunking import MAX_FLOAT64_POINT_NUMBERS, pieces
from randeigen.backend.device_blocks import as_matrix
from randeigen.backend.random_streams import Stream
from randeigen.geometry.gram import START_DIRECTIONS, GramGeometry
from randeigen.geometry.pivot import centre, sampled
from randeigen.geometry.products import scale_exponent
from randeigen.geometry.projection import EPS_JL, GaussianProjection, SparseProjection, distortion
from randeigen.geometry.sketch import LARGEST_POINT, SketchGeometry
from randeigen.types import Block, Mask


class UnitLimits(NamedTuple):
    """When points are stored in larger units, so that none overflows."""

    typical: float  # a typical magnitude above this asks for larger units
    largest: float  # larger magnitudes are clipped, and their rows are `beyond`
    step: int  # the unit grows by 2**step


SMALLEST_POINT = 2.0**-560  # so that the ratio of the two is above every unit
FAINT_POINT = 2.0**-450  # of smaller points little or nothing is left when they are squared
UNIT_LIMITS = {4: UnitLimits(2.0**120, 2.0**127, 16), 8: UnitLimits(2.0**900, 2.0**1000, 200)}  # by item size
POINT_ROUNDING = {4: 2.0**-21, 8: 2.0**-46}  # of a difference from the pivot and its square, by item size


class Accumulator(Protocol):
    """What is filled block by block and then becomes a geometry."""

    def add(self, columns: slice, block: Block) -> None:
        """One block of columns."""

    def geometry(self) -> GramGeometry | SketchGeometry:
        """The geometry of all columns added so far."""


class SketchAccumulator:
    """Accumulates n points in k columns, by a random projection or, for short rows, the rows themselves.

    Rows themselves are kept in their own precision where there are many; projections are summed in float64.
    """

    block_multiple = 1
    copies_parts = False

    def __init__(
        self,
        n: int,
        k: int,
        seed: int,
        projection: GaussianProjection | SparseProjection | None,
        check: Accumulator | None = None,
        stream: Stream = Stream.MEASUREMENT,
    ) -> None:
        self.rng = np.random.default_rng([seed, stream])
        self.projection, self.check = projection, check
        self.shape = n + 1, k  # the origin is the last
        self.points: NDArray[Any] = np.zeros(self.shape)  # takes no memory until it is written to
        self.order = self.rng.permutation(n)
        self.unusable, self.beyond = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        self.exponent = 0  # points are in units of 2**exponent
        self.precision = self.floor = 0.0

    def add(self, columns: slice, block: Block) -> None:
        """One block of columns."""
        if self.projection is None and self.precision == 0 and working_size(block) == 4:
            is_large = self.points.size > MAX_FLOAT64_POINT_NUMBERS
            self.points = np.zeros(self.shape, np.float32 if is_large else np.float64)
        self.precision = max(self.precision, POINT_ROUNDING[working_size(block)])
        at = columns.start
        for piece in pieces(block):
            self._add(slice(at, at + piece.shape[1]), piece)
            at += piece.shape[1]
        if self.check:
            self.check.add(columns, block)

    def _add(self, columns: slice, block: Block) -> None:
        block = as_matrix(block)
        magnitudes = largest_magnitudes(block)
        self.unusable |= ~np.isfinite(magnitudes)
        usable = np.flatnonzero(~self.unusable)
        if usable.size == 0:
            return
        limits = self.unit_limits()
        if median(magnitudes[usable]) * 2.0**-self.exponent > limits.typical:  # most rows are that large
            self._enlarge(limits.step)
        about_pivot = centre(block, magnitudes, usable, sampled(self.order, usable), 2.0**-self.exponent)
        centred, origin, largest = about_pivot.block, -about_pivot.pivot[None], limits.largest
        over = about_pivot.magnitudes > largest
        if over[usable].any():
            self.beyond |= over
            centred = centred.clip(-largest, largest)
        if largest_magnitudes(origin)[0] > largest:
            origin = origin.clip(-largest, largest)
        self._store(columns, centred, origin)

    def unit_limits(self) -> UnitLimits:
        """Those of the dtype that the points are stored in."""
        return UNIT_LIMITS[self.points.itemsize]

    def _enlarge(self, step: int) -> None:
        self.points *= 2.0**-step
        self.exponent += step

    def _store(self, columns: slice, centred: Block, origin: Block) -> None:
        if self.projection is None:
            self.points[:-1, columns], self.points[-1:, columns] = as_host(centred), as_host(origin)
        else:
            self.projection.add(self.points[:-1], columns, centred)
            self.projection.add(self.points[-1:], columns, origin)

    def geometry(self) -> SketchGeometry:
        """The finished points. Those of unusable rows are zero, those of rows too far out shortened."""
        n, points = self.shape[0] - 1, self.points
        points[:-1][self.unusable] = 0.0
        if points.itemsize == 8:
            magnitudes, enlarged = largest_magnitudes(points), self.exponent > 0
            exponent = min(self.exponent + scale_exponent(magnitudes[:-1][~self.unusable]), 1000)
            unit, self.exponent = 2.0 ** (self.exponent - exponent), exponent
            limit = LARGEST_POINT / np.maximum(magnitudes, SMALLEST_POINT)
            if unit != 1 or (limit < 1).any():
                points *= np.minimum(unit, limit)[:, None]
            self.beyond |= limit[:-1] < unit
            faint = (magnitudes[:-1] > 0) & (magnitudes[:-1] * unit < FAINT_POINT)
            # In larger units small numbers may have become 0 before they were stored.
            self.floor = points.shape[1] * FAINT_POINT**2 if enlarged or faint.any() else 0.0
        start = self.rng.standard_normal((n, START_DIRECTIONS))
        check = self._checked()
        return SketchGeometry(
            points[:-1],
            points[-1],
            np.ones(n),
            start,
            2.0**self.exponent,
            self.precision,
            self._distortion(check),
            self._usable_beyond(),
            check,
            self.floor,
        )

    def _distortion(self, check: GramGeometry | SketchGeometry | None) -> float:
        if self.projection is None:
            return 0.0
        if isinstance(self.projection, SparseProjection) and not check:
            return distortion(self.projection.k, self.projection.hashes)
        return EPS_JL

    def _usable_beyond(self) -> Mask | None:
        beyond = self.beyond & ~self.unusable
        return beyond if beyond.any() else None

    def _checked(self) -> GramGeometry | SketchGeometry | None:
        """The other measurement. Rows whose squares it could not hold are `beyond` here too."""
        if self.check is None:
            return None
        exact = self.check.geometry()
        if exact.beyond is not None:
            self.beyond |= exact.beyond
        return exact
