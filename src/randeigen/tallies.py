"""Pass 1 for very many rows: their sketch, the rows themselves, or an exact table without copies of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from randeigen.blocks import as_host, host, median, pieces
from randeigen.geometry import Gram, Points
from randeigen.kernels import scale_exponent
from randeigen.pivot import centre, magnitudes, sampled
from randeigen.projection import EPS_JL, GaussianProjection, SparseProjection, distortion
from randeigen.types import Block
from randeigen.wide import WideGram

STARTS = 8  # secret directions to begin the search for the widest one with
FARTHEST = 2.0**450  # points are no larger, so that their squares fit a float64
SMALLEST = 2.0**-560  # so that the ratio of the two is above every unit
# By item size of the points: a typical magnitude that asks for larger units, the largest one, and the step.
ROOM = {4: (2.0**120, 2.0**127, 16), 8: (2.0**900, 2.0**1000, 200)}
KEPT = {4: 2.0**-21, 8: 2.0**-46}  # rounding of a difference from the pivot and its square, by item size
SHORT = 2**22  # numbers that may as well be kept in float64
LINES = 512  # of the table that are added to at a time


class Tally(Protocol):
    """What is filled block by block and then becomes a geometry."""

    def add(self, columns: slice, block: Block) -> None:
        """One block of columns."""

    def geometry(self) -> Gram | Points:
        """What came of them."""


class PointsTally:
    """Fills n points in k columns, by a random projection or, for short rows, by the rows themselves.

    Rows themselves are kept in their own precision where there are many; projections are summed in float64.
    """

    def __init__(
        self,
        n: int,
        k: int,
        seed: int,
        projection: GaussianProjection | SparseProjection | None,
        check: Tally | None = None,
        purpose: int = 3,
    ) -> None:
        self.rng = np.random.default_rng([seed, purpose])
        self.projection, self.check = projection, check
        self.shape = n + 1, k  # the origin is the last
        self.points: NDArray[Any] = np.zeros(self.shape)  # takes no memory until it is written to
        self.order = self.rng.permutation(n)
        self.dead, self.beyond = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        self.exponent = 0  # points are in units of 2**exponent
        self.precision = 0.0

    def add(self, columns: slice, block: Block) -> None:
        """One block of columns."""
        if self.projection is None and self.precision == 0 and block.dtype.itemsize == 4:
            self.points = np.zeros(self.shape, np.float32 if self.points.size > SHORT else np.float64)
        self.precision = max(self.precision, KEPT[block.dtype.itemsize])
        at = columns.start
        for piece in pieces(block):
            self._add(slice(at, at + piece.shape[1]), piece)
            at += piece.shape[1]
        if self.check:
            self.check.add(columns, block)

    def _add(self, columns: slice, block: Block) -> None:
        reach = magnitudes(block)
        self.dead |= ~np.isfinite(reach)
        alive = np.flatnonzero(~self.dead)
        if alive.size == 0:
            return
        room, roof, step = self.room()
        if median(reach[alive]) * 2.0**-self.exponent > room:  # most rows are that large: all in larger units
            self._enlarge(step)
        found = centre(block, reach, alive, sampled(self.order, alive), 2.0**-self.exponent)
        apart, origin = found.block, -found.pivot[None]
        over = found.reach > roof
        if over[alive].any():
            self.beyond |= over
            apart = apart.clip(-roof, roof)
        if magnitudes(origin)[0] > roof:
            origin = origin.clip(-roof, roof)
        self._store(columns, apart, origin)

    def room(self) -> tuple[float, float, int]:
        """A typical magnitude that asks for larger units, the largest one there may be, and the step."""
        return ROOM[self.points.itemsize]

    def _enlarge(self, step: int) -> None:
        self.points *= 2.0**-step
        self.exponent += step

    def _store(self, columns: slice, apart: Block, origin: Block) -> None:
        if self.projection is None:
            self.points[:-1, columns], self.points[-1:, columns] = as_host(apart), as_host(origin)
        else:
            self.projection.add(self.points[:-1], columns, apart)
            self.projection.add(self.points[-1:], columns, origin)

    def geometry(self) -> Points:
        """The finished points. Those of dead rows are zero, those of rows too far out shortened."""
        n, points = self.shape[0] - 1, self.points
        points[:-1][self.dead] = 0.0
        if points.itemsize == 8:
            reach = magnitudes(points)
            total = min(self.exponent + scale_exponent(reach[:-1][~self.dead]), 1000)
            unit, self.exponent = 2.0 ** (self.exponent - total), total
            longest = FARTHEST / np.maximum(reach, SMALLEST)
            if unit != 1 or (longest < 1).any():
                points *= np.minimum(unit, longest)[:, None]
            self.beyond |= longest[:-1] < unit
        start = self.rng.standard_normal((n, STARTS))
        check, lost = self._checked(), 0.0
        if isinstance(self.projection, SparseProjection) and not check:
            lost = distortion(self.projection.k, self.projection.hashes)
        elif self.projection:
            lost = EPS_JL
        beyond = self.beyond & ~self.dead
        return Points(
            points[:-1],
            points[-1],
            np.ones(n),
            start,
            2.0**self.exponent,
            self.precision,
            lost,
            beyond if beyond.any() else None,
            check,
        )

    def _checked(self) -> Gram | Points | None:
        """The other measurement. Rows whose squares it could not hold are beyond measure here too."""
        if self.check is None:
            return None
        found = self.check.geometry()
        over = ~np.isfinite(found.reach())
        if isinstance(found, Gram) and over.any():
            lines = np.append(over, False)
            self.beyond |= over
            found = replace(found, table=np.where(lines | lines[:, None], 0.0, found.table))
        return found


class TableTally(PointsTally):
    """Fills the exact table, in float64 and in place: beside the table itself no n×n numbers are held."""

    def __init__(self, n: int, seed: int) -> None:
        super().__init__(n, 0, seed, None)
        self.table = np.zeros((n + 1, n + 1))
        self.begun = False

    def room(self) -> tuple[float, float, int]:
        """As for points, but they are squared."""
        return 2.0**400, FARTHEST, 600

    def _enlarge(self, step: int) -> None:
        np.ldexp(self.table, -2 * step, out=self.table)
        self.exponent += step

    def _add(self, columns: slice, block: Block) -> None:
        if not self.begun:  # of faint rows nothing would be left when squared
            reach = magnitudes(block)
            self.exponent = scale_exponent(reach[np.isfinite(reach)])
            self.begun = bool(reach.any())
        super()._add(columns, block)

    def _store(self, columns: slice, apart: Block, origin: Block) -> None:
        exact = np.vstack((host(apart), host(origin)))
        exact[:-1][self.dead] = 0.0
        for i in range(0, exact.shape[0], LINES):
            lines = slice(i, min(i + LINES, exact.shape[0]))
            self.table[lines, : lines.stop] += exact[lines] @ exact[: lines.stop].T

    def geometry(self) -> WideGram:  # type: ignore[override]
        """The finished table. Lines of dead rows are zero."""
        n = self.dead.size
        for i in range(0, n + 1, LINES):  # only its lower half was filled
            lines = slice(i, min(i + LINES, n + 1))
            self.table[: lines.start, lines] = self.table[lines, : lines.start].T
        gone = np.flatnonzero(self.dead)
        self.table[gone] = self.table[:, gone] = 0.0
        start, beyond = self.rng.standard_normal((n, STARTS)), self.beyond & ~self.dead
        return WideGram(
            self.table,
            np.ones(n),
            start,
            2.0**self.exponent,
            self.precision,
            beyond=beyond if beyond.any() else None,
        )
