"""Pass 1: one reading of the rows fills the small table, whatever an adversary put in them.

The table is additive over blocks of columns, so everything is decided per block, while it is at hand:
rows far from the origin compared with their mutual distances (weights instead of updates) are measured
from a pivot that no minority of rows can set; a block whose numbers overflow or vanish when squared is
redone in float64. Neither costs another reading.
"""

from __future__ import annotations

import math
import warnings
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from randeigen.blocks import at_hand, host, middle, pieces
from randeigen.errors import BadRows
from randeigen.geometry import Gram, Points
from randeigen.kernels import careful_products, exact_lines, products, scale_exponent
from randeigen.projection import EPS_JL, GaussianProjection, SparseProjection, width
from randeigen.types import Array, Block, Geometry, Mask, Progress, Rows

Index: TypeAlias = NDArray[np.intp]

KINDS = ("auto", "gram", "sketch", "gaussian")
FAR = 8.0  # squared lengths this many times the squared distances between rows ask for a pivot
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
    """By cost: n²·d for the exact table, n·d for a sketch, and short rows are their own small space."""
    if kind not in KINDS:
        raise BadRows(f"geometry={kind!r} is not known; choose one of {', '.join(map(repr, KINDS))}.")
    n, d, k = rows.n, rows.d, width(rows.d)
    if kind == "gram" or (kind == "auto" and n <= k and n <= d):
        return GramTally(n, seed)
    if kind == "gaussian":
        return PointsTally(n, k, seed, GaussianProjection(seed, k))
    k = max(k, 4 * n)  # a sketch this wide widens a shapeless cloud by at most (1 + 1/2)²
    if k >= d:
        return PointsTally(n, d, seed, None)
    sparse = SparseProjection(seed, k)
    return PointsTally(n, sparse.k, seed, sparse)


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
    """Fills n points in k columns, by a random projection or, for short rows, by the rows themselves."""

    def __init__(
        self, n: int, k: int, seed: int, projection: GaussianProjection | SparseProjection | None
    ) -> None:
        self.rng = np.random.default_rng([seed, 3])
        self.points = np.zeros((n + 1, k))  # the origin is the last
        self.projection = projection
        self.precision = 0.0

    @property
    def dead(self) -> Mask:
        """Rows with a number that is not finite: it has reached their points."""
        return np.asarray(~np.isfinite(self.points[:-1]).all(axis=1))

    def add(self, columns: slice, block: Block) -> None:
        """One block of columns. A projection squares nothing, so only a far origin needs care."""
        self.precision = max(self.precision, ROUNDING[block.dtype.itemsize])
        if self.projection is None:
            exact = host(block)
            pivot = _median(exact)
            self.points[:-1, columns], self.points[-1, columns] = exact - pivot, -pivot
        elif not self._is_far(_sample(block, self.rng)):
            self.projection.add(self.points[:-1], columns, block)
        else:
            at = columns.start
            for piece in pieces(block):
                self._add_shifted(slice(at, at + piece.shape[1]), piece)
                at += piece.shape[1]

    def geometry(self) -> Points:
        """The finished points. Those of dead rows are zero."""
        self.points[:-1][self.dead] = 0.0
        exponent = scale_exponent(np.abs(self.points[:-1]).max(axis=1))
        points = self.points * 2.0**-exponent if exponent else self.points
        n, distortion = points.shape[0] - 1, EPS_JL if self.projection else 0.0
        start = self.rng.standard_normal((n, STARTS))
        return Points(points[:-1], points[-1], np.ones(n), start, 2.0**exponent, self.precision, distortion)

    def _add_shifted(self, columns: slice, block: Block) -> None:
        assert self.projection is not None
        three = self.rng.permutation(block.shape[0])[:3]
        a, b, c = (block[int(i)] for i in (*three, three[0], three[0])[:3])  # the first again if rows are few
        pivot = middle(a, b, c)
        if self._is_far(block - pivot):
            pivot = _median(host(block))
            block = host(block)
        self.projection.add(self.points[:-1], columns, block - pivot)
        self.projection.add(self.points[-1:], columns, -pivot[None])

    def _is_far(self, block: Block) -> bool:
        i, j = _pairs(block.shape[0], self.rng)
        apart = block[i] - block[j]
        return is_offset(host((block * block).sum(1)), host((apart * apart).sum(1)))


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


def _median(exact: Array) -> Array:
    """The median of each column over the numbers that are finite; 0 where none is."""
    finite = np.isfinite(exact)
    if finite.all():
        return np.asarray(np.median(exact, axis=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column in which no number is finite
        return np.asarray(np.nan_to_num(np.nanmedian(np.where(finite, exact, math.nan), axis=0)))


def _sample(block: Block, rng: np.random.Generator) -> Array:
    """A few columns, enough to see an offset that most of them share."""
    columns = rng.choice(block.shape[1], min(256, block.shape[1]), replace=False)
    return host(block[:, np.sort(columns)])
