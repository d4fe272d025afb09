"""Sums of mixed columns: sketches of many rows, made of additions alone.

Blocks of 4096 columns are mixed by a randomized Hadamard transform: secret signs, then sums and differences
of all their numbers, which keeps lengths and spreads every direction over its blocks, whatever columns it was
made of. The mixed columns get secret signs again, the blocks of a tile a secret order, and all are added up
modulo the width of a sketch, in float32. Everything is a pure function of the secret seed and the tile, so
blocks of rows may arrive in any size.

Two sketches share what is mixed. Certificates are measured on the first, unless it would be half as wide as
the rows: then these are kept. Weights are chosen on the second, which has other signs: they tell nothing of
those of the first, in which squared lengths of all directions are right on average, however weights were
chosen. Where that would be half as wide as the rows too, both are the rows.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from randeigen.backend import native
from randeigen.backend.random_streams import Stream
from randeigen.geometry.projection import key_of, tile_generator
from randeigen.types import Array

Points = NDArray[np.float32]
Bits = NDArray[np.uint8]  # eight signs in each: 1 is a minus, the lowest bit comes first

BLOCK_COLUMNS = 4096  # columns that are mixed
SIDE = 16  # the transform of a block is three of its cube root, one along each side of a cube
WIDTH_MULTIPLE = 256  # widths are multiples of it
# Columns of a tile; of thousands of rows in files fewer, since these are copied a tile at a time.
MIN_TILE_COLUMNS, MAX_TILE_COLUMNS = 2**14, 2**16
MAX_TILE_NUMBERS = 2**25
LINE = 16  # numbers of a cache line
DEVIATIONS = 5  # so many standard deviations less is a chance below 3e-7
# However wide a sketch is, two blocks may be added to one another, and a direction of few columns of each may
# be mixed into the same few numbers: of four neighbouring columns these are, with a chance of 1/16, the same
# quarter of both blocks. Less than this is left of it with a chance of 5e-7 at most, where blocks meet.
MIN_DISTORTION = 0.14
SIGNS_OF_BYTE = np.float32(1) - np.float32(2) * np.unpackbits(
    np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"
)


class Tile(NamedTuple):
    """The secret numbers of one tile: signs before its columns are mixed and, for each sketch, after that."""

    start: int  # its first column
    starts: NDArray[np.intp]  # (blocks,) where each begins once they are in order
    before: Bits
    check: Bits
    choice: Bits


class Room:
    """Memory for one tile of some rows, and for what is mixed of them."""

    def __init__(self, rows: int, tile: int) -> None:
        self.given, self.mixed = (np.zeros((rows, tile), np.float32) for _ in range(2))


class FoldedSketch:
    """The secret numbers of both sketches; `add` adds the numbers of one tile to their points."""

    def __init__(
        self, seed: int, d: int, check_width: int, choice_width: int, widest: int = MAX_TILE_COLUMNS
    ) -> None:
        self._key = key_of(seed, Stream.FOLDS)
        tiles = -(-d // widest)
        self.tile = -(-d // (tiles * BLOCK_COLUMNS)) * BLOCK_COLUMNS  # tiles of equal size
        self.is_folded = check_width < d  # or certificates are measured on the rows themselves
        self.has_choice = choice_width < d  # or weights are chosen on these, too
        self.check_width = rounded_up(check_width) if self.is_folded else d
        self.choice_width = rounded_up(choice_width) if self.has_choice else d
        self.check_distortion = distortion(self.check_width) if self.is_folded else 0.0
        self.choice_distortion = distortion(self.choice_width) if self.has_choice else 0.0

    def tile_at(self, column: int) -> Tile:
        """The secret numbers of the tile that begins at this column."""
        rng = tile_generator(self._key, column // self.tile)
        before, check, choice = rng.integers(256, size=(3, self.tile // 8), dtype=np.uint8)
        starts = column + rng.permutation(self.tile // BLOCK_COLUMNS) * BLOCK_COLUMNS
        return Tile(column, starts, before, check, choice)

    def room(self, rows: int) -> Room:
        """Memory for one tile of so many rows."""
        return Room(rows, self.tile)

    def add(
        self,
        room: Room,
        tile: Tile,
        rows: Points,
        pivot: Points | None,
        check: Points,
        choice: Points,
        fresh: bool = False,
    ) -> None:
        """Add some rows in the columns of one tile to their points, measured from the pivot, if there is one.

        Without a sketch for certificates rows are kept. Points of fresh rows are not set yet.
        """
        columns = slice(tile.start, tile.start + rows.shape[1])
        kept = None if self.is_folded else check[:, columns]
        sums = [(check, tile.check)] if self.is_folded else []
        sums += [(choice, tile.choice)] if self.has_choice else []
        if not sums:
            np.subtract(rows, np.float32(0) if pivot is None else pivot, out=kept)
            return
        if native.take(rows) and native.take(choice):
            native.fold(rows, pivot, tile.starts, tile.before, fresh, kept, sums)
            return
        given, mixed, width = room.given[: len(rows)], room.mixed[: len(rows)], rows.shape[1]
        before, given[:, width:] = signs_of(tile.before), 0
        if pivot is None and kept is None:
            np.multiply(rows, before[:width], out=given[:, :width])
        else:
            np.subtract(rows, 0 if pivot is None else pivot, out=given[:, :width], dtype=np.float32)
            if kept is not None:
                kept[...] = given[:, :width]
            given[:, :width] *= before[:width]
        mix(given, mixed)
        for points, bits in sums:
            if fresh:
                points[...] = 0
            np.multiply(mixed, signs_of(bits), out=given)
            for part, into in _lines(tile.starts.tolist(), points.shape[1]):
                points[:, into] += given[:, part]


def distortion(width: int) -> float:
    """A sketch makes a squared length smaller by no more than this, but for a chance below 1e-6.

    Of a direction that is spread over the columns it meets the squared length varies by sqrt(2/k), as in a
    Gaussian sketch of k columns; of one with few columns in two blocks that meet by up to 2/64, if rarely.
    """
    return max(DEVIATIONS * math.sqrt(2 / width), MIN_DISTORTION)


def rounded_up(width: int) -> int:
    """A width that a sketch may have."""
    return -(-width // WIDTH_MULTIPLE) * WIDTH_MULTIPLE


def points_of(n: int, width: int) -> Points:
    """Memory for points. From one to the next is an odd number of cache lines, so that they share no sets."""
    lines = -(-width // LINE) | 1
    memory = np.empty(n * lines * LINE + LINE, np.float32)
    first = -memory.ctypes.data // 4 % LINE
    return memory[first : first + n * lines * LINE].reshape(n, -1)[:, :width]


def columns_of_copied_tiles(n: int) -> int:
    """The most columns of a tile of n rows that are copied a tile at a time."""
    return max(MIN_TILE_COLUMNS, min(MAX_TILE_NUMBERS // n, MAX_TILE_COLUMNS))


def signs_of(bits: Bits) -> Points:
    """The signs that are drawn, as numbers."""
    return np.asarray(SIGNS_OF_BYTE.take(bits, axis=0).reshape(-1))


def mix(numbers: Points, out: Points) -> None:
    """The orthogonal Hadamard transform of each block of 4096; overwrites what is given.

    Along one side of a cube of 16 at a time: a product leaves that side first, so that the third one leaves
    all as they were.
    """
    for given, into in ((numbers, out), (out, numbers), (numbers, out)):
        lines = given.reshape(-1, SIDE**2, SIDE).swapaxes(1, 2)
        np.matmul(hadamard(), lines, out=into.reshape(-1, SIDE, SIDE**2))


@cache
def hadamard() -> Points:
    """The orthogonal Hadamard matrix of 16 columns."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < SIDE:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / np.float32(math.sqrt(SIDE)))


def _lines(starts: list[int], width: int) -> list[tuple[slice, slice]]:
    """Which mixed columns are added to which of a sketch."""
    lines = []
    for block, start in enumerate(starts):
        done = 0
        while done < BLOCK_COLUMNS:
            into = (start + done) % width
            here, at = min(BLOCK_COLUMNS - done, width - into), block * BLOCK_COLUMNS + done
            lines.append((slice(at, at + here), slice(into, into + here)))
            done += here
    return lines


def median_of_rows(rows: NDArray[np.floating]) -> Array:
    """(b,) the median of an odd number of rows, by exchanges of whole rows: far faster than by columns.

    A NaN counts as the number it is compared with.
    """
    lines, spare = list(rows.copy()), np.empty_like(rows[0])
    for i, j in exchanges(len(rows)):
        np.fmin(lines[i], lines[j], out=spare)
        np.fmax(lines[i], lines[j], out=lines[j])
        lines[i], spare = spare, lines[i]
    return np.asarray(lines[len(rows) // 2])


@cache
def exchanges(n: int) -> list[tuple[int, int]]:
    """Those of Batcher's exchanges, which sort n numbers, that the one in the middle depends on."""
    pairs, p = [], 1
    while p < n:
        k = p
        while k >= 1:
            for j in range(k % p, n - k, 2 * k):
                for i in range(min(k, n - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        pairs.append((i + j, i + j + k))
            k //= 2
        p *= 2
    needed, kept = {n // 2}, []
    for pair in reversed(pairs):
        if needed.intersection(pair):
            needed.update(pair)
            kept.append(pair)
    return kept[::-1]
