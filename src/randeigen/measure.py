"""Pass 1: one reading of the rows fills the small table, whatever an adversary put in them.

The table is additive over blocks of columns, so everything is decided per block, while it is at hand:
rows far from the origin compared with their mutual distances (weights instead of updates) are measured
from a pivot that no minority of rows can set; a block whose numbers overflow or vanish when squared is
redone in float64. Neither costs another reading.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from randeigen.blocks import as_host, at_hand, median, pieces
from randeigen.errors import BadRows
from randeigen.geometry import Gram, Points
from randeigen.kernels import careful_products, exact_lines, products, scale_exponent
from randeigen.pivot import centre, magnitudes, sampled
from randeigen.projection import (
    CHECK_HASHES,
    EPS_JL,
    GaussianProjection,
    SparseProjection,
    distortion,
    width,
)
from randeigen.types import Array, Block, Geometry, Progress, Rows

Index: TypeAlias = NDArray[np.intp]

KINDS = ("auto", "gram", "sketch", "gaussian")
FAR = 8.0  # squared lengths this many times the squared distances between rows ask for a pivot
WORTH = 4  # a sketch is made where rows are at least this many times as long
EXACT = 2048  # rows up to which the exact table costs less than the sketch it would check
FARTHEST = 2.0**450  # points are no larger, so that their squares fit a float64
SMALLEST = 2.0**-560  # so that the ratio of the two is above every unit
# By item size of the points: a typical magnitude that asks for larger units, the largest one, and the step.
ROOM = {4: (2.0**120, 2.0**127, 16), 8: (2.0**900, 2.0**1000, 200)}
TINY = {4: 1e-30, 8: 1e-280}  # squares are exact well above this, by item size
ROUNDING = {4: 2.0**-21, 8: 2.0**-46}  # of a table entry, relative to its rows' lengths, by item size
STARTS = 8  # secret directions to begin the search for the widest one with
NOT_FINITE = "not finite: it holds NaN or infinity"
TOO_LARGE = "too large to measure beside the others"


def measure(
    rows: Rows, kind: str = "auto", seed: int = 0, progress: Progress | None = None
) -> tuple[Geometry, dict[int, str]]:
    """The geometry of all rows, and which rows could not be measured, with the reason."""
    tally = _choose(rows, kind, seed)
    with np.errstate(all="ignore"):  # hostile numbers overflow; what they did is looked at afterwards
        for columns, block in rows.blocks():
            tally.add(columns, at_hand(block))
            if progress:
                progress("measuring", columns.stop, rows.d)
        dead = tally.dead.copy()  # before the table is finished: there their lines are zero
        geometry = tally.geometry()
        lengths = geometry.lengths()
    unusable = {int(i): TOO_LARGE for i in np.flatnonzero(~np.isfinite(lengths))}
    unusable |= {int(i): NOT_FINITE for i in np.flatnonzero(dead)} | dict(rows.lost)
    return geometry, dict(sorted(unusable.items()))


def _choose(rows: Rows, kind: str, seed: int) -> GramTally | PointsTally:
    """By cost: n²·d for the exact table, n·d for a sketch, and short rows are their own small space.

    Sketches are made where they are so narrow that two of them take no more room than the rows.
    """
    if kind not in KINDS:
        raise BadRows(f"geometry={kind!r} is not known; choose one of {', '.join(map(repr, KINDS))}.")
    n, d, k = rows.n, rows.d, width(rows.d)
    if kind == "gram" or (kind == "auto" and n <= k and n <= d):
        return GramTally(n, seed)
    if kind == "gaussian":
        return PointsTally(n, k, seed, GaussianProjection(seed, k), _check(n, d, seed))
    k = max(k, 4 * n)  # a sketch this wide widens a shapeless cloud by at most (1 + 1/2)²
    if k >= d or (kind == "auto" and WORTH * k > d):
        return GramTally(n, seed) if kind == "auto" and n <= min(d, EXACT) else PointsTally(n, d, seed, None)
    sparse = SparseProjection(seed, k)
    return PointsTally(n, sparse.k, seed, sparse, _check(n, d, seed))


def _check(n: int, d: int, seed: int) -> GramTally | PointsTally:
    """What the certificate of a sketch is measured on: exact, or a sketch with coins of its own."""
    if n <= EXACT:
        return GramTally(n, seed) if n <= d else PointsTally(n, d, seed, None)
    sparse = SparseProjection(seed, max(width(d), 4 * n), CHECK_HASHES, purpose=5)
    if WORTH * sparse.k > d:
        return PointsTally(n, d, seed, None)
    return PointsTally(n, sparse.k, seed, sparse, purpose=6)


class GramTally:
    """Fills the exact table."""

    def __init__(self, n: int, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 3])
        self.n, self.dead = n, np.zeros(n, dtype=bool)
        self.table = np.zeros((n + 1, n + 1))
        self.exponent = 0  # the table is in units of 4**exponent, so that squares fit a float
        self.precision = 0.0
        self.far = False
        self.pairs = _pairs(n, self.rng)

    def add(self, columns: slice, block: Block) -> None:
        """One block of columns: plainly, from a pivot, or with all care, as its numbers demand."""
        self.precision = max(self.precision, ROUNDING[block.dtype.itemsize])
        if not self.far:
            table = self._products(block, None)
            self.far = self._is_far(table)
            if not self.far and self._is_sound(table, block):
                return self._take(table, 0)
        if self.far and (~self.dead).sum() >= 3:
            three = self.rng.choice(np.flatnonzero(~self.dead), 3, replace=False)
            table = self._products(block, (int(three[0]), int(three[1]), int(three[2])))
            if not self._is_far(table) and self._is_sound(table, block):
                return self._take(table, 0)
        if not self.dead.all():
            for piece in pieces(block):
                self._take(*careful_products(piece, self.dead))

    def geometry(self) -> Gram:
        """The finished table. Lines of dead rows are zero."""
        start = self.rng.standard_normal((self.n, STARTS))
        table = self._without_dead(self.table)
        return Gram(table, np.ones(self.n), start, 2.0**self.exponent, self.precision)

    def _products(self, block: Block, pivot_rows: tuple[int, int, int] | None) -> Array:
        """The block's table, with the lines of rows that overflowed redone in float64."""
        table = products(block, pivot_rows)
        wild = np.flatnonzero(~np.isfinite(table.diagonal()[:-1]) & ~self.dead).tolist()
        if wild:
            self.dead[[i for i in wild if not bool(abs(block[i]).max() < math.inf)]] = True
            wild = [i for i in wild if not self.dead[i]]
        if wild and len(wild) <= self.n // 2:
            lines = exact_lines(block, wild, pivot_rows)
            table[wild], table[:, wild] = lines, lines.T
        return self._without_dead(table)

    def _without_dead(self, table: Array) -> Array:
        gone = np.flatnonzero(self.dead)
        table[gone] = table[:, gone] = 0.0
        return table

    def _take(self, table: Array, exponent: int) -> None:
        if not self.table.any():
            self.exponent = exponent
        higher = max(exponent, self.exponent)
        self.table *= 4.0 ** (self.exponent - higher)
        self.table += self._without_dead(table) * 4.0 ** (exponent - higher)
        self.exponent = higher

    def _is_far(self, table: Array) -> bool:
        squares = np.where(self.dead, math.nan, table.diagonal()[:-1])
        i, j = self.pairs
        return is_offset(squares, squares[i] + squares[j] - 2 * table[i, j])

    def _is_sound(self, table: Array, block: Block) -> bool:
        """Whether squaring lost nothing: no row overflowed, and the typical row did not vanish."""
        squares, tiny = table.diagonal()[:-1], TINY[block.dtype.itemsize]
        if not np.isfinite(squares).all():
            return False
        if self.dead.all() or np.median(squares[~self.dead]) >= tiny:
            return True
        faint = np.flatnonzero((squares < tiny) & ~self.dead)
        return not any(bool((block[int(i)] != 0).any()) for i in faint)


class PointsTally:
    """Fills n points in k columns, by a random projection or, for short rows, by the rows themselves.

    The rows themselves are kept in their own precision. Projections are summed in float64.
    """

    def __init__(
        self,
        n: int,
        k: int,
        seed: int,
        projection: GaussianProjection | SparseProjection | None,
        check: GramTally | PointsTally | None = None,
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
        if self.projection is None and self.precision == 0:
            self.points = np.zeros(self.shape, np.float32 if block.dtype.itemsize == 4 else np.float64)
        self.precision = max(self.precision, ROUNDING[block.dtype.itemsize])
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
        room, roof, step = ROOM[self.points.itemsize]
        if median(reach[alive]) * 2.0**-self.exponent > room:  # most rows are that large: all in larger units
            self.points *= 2.0**-step
            self.exponent += step
        found = centre(block, reach, alive, sampled(self.order, alive), 2.0**-self.exponent)
        apart, origin = found.block, -found.pivot[None]
        over = found.reach > roof
        if over[alive].any():
            self.beyond |= over
            apart = apart.clip(-roof, roof)
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


def _pairs(n: int, rng: np.random.Generator) -> tuple[Index, Index]:
    """Every row with a partner nobody could foresee."""
    order = rng.permutation(n)
    return order, np.roll(order, 1)


def is_offset(squares: Array, apart: Array) -> bool:
    """Whether the rows stand far from the origin beside their mutual distances.

    The median and the lower quartile are set by honest rows: fewer than half are corrupt, so fewer than
    three quarters of the pairs hold a corrupt row.
    """
    squares, apart = squares[np.isfinite(squares)], apart[np.isfinite(apart)]
    if squares.size == 0 or apart.size == 0:
        return False
    quartile = float(np.partition(apart, apart.size // 4)[apart.size // 4])
    return bool(np.median(squares) > FAR * max(quartile, 0.0))
