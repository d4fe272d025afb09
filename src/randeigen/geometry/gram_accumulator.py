"""Pass 1: one reading of the rows accumulates their Gram matrix or a sketch, whatever an adversary sent.

Both are sums over blocks of columns, so everything is decided per block, while it is in the cache: rows far
from the origin compared with their mutual distances (weights instead of updates) are measured from a pivot
that no minority of rows can set; a block whose numbers overflow or underflow when squared is redone in
float64. Neither costs another reading.
"""

from __future__ import annotations

import math
from functools import cached_property, reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import as_host_array, largest_magnitudes, to_host_float64, working_size
from randeigen.backend.batched import RoundsAhead
from randeigen.backend.chunking import is_host_block, parallel_map, parts, pieces
from randeigen.backend.host_leaves import as_copied
from randeigen.backend.random_streams import Stream
from randeigen.geometry.eigen import MAX_DENSE_ROWS
from randeigen.geometry.gram import START_DIRECTIONS, UNDERFLOW, GramGeometry, Index
from randeigen.geometry.odd_rows import gram_of_scaled_rows, unlike_pivot
from randeigen.geometry.products import (
    UNSET,
    Pivot,
    ScaledGram,
    added,
    all_apart,
    at_exponents,
    is_offset,
    nothing,
    random_pairs,
    rounding,
    scale_exponent,
    scaled_gram,
    without,
)
from randeigen.types import Array, Block, Geometry, GeometryKind, Mask, Progress, Rows, Statistic

if TYPE_CHECKING:
    from randeigen.geometry.choice import Accumulator

SMALLEST_EXACT_SQUARE = {4: 1e-30, 8: 1e-280}  # squares above this are exact but for rounding, by item size
LARGEST_EXACT_SQUARE = {4: math.inf, 8: 1e280}  # sums of smaller squares over all blocks fit a float64
MAX_UNDERFLOW = {4: 2.0**-126, 8: 2.0**-1022}  # of a product, by item size: a GPU flushes smaller ones to 0
GLIMPSED_COLUMNS = 16  # columns looked at before a block is multiplied
MIN_GLIMPSED_NUMBERS = 2**14  # numbers of a block: the product of fewer is had as soon as a look at it
MAX_PIVOTS = 3  # pivots tried for a block: each is set by corrupt rows only if two of its three rows are
MAX_FEW_ROWS = 160  # rows up to which the exact Gram matrix costs less than a sketch, or not twice as much
NOT_FINITE = "not finite: it holds NaN or infinity"
# Binary exponents of squared norms, in the unit of the median row unless it is said otherwise.
MAX_EXPONENT = 960  # a squared norm beyond 2^MAX_EXPONENT is too large to measure beside the others
MIN_EXPONENT = -900  # one below 2^MIN_EXPONENT underflows beside them
MAX_PLAIN_SQUARE_EXPONENT = 200  # a median squared norm within 2^±this is left in the caller's units
MAX_ORIGIN_EXPONENT = 900  # the squared distance of the caller's origin is kept below 2^this


def measure(
    rows: Rows,
    kind: GeometryKind = "auto",
    seed: int = 0,
    progress: Progress | None = None,
    want: Statistic = Statistic.GRAM,
    ahead: RoundsAhead | None = None,
) -> tuple[Geometry, dict[int, str]]:
    """The geometry of all rows, and which rows could not be measured, with the reason.

    `ahead`: rounds that will be asked for; a GPU may begin them before the host has looked at the rows.
    """
    few = rows.on_host and rows.n <= min(rows.d, MAX_FEW_ROWS)
    if kind == "auto" and few and (rows.segment_columns or rows.d) >= rows.d:
        accumulator: Accumulator = GramAccumulator(rows.n, seed)
    else:
        from randeigen.geometry.choice import accumulator_for  # built on what is here

        accumulator = accumulator_for(rows, kind, seed, want, ahead)
    with np.errstate(all="ignore"):  # hostile numbers overflow; what they did is looked at afterwards
        blocks = rows.blocks(accumulator.block_multiple)
        for columns, block in blocks if accumulator.copies_parts else as_copied(blocks):
            in_parts = accumulator.copies_parts and is_host_block(block)
            accumulator.add(columns, block if in_parts else as_host_array(block))
            if progress:
                progress("measuring", columns.stop, rows.d)
        not_finite = accumulator.unusable.nonzero()[0]  # in the finished geometry these rows are zero
        geometry = accumulator.geometry()
    if not (not_finite.size or rows.unusable):
        return geometry, {}
    unusable = dict.fromkeys(not_finite.tolist(), NOT_FINITE) | dict(rows.unusable)
    return geometry, dict(sorted(unusable.items()))


class GramInOneUnit(NamedTuple):
    """Inner products in units of 4**exponent."""

    gram: Array
    exponent: int
    floor: float  # squared norms below this may have underflowed; 0 if none has
    beyond: Mask  # (n,) rows that were too large beside the others, and were shortened


class GramAccumulator:
    """Accumulates the exact Gram matrix block by block.

    A block is measured plainly or, if its rows are far from the origin, from a pivot. The few rows whose
    squares overflow or underflow are scaled to a norm near 1 first, at a cost that grows with their number;
    all rows are only if most of them are such.
    """

    block_multiple = 1
    copies_parts = True
    most_compared = MAX_DENSE_ROWS  # rows up to which all pairs are compared before any are drawn

    def __init__(self, n: int, seed: int, segment: int = 0) -> None:
        self._coins = [seed, Stream.MEASUREMENT, *([segment] if segment else [])]
        self.n, self.columns, self.unusable = n, 0, np.zeros(n, dtype=bool)
        self.total, self._is_empty = nothing(n), True
        self.precision = self.underflow = 0.0  # what rounding, and underflow, may take from an entry
        self.offset = False  # whether some block was far from the origin: the next ones will be too
        self.norms: Array | None = None  # of the rows of the block that is being added, if they were measured

    @cached_property
    def _generator_and_pairs(self) -> tuple[np.random.Generator, tuple[Index, Index]]:
        generator = np.random.Generator(np.random.PCG64(self._coins))  # `default_rng`, half as soon
        return generator, random_pairs(self.n, generator)

    @cached_property
    def start(self) -> Array:
        """(n, p) secret directions from which the search for the top direction starts."""
        return self._generator_and_pairs[0].standard_normal((self.n, START_DIRECTIONS))

    def add(self, columns: slice, block: Block) -> None:
        """One block of columns, from the first pivot near its rows: none, random ones, the median."""
        self.columns += block.shape[1]
        self.norms, is_first = None, self._is_empty
        looks_offset = self.offset or (is_first and self._looks_offset(block))
        if not looks_offset and self._add_from(block, None):
            return
        self.offset, rng = True, self._generator_and_pairs[0].spawn(1)[0]  # start directions stay
        for _ in range(MAX_PIVOTS):
            usable = np.flatnonzero(~self.unusable)
            if usable.size >= 3:
                three = rng.choice(usable, 3, replace=False)
                if self._add_from(block, (int(three[0]), int(three[1]), int(three[2]))):
                    return
        self._find_unusable(block, self._usable())
        if usable_rows := self._usable():
            self._add(*self._scaled(block, usable_rows, "median", alone=True))

    def geometry(self) -> GramGeometry:
        """The finished matrix. Lines of unusable rows are zero."""
        return self.geometry_in(None)

    def geometry_in(self, exponent: int | None) -> GramGeometry:
        """The same, its lengths in units of 2**exponent; None: as suits the rows."""
        total = in_one_unit(self.total, self.unusable, exponent)
        lost = max(float(np.ldexp(self.underflow, -2 * total.exponent)), UNDERFLOW) if self.underflow else 0.0
        beyond = total.beyond if np.count_nonzero(total.beyond) else None
        unit, ones = 2.0**total.exponent, np.ones(self.n)
        start = (lambda: self.start) if self.n <= MAX_FEW_ROWS else self.start
        known = self.precision, 0.0, total.floor + lost, beyond, self.columns
        return GramGeometry(total.gram, ones, start, unit, *known)

    def _looks_offset(self, block: Block) -> bool:
        """Whether a few columns show an offset that most rows share, which saves the plain product.

        Asked of the first block alone: a later one's plain product is in vain at most once.
        """
        if not is_host_block(block) or math.prod(block.shape) < MIN_GLIMPSED_NUMBERS:
            return False
        few = to_host_float64(as_host_array(block[:, :: -(-block.shape[1] // GLIMPSED_COLUMNS)]))
        few = few * 2.0 ** -scale_exponent(largest_magnitudes(few))
        i, j = self._generator_and_pairs[1]
        squares, distances = (few**2).sum(1), ((few[i] - few[j]) ** 2).sum(1)
        return is_offset(np.where(self.unusable, math.nan, squares), distances)

    def _add_from(self, block: Block, pivot_rows: Pivot | None) -> bool:
        """Add the block as measured from this pivot, unless that is far from the rows."""
        # Of few rows the secret directions are seldom needed: a GPU has done its work before they are drawn.
        meanwhile = (lambda: self.start) if self.n > MAX_DENSE_ROWS else (lambda: None)
        measured, precision = scaled_gram(block, pivot_rows, self.norms, meanwhile)
        if self._add_measured(block, pivot_rows, measured, precision):
            return True
        self.norms = np.sqrt(measured.gram.diagonal()[:-1]) if pivot_rows is None else self.norms
        return False

    def _add_measured(
        self, block: Block, pivot_rows: Pivot | None, measured: ScaledGram, precision: float
    ) -> bool:
        """The same with the products at hand: rows that overflowed or underflowed are measured again."""
        squares = measured.gram.diagonal()[:-1]
        odd = self._odd(block, squares, pivot_rows)
        if pivot_rows and not np.isfinite(squares).any() and self.unusable[list(pivot_rows)].any():
            return False  # the pivot itself is not finite
        if odd and 2 * len(odd) > len(self._usable()):
            measured, precision = self._scaled(block, self._usable(), pivot_rows, alone=True)
            if self._is_offset(in_one_unit(measured, self.unusable).gram, []):
                return False
        else:
            measured = without(measured, odd) if odd else measured
            if self._is_offset(measured.gram, odd):
                return False
            if odd:
                lines, their_precision = self._scaled(block, odd, pivot_rows, alone=False)
                measured, precision = added(measured, lines), max(precision, their_precision)
        self._add(measured, precision)
        return True

    def _add(self, measured: ScaledGram, precision: float) -> None:
        if np.count_nonzero(self.unusable):
            measured = without(measured, self.unusable.nonzero()[0].tolist())
        self.total, self._is_empty = measured if self._is_empty else added(self.total, measured), False
        self.precision = max(self.precision, precision)

    def _scaled(
        self, block: Block, index: list[int], pivot: Pivot | str | None, alone: bool
    ) -> tuple[ScaledGram, float]:
        cut = parts(block) if is_host_block(block) else pieces(block)
        terms = parallel_map(lambda part: gram_of_scaled_rows(as_host_array(part), index, pivot, alone), cut)
        return reduce(added, terms), rounding(self.n, cut[0].shape[1], working_size(block))

    def _odd(self, block: Block, squares: Array, pivot_rows: Pivot | None) -> list[int]:
        """Rows whose squares overflowed or, where those of the typical row are too small, underflowed."""
        size = working_size(block)
        if squares.min() >= SMALLEST_EXACT_SQUARE[size] and squares.max() < LARGEST_EXACT_SQUARE[size]:
            return []  # the ordinary case
        large = ~(squares < LARGEST_EXACT_SQUARE[size]) & ~self.unusable
        overflowed: list[int] = np.flatnonzero(large).tolist()
        if overflowed:
            self._find_unusable(block, overflowed)
            overflowed = [i for i in overflowed if not self.unusable[i]]
        usable_squares = squares[~self.unusable]
        small: list[int] = np.flatnonzero((squares < SMALLEST_EXACT_SQUARE[size]) & ~self.unusable).tolist()
        if not small:
            return overflowed
        small = unlike_pivot(block, small, pivot_rows)
        if usable_squares.size == 0 or np.median(usable_squares) >= SMALLEST_EXACT_SQUARE[size]:
            self.underflow += block.shape[1] * MAX_UNDERFLOW[size] if small else 0.0
            return overflowed
        return sorted({*overflowed, *small})

    def _find_unusable(self, block: Block, index: list[int]) -> None:
        """Rows that hold NaN or infinity."""
        for i in index:
            self.unusable[i] |= not np.isfinite(largest_magnitudes(as_host_array(block[i : i + 1]))[0])

    def _usable(self) -> list[int]:
        return list(np.flatnonzero(~self.unusable).tolist())

    def _is_offset(self, gram: Array, odd: list[int]) -> bool:
        squares = gram.diagonal()[:-1]
        if odd or np.count_nonzero(self.unusable):
            squares = np.where(self.unusable, math.nan, squares)
            squares[odd] = math.nan
        elif self.n <= self.most_compared and all_apart(squares, gram[:-1, :-1]):
            return False
        i, j = self._generator_and_pairs[1]
        return is_offset(squares, squares[i] + squares[j] - 2 * gram[i, j])


def in_one_unit(measured: ScaledGram, unusable: Mask, exponent: int | None = None) -> GramInOneUnit:
    """All rows in units of 4**exponent; None: in the unit of the median row.

    Lines of unusable rows are 0; a row too large is shortened.
    """
    squares, most = measured.gram.diagonal(), 2.0**MAX_PLAIN_SQUARE_EXPONENT / 2
    scaled = exponent or np.count_nonzero(measured.exponents[:-1]) or measured.exponents[-1] not in (0, UNSET)
    if not (scaled or np.count_nonzero(unusable)) and 1 / most < squares[:-1].min() <= squares.max() < most:
        return GramInOneUnit(measured.gram, 0, 0.0, unusable)  # the ordinary case
    gram, exponents = without(measured, np.flatnonzero(unusable).tolist())
    bits = np.where(gram.diagonal() > 0, np.frexp(gram.diagonal())[1] + 2 * exponents, UNSET)
    known = np.sort(bits[:-1][bits[:-1] > UNSET])
    if exponent is None:
        exponent = _typical_exponent(known, int(np.count_nonzero(~unusable)))
    shift = np.where(exponents == UNSET, 0, exponents - exponent)  # lines that are unset are 0
    # An origin farther away than can be squared is brought nearer, in its own direction.
    shift[-1] -= max(0, int(bits[-1]) - 2 * exponent - MAX_ORIGIN_EXPONENT + 1) // 2
    excess = np.maximum(bits[:-1] - 2 * exponent - MAX_EXPONENT, 0)
    shift[:-1] -= (excess + 1) // 2
    out = at_exponents(gram, shift)
    underflows = known.size > 0 and int(known[0]) - 2 * exponent < MIN_EXPONENT
    return GramInOneUnit(out, exponent, 2.0**MIN_EXPONENT if underflows else 0.0, excess > 0)


def _typical_exponent(bits: NDArray[np.int64], usable: int) -> int:
    """Of the median row, given the sorted exponents of all squared norms that are not 0.

    Where most rows are at the pivot, or too small or large for the median row's unit, a minority could have
    chosen it; so it is the caller's own if that suits any row at all.
    """
    typical = int(bits[bits.size // 2]) if bits.size else 0
    alike = (bits - typical > MIN_EXPONENT) & (bits - typical < MAX_EXPONENT)
    by_minority = 2 * np.count_nonzero(alike) <= usable
    if by_minority and ((bits > MIN_EXPONENT) & (bits < MAX_EXPONENT)).any():
        typical = 0
    return 0 if abs(typical) <= MAX_PLAIN_SQUARE_EXPONENT else max(-1000, min(typical // 2, 1000))
