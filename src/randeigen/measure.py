"""Pass 1: one reading of the rows fills the small table, whatever an adversary put in them.

The table is additive over blocks of columns, so everything is decided per block, while it is at hand:
rows far from the origin compared with their mutual distances (weights instead of updates) are measured
from a pivot that no minority of rows can set; a block whose numbers overflow or vanish when squared is
redone in float64. Neither costs another reading.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from randeigen.blocks import at_hand, host, parts, pieces, reach
from randeigen.errors import BadRows
from randeigen.geometry import Gram
from randeigen.kernels import Pivot, measured, rounding, scale_exponent, scaled_products, unlike_pivot
from randeigen.projection import CHECK_HASHES, GaussianProjection, SparseProjection, width
from randeigen.scaling import Scaled, added, in_one_unit, nothing, without
from randeigen.tallies import STARTS as STARTS
from randeigen.tallies import PointsTally, TableTally
from randeigen.threads import each
from randeigen.types import Array, Block, Geometry, Progress, Rows

Index: TypeAlias = NDArray[np.intp]

KINDS = ("auto", "gram", "sketch", "gaussian")
FAR = 8.0  # squared lengths this many times the squared distances between rows ask for a pivot
WORTH = 4  # a sketch is made where rows are at least this many times as long
EXACT = 2048  # rows up to which the exact table costs less than the sketch it would check
TINY = {4: 1e-30, 8: 1e-280}  # squares are exact well above this, by item size
HUGE = {4: math.inf, 8: 1e280}  # and below this their sum over all blocks fits a float64
GLIMPSE = 16  # columns
PIVOTS = 3  # tries: each is set by corrupt rows only if two of three are
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
    """Fills the exact table.

    A block is measured plainly or, if its rows are far from the origin, from a pivot. The few rows whose
    squares overflow or vanish are brought to a length near 1 first, at a cost that grows with their number;
    all rows are only if most of them are such.
    """

    def __init__(self, n: int, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 3])
        self.n, self.dead = n, np.zeros(n, dtype=bool)
        self.measured = nothing(n)
        self.precision = 0.0
        self.far = False
        self.pairs = _pairs(n, self.rng)

    def add(self, columns: slice, block: Block) -> None:
        """One block of columns, from the first pivot that is near its rows: none, chance ones, the median."""
        if not (self.far or self._looks_far(block)) and self._take(block, None):
            return
        self.far = True
        for _ in range(PIVOTS):
            alive = np.flatnonzero(~self.dead)
            if alive.size >= 3:
                three = self.rng.choice(alive, 3, replace=False)
                if self._take(block, (int(three[0]), int(three[1]), int(three[2]))):
                    return
        self._look_for_dead(block, self._alive())
        if everyone := self._alive():
            self._add(*self._scaled(block, everyone, "median", alone=True))

    def geometry(self) -> Gram:
        """The finished table. Lines of dead rows are zero."""
        start = self.rng.standard_normal((self.n, STARTS))
        found = in_one_unit(self.measured, self.dead)
        return Gram(
            found.table, np.ones(self.n), start, 2.0**found.exponent, self.precision, floor=found.floor
        )

    def _looks_far(self, block: Block) -> bool:
        """Whether a few columns show an offset that most share: it saves the product that would show it."""
        if not isinstance(block, np.ndarray):
            return False
        few = host(block[:, :: -(-block.shape[1] // GLIMPSE)])
        few = few * 2.0 ** -scale_exponent(reach(few))
        i, j = self.pairs
        squares, apart = (few**2).sum(1), ((few[i] - few[j]) ** 2).sum(1)
        return is_offset(np.where(self.dead, math.nan, squares), apart)

    def _take(self, block: Block, pivot_rows: Pivot | None) -> bool:
        """Add the block as measured from this pivot, unless that is far from the rows."""
        found, precision = measured(block, pivot_rows)
        squares = found.table.diagonal()[:-1]
        odd = self._odd(block, squares, pivot_rows)
        if not np.isfinite(squares).any() and pivot_rows and self.dead[list(pivot_rows)].any():
            return False  # the pivot itself is not finite
        if 2 * len(odd) > len(self._alive()):
            found, precision = self._scaled(block, self._alive(), pivot_rows, alone=True)
            if self._is_far(in_one_unit(found, self.dead).table, []):
                return False
        else:
            found = without(found, odd)
            if self._is_far(found.table, odd):
                return False
            if odd:
                lines, theirs = self._scaled(block, odd, pivot_rows, alone=False)
                found, precision = added(found, lines), max(precision, theirs)
        self._add(found, precision)
        return True

    def _add(self, found: Scaled, precision: float) -> None:
        found = without(found, np.flatnonzero(self.dead).tolist())
        self.measured = added(self.measured, found)
        self.precision = max(self.precision, precision)

    def _scaled(
        self, block: Block, index: list[int], pivot: Pivot | str | None, alone: bool
    ) -> tuple[Scaled, float]:
        cut = parts(block) if isinstance(block, np.ndarray) else pieces(block)
        found = each(lambda part: scaled_products(part, index, pivot, alone), cut)
        return reduce(added, found), rounding(self.n, cut[0].shape[1], block.dtype.itemsize)

    def _odd(self, block: Block, squares: Array, pivot_rows: Pivot | None) -> list[int]:
        """Rows whose squares overflowed or, where those of the typical row are too small, vanished."""
        size = block.dtype.itemsize
        wild: list[int] = np.flatnonzero(~(squares < HUGE[size]) & ~self.dead).tolist()
        if wild:
            self._look_for_dead(block, wild)
            wild = [i for i in wild if not self.dead[i]]
        alive = squares[~self.dead]
        if alive.size == 0 or np.median(alive) >= TINY[size]:
            return wild
        faint = np.flatnonzero((squares < TINY[size]) & ~self.dead).tolist()
        return sorted({*wild, *unlike_pivot(block, faint, pivot_rows)})

    def _look_for_dead(self, block: Block, index: list[int]) -> None:
        """Rows that hold NaN or infinity."""
        for i in index:
            self.dead[i] |= not np.isfinite(reach(block[i : i + 1])[0])

    def _alive(self) -> list[int]:
        alive: list[int] = np.flatnonzero(~self.dead).tolist()
        return alive

    def _is_far(self, table: Array, odd: list[int]) -> bool:
        squares = np.where(self.dead, math.nan, table.diagonal()[:-1])
        squares[odd] = math.nan
        i, j = self.pairs
        return is_offset(squares, squares[i] + squares[j] - 2 * table[i, j])


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
