"""Hundreds of rows and more: two sketches made in one reading, to choose weights on and to certify them."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend import native
from randeigen.backend.arrays import as_host_array, largest_magnitudes, median
from randeigen.backend.chunking import parallel_map
from randeigen.backend.random_streams import Stream
from randeigen.geometry.folded import CheckGeometry, ManyRowsGeometry, subspace_of
from randeigen.geometry.folds import (
    BLOCK_COLUMNS,
    MAX_TILE_COLUMNS,
    FoldedSketch,
    Points,
    Room,
    columns_of_copied_tiles,
    points_of,
    rounded_up,
)
from randeigen.geometry.gram import Index
from randeigen.geometry.pivot import FLOAT32_RANGE, sampled
from randeigen.geometry.tile_cuts import PROBED_ROWS, Cut, are_read_in_place, from_pivot, pivot_of
from randeigen.types import Array, Block

# Of the certificate of a round cloud, by the width of a sketch: at least, if it is so narrow beside the
# columns beyond a few and has so few numbers in all; at most; and at most of thousands of rows, whose plain
# mean takes long enough.
MIN_WIDENING, MAX_WIDENING, MAX_WIDENING_OF_THOUSANDS, THOUSANDS = 1.1, 1.27, 1.2, 2048
NARROW_SKETCH, FEW_COLUMNS, SMALL_SKETCH = 10, 2**15, 2**26
MIN_CHOICE_WIDTH = 2048
# Numbers of rows that are kept for the certificate: of rows in main memory, and of those read from files.
MAX_KEPT_NUMBERS, MAX_KEPT_FILE_NUMBERS = 2**28, 2**24
FEW_NUMBERS = 2**25  # rows of so few are kept where a sketch behind certificates would save little
MIN_ROWS_WITHOUT_SKETCH = 256  # of fewer the Gram matrix is made
MIN_COLUMNS = 65  # of fewer the covariance is made
PIVOT_ROWS = 7  # secret rows whose median, column by column, is the pivot
PART_ROWS = 32  # rows that a thread takes at once
ROOM_NUMBERS = 2**19  # numbers that it copies at once: fewer are done before a waiting thread has woken up
TILES_AT_ONCE = 8  # tiles of rows in main memory that are folded while a row's points are in a cache
MAX_PLAIN_EXPONENT = 30  # norms within 2^±this of 1 are left as they are: float32 holds their squares
FARTHEST_EXPONENT = 40  # rows 2^this times as far out as the median row are brought to that distance
TINY = 1e-25  # sums of squares below this are made again in float64
ROUNDING = 2.0**-21  # of an inner product in float32, relative to the two rows' norms


def folded_widths(n: int, d: int) -> tuple[int, int]:
    """Columns of the sketch that certificates are measured on, and of that on which weights are chosen."""
    wide = min(_width(n, d, MIN_WIDENING), (d - FEW_COLUMNS) // NARROW_SKETCH, SMALL_SKETCH // n)
    least = _width(n, d, MAX_WIDENING if n < THOUSANDS else MAX_WIDENING_OF_THOUSANDS)
    check = max(least, wide, BLOCK_COLUMNS)
    choice = max(MIN_CHOICE_WIDTH, min(4 * n, 2 * MIN_CHOICE_WIDTH), 3 * n // 4)
    return rounded_up(check), rounded_up(choice)


def _width(n: int, d: int, widening: float) -> int:
    """In how many columns k a round cloud looks so much wider: (1 + sqrt(n/k))/(1 + sqrt(n/d)) times."""
    root = widening * (1 + math.sqrt(n / d)) - 1
    return math.ceil(n / root**2)


def folding(n: int, d: int, seed: int, in_files: bool) -> ManyRowsAccumulator | None:
    """Both sketches, if they are narrow beside the rows; then they cost less than an exact Gram matrix.

    Of short rows only the second, and of still shorter ones none: certificates are measured on the rows
    themselves, if there is room for these. Rows in files may be more than memory holds.
    """
    check, choice = folded_widths(n, d)
    if 2 * check > d or (check + choice > d / 2 and n * d <= FEW_NUMBERS):
        check = d
    if 2 * choice > d:  # then nothing that is exact takes less room than the rows
        if n < MIN_ROWS_WITHOUT_SKETCH or d < MIN_COLUMNS:
            return None
        check = choice = d
    elif check == d and n * d > (MAX_KEPT_FILE_NUMBERS if in_files else MAX_KEPT_NUMBERS):
        return None
    widest = columns_of_copied_tiles(n) if in_files else MAX_TILE_COLUMNS
    sketch = FoldedSketch(seed, d, check, choice, widest)
    return ManyRowsAccumulator(n, seed, sketch, 1 if in_files else TILES_AT_ONCE)


class ManyRowsAccumulator:
    """Accumulates both sketches tile by tile, in float32.

    Rows are measured from a pivot that no minority sets. A row that is not finite shows in its own points and
    in no other's. Where most rows are too large or too small for float32, all are scaled by a power of two.
    """

    copies_parts = True

    def __init__(self, n: int, seed: int, sketch: FoldedSketch, tiles_at_once: int = 1) -> None:
        self.n, self.seed, self.sketch = n, seed, sketch
        self.block_multiple = tiles_at_once * sketch.tile
        self.rng = np.random.default_rng([seed, Stream.MEASUREMENT])
        self.order = self.rng.permutation(n)
        self.check = points_of(n + 1, self.sketch.check_width)  # the origin is the last
        self.choice = points_of(n + 1, self.sketch.choice_width) if sketch.has_choice else self.check
        self.points = [self.check, self.choice] if sketch.has_choice else [self.check]
        for points in self.points:
            points[-1] = 0
        self.is_empty = True  # then the points are not set
        self.squares = np.zeros(n)  # squared norms of the points that weights are chosen on
        self.unusable = np.zeros(n, dtype=bool)
        self.exponent = 0  # points are in units of 2**exponent
        self.has_unit = False
        self.memory: dict[int, Room] = {}

    def add(self, columns: slice, block: Block) -> None:
        """One block of columns, which begins where a tile does."""
        width = self.sketch.tile
        parts = [block[:, start : start + width] for start in range(0, block.shape[1], width)]
        usable, cuts = np.flatnonzero(~self.unusable), list[Cut]()
        for number, part in enumerate(parts):
            probed = as_host_array(part[sampled(self.order, usable, PROBED_ROWS).tolist()])
            if not self._fits(probed):  # the unit may change, for all that has been added
                self._fold(cuts)
                cuts = []
                self._set_unit(part, usable)
            self.has_unit = self.has_unit or bool(probed.any())
            few = self.rng.permutation(usable)[: min(PIVOT_ROWS, usable.size - 1 + usable.size % 2)]
            tile = self.sketch.tile_at(columns.start + number * width)
            cuts.append(Cut(part, tile, 2.0**-self.exponent, probed, np.sort(few)))
        self._fold(cuts)

    def _fold(self, cuts: Sequence[Cut]) -> None:
        """Add some tiles. Of each row all are folded in turn: its points stay in a cache."""
        if not cuts:
            return
        usable = np.flatnonzero(~self.unusable)
        pivots = [pivot_of(cut, self.order, usable) for cut in cuts]
        stop = cuts[-1].columns.stop
        copied = max(1, ROOM_NUMBERS // self.sketch.tile)
        step = PART_ROWS if all(map(are_read_in_place, cuts)) else copied

        def work(rows: slice) -> Array:
            room = self._memory(copied)
            for i in range(rows.start, rows.stop, step):
                some, is_empty = slice(i, min(i + step, rows.stop)), self.is_empty
                for cut, pivot in zip(cuts, pivots, strict=True):
                    given = from_pivot(cut, some, pivot, room.given[: some.stop - i])
                    self.sketch.add(room, cut.tile, *given, self.check[some], self.choice[some], is_empty)
                    is_empty = False
            # Every number is in these sums; columns to come, of rows that are kept, are not set yet.
            return _squared_norms(self.choice[rows] if self.sketch.has_choice else self.choice[rows, :stop])

        slices = [slice(i, min(i + PART_ROWS, self.n)) for i in range(0, self.n, PART_ROWS)]
        self.squares = np.concatenate(parallel_map(work, slices))
        self.is_empty = False
        for i in np.flatnonzero(~np.isfinite(self.squares) & ~self.unusable).tolist():
            self.unusable[i] = not all(np.isfinite(as_host_array(cut.part[i : i + 1])).all() for cut in cuts)
        if from_pivots := [
            (cut, pivot) for cut, pivot in zip(cuts, pivots, strict=True) if pivot is not None
        ]:
            self._fold_origin(from_pivots)

    def _fold_origin(self, from_pivots: Sequence[tuple[Cut, NDArray[Any]]]) -> None:
        """The caller's origin, as the rows are seen: from the pivot of each tile."""
        room = self.sketch.room(1)
        for cut, pivot in from_pivots:
            origin = -pivot[None].astype(np.float32)
            self.sketch.add(room, cut.tile, origin, None, self.check[-1:], self.choice[-1:])

    def _memory(self, rows: int) -> Room:
        """Each thread's own, kept: fresh memory costs as much as what is done in it."""
        thread = threading.get_ident()
        if thread not in self.memory:
            self.memory[thread] = self.sketch.room(rows)
        return self.memory[thread]

    def _fits(self, probed: NDArray[Any]) -> bool:
        """Whether most rows are of a size that float32 holds as they are."""
        low, high = FLOAT32_RANGE
        sizes = np.nan_to_num(largest_magnitudes(probed), nan=0.0, posinf=math.inf)
        return not len(probed) or (not self.exponent and low <= median(sizes) <= high)

    def _set_unit(self, part: Block, usable: Index) -> None:
        """A unit that suits most rows; it grows if later tiles hold larger numbers."""
        magnitudes = largest_magnitudes(as_host_array(part))[usable]
        magnitudes = magnitudes[np.isfinite(magnitudes)]
        typical = median(magnitudes) if magnitudes.size else 0.0
        low, high = FLOAT32_RANGE
        exponent = math.frexp(typical)[1]
        if typical == 0 or low <= typical * 2.0**-self.exponent <= high:
            return
        if exponent > self.exponent or not self.has_unit:
            if self.has_unit:
                for points in self.points:
                    points *= np.float32(2.0 ** max(self.exponent - exponent, -1000))
            self.exponent = max(-1000, min(exponent, 1000))
        self.has_unit = True

    def geometry(self) -> ManyRowsGeometry:
        """The finished points. Those of unusable rows are zero, those of rows too far out shortened."""
        self.memory.clear()
        squares = self.squares
        lost = ~np.isfinite(squares) & ~self.unusable  # finite numbers whose sum is not
        usable = squares[np.isfinite(squares) & ~self.unusable]
        typical = math.sqrt(median(usable)) if usable.size else 0.0
        exponent = math.frexp(typical)[1] if typical else 0
        exponent = 0 if abs(exponent) <= MAX_PLAIN_EXPONENT else exponent
        farthest = math.ldexp(typical or 1.0, FARTHEST_EXPONENT)
        far = np.isfinite(squares) & (squares > farthest**2) & ~self.unusable
        for points in self.points:
            points[:-1][self.unusable | lost] = 0
            points[:-1][far] *= (farthest / np.sqrt(squares[far])).astype(np.float32)[:, None]
            points[:-1][lost, 0] = farthest
            if exponent:
                points *= np.float32(2.0**-exponent)
        squares = np.ldexp(
            np.where(self.unusable, 0.0, np.where(far | lost, farthest**2, squares)), -2 * exponent
        )
        start, other = (self.rng.standard_normal((x.shape[1], 1)) for x in (self.choice, self.check))
        common: dict[str, Any] = {
            "prior_weights": np.ones(self.n),
            "scale": 2.0 ** (self.exponent + exponent),
            "precision": ROUNDING,
            "beyond": far | lost if (far | lost).any() else None,
            "squares": squares,  # the other sketch has as long ones, to its distortion
        }
        index, seed = np.arange(self.n), self.seed
        own: dict[str, Any] = {
            "distortion": self.sketch.check_distortion,
            "index": index,
            "seed": seed,
        }
        check = CheckGeometry(self.check[:-1], self.check[-1], start=other, **own, **common)
        common |= {"distortion": self.sketch.choice_distortion, "check": check}
        points, origin = self.choice[:-1], self.choice[-1]
        return ManyRowsGeometry(points, origin, start=start, subspace=subspace_of(points, start), **common)


def _squared_norms(points: Points) -> Array:
    """(r,) squared norms, in float64 where float32 cannot hold them."""
    if native.take(points):
        return native.squared_lengths(points)
    squares = np.einsum("ij,ij->i", points, points).astype(np.float64)
    for i in np.flatnonzero(~((squares > TINY) & (squares < math.inf))):
        wide = points[i].astype(np.float64)
        squares[i] = wide @ wide
    return np.asarray(squares)
