"""Pass 1: one reading of the rows fills the small table, whatever an adversary put in them.

The table is additive over blocks of columns, so everything is decided per block, while it is at hand:
rows far from the origin compared with their mutual distances (weights instead of updates) are measured
from a pivot that no minority of rows can set; a block whose numbers overflow or vanish when squared is
redone in float64. Neither costs another reading.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from randeigen.blocks import at_hand, pieces
from randeigen.errors import BadRows
from randeigen.geometry import Gram
from randeigen.kernels import careful_products, exact_lines, products
from randeigen.projection import CHECK_HASHES, GaussianProjection, SparseProjection, width
from randeigen.tallies import STARTS as STARTS
from randeigen.tallies import PointsTally, TableTally
from randeigen.types import Array, Block, Geometry, Progress, Rows

Index: TypeAlias = NDArray[np.intp]

KINDS = ("auto", "gram", "sketch", "gaussian")
FAR = 8.0  # squared lengths this many times the squared distances between rows ask for a pivot
WORTH = 4  # a sketch is made where rows are at least this many times as long
EXACT = 2048  # rows up to which the exact table costs less than the sketch it would check
TINY = {4: 1e-30, 8: 1e-280}  # squares are exact well above this, by item size
ROUNDING = {4: 2.0**-21, 8: 2.0**-46}  # of a table entry, relative to its rows' lengths, by item size
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
    if kind == "auto" and WORTH * k > d:
        return _exact(n, d, seed)
    if k >= d:
        return PointsTally(n, d, seed, None)
    sparse = SparseProjection(seed, k)
    return PointsTally(n, sparse.k, seed, sparse, _check(n, d, seed))


def _check(n: int, d: int, seed: int) -> GramTally | PointsTally:
    """What the certificate of a sketch is measured on: exact, or a sketch with coins of its own."""
    sparse = SparseProjection(seed, max(width(d), 4 * n), CHECK_HASHES, purpose=5)
    if n <= EXACT or WORTH * sparse.k > d:
        return _exact(n, d, seed)
    return PointsTally(n, sparse.k, seed, sparse, purpose=6)


def _exact(n: int, d: int, seed: int) -> GramTally | PointsTally:
    """Whatever is exact and takes the least room: n×n products, or the rows themselves."""
    if n <= min(d, EXACT):
        return GramTally(n, seed)
    return TableTally(n, seed) if 2 * n <= d else PointsTally(n, d, seed, None)


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
