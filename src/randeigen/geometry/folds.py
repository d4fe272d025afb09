"""A sketch made of sums of signed columns, for hundreds of rows and more: two of them in one reading.

Columns come in tiles and get secret signs; chunks of a tile are put in a secret order. All columns are then
folded several times: laid out in lines of c numbers, from a secret place on, which are added up with secret
signs. Each fold has a prime c of its own, longer than a chunk: two columns meet in it where their distance,
which nobody knows, is a multiple of it, with a chance of about 1/c. If there are fewer columns than the
product of any two primes, two of them meet in one fold at most. Everything is a pure function of the secret
seed and the tile, so blocks may arrive in any size.

Eight folds make the sketch that certificates are measured on, unless it would be half as wide as the rows:
then these are kept, but for the signs. One more, with signs of its own, makes the one on which weights are
chosen. These tell nothing of the signs of the eight: however they were chosen, squared lengths of all
directions are right on average in the first sketch.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from randeigen.backend import native
from randeigen.backend.random_streams import Stream
from randeigen.geometry.projection import key_of, tile_generator
from randeigen.types import Array

Points = NDArray[np.float32]
Plan = list[tuple[Points, Points, Points]]

CHECK_FOLDS = 8
CHUNK_COLUMNS = 128  # fewer than the numbers of any line
PRIME_SPREAD = 1.4  # primes are drawn from 1/this to this times the width of a line
# Columns of a tile; of thousands of rows in files fewer, since these are copied a tile at a time.
MIN_TILE_COLUMNS, MAX_TILE_COLUMNS = 2**14, 2**16
MAX_TILE_NUMBERS = 2**25
MIN_WIDTH = CHECK_FOLDS * 600  # columns of a sketch: enough primes, all longer than a chunk
# |Sx|² ≥ (1 − δ)·|x|² for any one x, but for a chance below 1e-6, where δ is so many of the eight folds. Two
# columns meet in a given fold with a chance of about 1/c, at most 1.3/c whoever placed them, and cancel there
# with a chance of 1/2; of m equal columns a pair that cancels costs 2/m of a fold. For c = 600 more is lost
# by two columns that cancel in three folds, a chance of 7e-8, or by three that do so four times, 2e-8. Where
# two columns meet once at most: if all pairs of three columns cancel, 7e-7, or five of ten pairs of five,
# 1e-8. What rows that fill many columns may be short of is less, as in a Gaussian projection: 5 standard
# deviations, sqrt(2/k).
LOST_FOLDS, LOST_FOLDS_OF_SINGLE_MEETINGS = 2.0, 1.6
SIGNS_OF_BYTE = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1) * np.float32(2) - np.float32(1)


class Fold(NamedTuple):
    """How a tile is folded into some columns of a sketch."""

    columns: slice  # of the sketch
    line: int  # numbers in a line, a prime
    shares: int  # folds of the sketch


class Tile(NamedTuple):
    """The secret numbers of one tile."""

    start: int  # its first column
    signs: NDArray[np.float32]  # (tile,) of its columns
    order: NDArray[np.intp]  # (chunks of a room,) which chunk is there; the one after the last is of zeros
    offsets: list[int]  # for each fold, how far into its first line the tile begins
    mixing: list[NDArray[np.float32]]  # for each fold, (1, lines) signs over the root of the shares
    plan: native.Folds  # the same for the loops in C


class Room:
    """Memory for one tile of some rows, and for what is folded of them."""

    def __init__(self, rows: int, chunks: int, padded: int, widths: tuple[int, int]) -> None:
        self.given = np.zeros((rows, chunks + 1, CHUNK_COLUMNS), np.float32)
        self.ordered = np.empty((rows, padded, CHUNK_COLUMNS), np.float32)
        self.check, self.choice = (np.empty((rows, width), np.float32) for width in widths)
        # By the first column of a tile, while some rows after others take it: making views takes time.
        self.plans: dict[int, Plan] = {}

    def inside(self, rows: int) -> Points:
        """(rows, tile) what the numbers of a tile are written into."""
        return self.given.reshape(len(self.given), -1)[:rows, :-CHUNK_COLUMNS]


class FoldedSketch:
    """The secret numbers of both sketches; `add` adds the numbers of one tile to their points."""

    def __init__(
        self, seed: int, d: int, check_width: int, choice_width: int, widest: int = MAX_TILE_COLUMNS
    ) -> None:
        self._key = key_of(seed, Stream.FOLDS)
        rng = tile_generator(self._key, 2**62)
        tiles = -(-d // widest)
        self.chunks = -(-d // (tiles * CHUNK_COLUMNS))
        self.tile = self.chunks * CHUNK_COLUMNS  # tiles of equal size
        self.check: list[Fold] = []  # none: certificates are measured on the rows themselves
        if check_width < d:
            self.check = _folds(_drawn_primes(check_width // CHECK_FOLDS, CHECK_FOLDS, rng))
        self.choice = _folds(_drawn_primes(choice_width * 5 // 6, 1, rng))  # the one is above that
        self.check_width = self.check[-1].columns.stop if self.check else d
        self.choice_width = self.choice[-1].columns.stop
        self.folds = self.check + self.choice
        self._offsets = [int(rng.integers(fold.line)) for fold in self.folds]  # of the first column
        longest = max(fold.line for fold in self.folds)
        self._around = -(-longest // CHUNK_COLUMNS)  # chunks of zeros before and after a tile
        once = check_width < d and meet_once(tiles * self.tile, check_width)
        self.distortion = (LOST_FOLDS_OF_SINGLE_MEETINGS if once else LOST_FOLDS) / CHECK_FOLDS

    def tile_at(self, column: int) -> Tile:
        """The secret numbers of the tile that begins at this column."""
        at = column // self.tile
        rng = tile_generator(self._key, at)
        firsts = zip(self._offsets, self.folds, strict=True)
        offsets = [(first + at * self.tile) % fold.line for first, fold in firsts]
        mixing = [
            _signs(rng, (1, -(-(offset + self.tile) // fold.line))) / np.float32(fold.shares**0.5)
            for fold, offset in zip(self.folds, offsets, strict=True)
        ]
        zeros = np.full(self._around, self.chunks)
        order = np.concatenate((zeros, rng.permutation(self.chunks), zeros))
        plan = self._plan_for_loops(order, offsets, mixing)
        return Tile(column, _signs(rng, (self.tile,)), order, offsets, mixing, plan)

    def _plan_for_loops(
        self, order: NDArray[np.intp], offsets: list[int], mixing: list[Points]
    ) -> native.Folds:
        folds = [
            (offset, fold.line, factors.size, fold.columns.start, int(number >= len(self.check)))
            for number, (fold, offset, factors) in enumerate(zip(self.folds, offsets, mixing, strict=True))
        ]
        inside = order[self._around : self._around + self.chunks]  # they need no zeros
        return native.Folds(inside, np.array(folds, np.intp), np.concatenate(mixing, axis=1)[0])

    def room(self, rows: int) -> Room:
        """Memory for one tile of so many rows."""
        padded = self.chunks + 2 * self._around
        return Room(rows, self.chunks, padded, (self.check_width if self.check else 0, self.choice_width))

    def _plan(self, room: Room, tile: Tile) -> Plan:
        """For each fold its signs, what is in order there in its lines, and where their sum is written."""
        if tile.start not in room.plans:
            flat, plan = room.ordered.reshape(len(room.ordered), -1), []
            sums = [room.check] * len(self.check) + [room.choice] * len(self.choice)
            for fold, offset, mixing, out in zip(self.folds, tile.offsets, tile.mixing, sums, strict=True):
                first = self._around * CHUNK_COLUMNS - offset
                lines = flat[:, first : first + mixing.size * fold.line]
                plan.append((mixing, lines.reshape(len(flat), -1, fold.line), out[:, None, fold.columns]))
            room.plans[tile.start] = plan
        return room.plans[tile.start]

    def add(self, room: Room, tile: Tile, check: Points, choice: Points, first: bool = False) -> None:
        """Add one tile of some rows, times its signs, to their points; the first is written over them."""
        if native.take(choice):
            if first:
                choice[...] = 0
                if self.check:
                    check[...] = 0
            native.fold(room.given, tile.plan, check, choice)
            return
        np.take(room.given, tile.order, axis=1, out=room.ordered, mode="clip")
        for mixing, lines, out in self._plan(room, tile):
            np.matmul(mixing, lines, out=out)
        pairs = [(choice, room.choice), *([(check, room.check)] if self.check else [])]
        for points, sums in pairs:
            if first:
                points[...] = sums[: len(points)]
            else:
                np.add(points, sums[: len(points)], out=points)


def meet_once(columns: int, width: int) -> bool:
    """Whether two of so many columns meet in one fold at most of those of a sketch of this width."""
    return columns <= int(width // CHECK_FOLDS / PRIME_SPREAD) ** 2


def width_of_single_meetings(columns: int) -> int:
    """A width at which two of so many columns meet in one fold at most; tiles round the columns up."""
    return CHECK_FOLDS * math.ceil(
        PRIME_SPREAD * (math.isqrt(columns + CHUNK_COLUMNS * columns // MIN_TILE_COLUMNS) + 2)
    )


def columns_of_copied_tiles(n: int) -> int:
    """The most columns of a tile of n rows that are copied a tile at a time."""
    return max(MIN_TILE_COLUMNS, min(MAX_TILE_NUMBERS // n, MAX_TILE_COLUMNS))


def _signs(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    count = math.prod(shape)
    octets = rng.integers(256, size=-(-count // 8), dtype=np.uint8)
    return np.asarray(SIGNS_OF_BYTE.take(octets, axis=0).reshape(-1)[:count].reshape(shape))


def _folds(lengths: list[int]) -> list[Fold]:
    ends = np.cumsum([0, *lengths]).tolist()
    return [Fold(slice(start, stop), stop - start, len(lengths)) for start, stop in pairwise(ends)]


def _drawn_primes(width: int, count: int, rng: np.random.Generator) -> list[int]:
    """Different primes near a width; half of them above it, so that their sum is about as drawn."""
    below = primes_between(int(width / PRIME_SPREAD), width)
    above = primes_between(width + 1, int(width * PRIME_SPREAD) + 2)
    low = rng.choice(below, count // 2, replace=False).tolist()
    high = rng.choice(above, count - len(low), replace=False).tolist()
    return sorted(low + high)


@cache
def primes_between(low: int, high: int) -> list[int]:
    """All primes from `low` to `high`."""
    sieve = np.ones(high + 1, dtype=bool)
    sieve[:2] = False
    for i in range(2, int(high**0.5) + 1):
        if sieve[i]:
            sieve[i * i :: i] = False
    primes: list[int] = (np.flatnonzero(sieve[low:]) + low).tolist()
    return primes


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
