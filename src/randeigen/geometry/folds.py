"""A sketch made of small matrix products, for hundreds of rows and more: two of them in one reading.

Columns come in tiles and get secret signs. A tile is then folded several times: laid out in lines of c
numbers, from a secret place on, whose combinations with secret signs are added up. Each fold has a prime c of
its own, so two columns of a tile meet in one fold at most: where their distance is a multiple of its prime.
Two columns of different tiles meet in a fold with the chance 1/c. Everything is a pure function of the secret
seed and the tile, so blocks may arrive in any size.

Four folds make the sketch that certificates are measured on, unless it would be half as wide as the rows:
then these are kept, but for the signs. One more, with signs of its own, makes the one
on which weights are chosen. These tell nothing of the signs of the four: however they were chosen, squared
lengths of all directions are right on average in the first sketch.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.random_streams import Stream
from randeigen.geometry.projection import key_of, tile_generator
from randeigen.types import Array

Points = NDArray[np.float32]

CHECK_FOLDS, CHECK_LINES = 4, 4
CHOICE_LINES = 4
PRIME_SPREAD = 1.4  # primes are drawn from 1/this to this times the width of a line
# Columns of a tile: fewer than the product of any two primes, so two of them meet in one fold at most. Of
# thousands of rows fewer, since rows in files are copied a tile at a time.
MIN_TILE_COLUMNS, MAX_TILE_COLUMNS = 2**14, 2**16
MAX_TILE_NUMBERS = 2**25
MIN_WIDTH = 16 * 400  # columns of a sketch: enough primes, and all above the root of MAX_TILE_COLUMNS
# |Sx|² ≥ (1 − this)·|x|² for any one x, but for a chance below 1e-6. Of four folds one may be lost: an
# adversary who knows all but the seed can place columns so that they meet if a certain prime was drawn. What
# else may be missing is a Gaussian projection's: 5 standard deviations, sqrt(2/k), of what three folds hold.
# Three columns, two pairs of which meet in different folds and cancel in all lines, lose a third too: 1 in
# 10^5 if their distances are primes that may be drawn. Three such meetings lose more: fewer than 1 in 10^6.
DISTORTION = 1 / 3


class Fold(NamedTuple):
    """How a tile is folded into some columns of a sketch."""

    columns: slice  # of the sketch
    line: int  # numbers in a line, a prime
    lines: int  # combinations of the lines that are kept
    shares: int  # how many such combinations the sketch has in all its folds


class Tile(NamedTuple):
    """The secret numbers of one tile."""

    signs: NDArray[np.float32]  # (tile,) of its columns
    offsets: list[int]  # for each fold, how far into its first line the tile begins
    mixing: list[NDArray[np.float32]]  # for each fold, (kept, lines) signs over the root of the shares


class FoldedSketch:
    """The secret numbers of both sketches; `add` adds the numbers of one tile to their points."""

    def __init__(self, seed: int, n: int, d: int, check_width: int, choice_width: int) -> None:
        self._key = key_of(seed, Stream.FOLDS)
        rng = tile_generator(self._key, 2**62)
        tiles = -(-d // max(MIN_TILE_COLUMNS, min(MAX_TILE_NUMBERS // n, MAX_TILE_COLUMNS)))
        self.tile = -(-d // tiles)  # tiles of equal size
        self.check: list[Fold] = []  # none: certificates are measured on the rows themselves
        if check_width < d:
            lengths = _drawn_primes(check_width // (CHECK_FOLDS * CHECK_LINES), CHECK_FOLDS, rng)
            self.check = _folds(lengths, CHECK_LINES)
        self.choice = _folds(_drawn_primes(choice_width // CHOICE_LINES, 1, rng), CHOICE_LINES)
        self.check_width = self.check[-1].columns.stop if self.check else d
        self.choice_width = self.choice[-1].columns.stop
        self.margin = max(fold.line for fold in self.check + self.choice)  # zeros before and after a tile

    def tile_at(self, column: int) -> Tile:
        """The secret numbers of the tile that begins at this column."""
        rng = tile_generator(self._key, column // self.tile)
        folds = self.check + self.choice
        offsets = [int(rng.integers(fold.line)) for fold in folds]
        counts = [self._lines(fold, offset) for fold, offset in zip(folds, offsets, strict=True)]
        mixing = [
            _signs(rng, (fold.lines, count)) / np.float32(fold.shares**0.5)
            for fold, count in zip(folds, counts, strict=True)
        ]
        return Tile(_signs(rng, (self.tile,)), offsets, mixing)

    def _lines(self, fold: Fold, offset: int) -> int:
        return -(-(offset + self.tile) // fold.line)

    def room(self, rows: int) -> Points:
        """Memory for one tile of some rows, with zeros on both sides."""
        return np.zeros((rows, self.tile + 2 * self.margin), np.float32)

    def inside(self, room: Points) -> Points:
        """The part of it that the tile's own numbers belong into."""
        return room[:, self.margin : self.margin + self.tile]

    def spare(self, rows: int) -> Points:
        """Memory for what is folded."""
        return np.empty(rows * self.margin * max(CHECK_LINES, CHOICE_LINES), np.float32)

    def add(
        self, room: Points, spare: Points, tile: Tile, check: Points, choice: Points, first: bool = False
    ) -> NDArray[np.bool_]:
        """Add one tile of some rows, times its signs, to their points; whether each row is finite.

        The first tile is written over whatever the points are.
        """
        n = len(room)
        folds = [(fold, check) for fold in self.check] + [(fold, choice) for fold in self.choice]
        for (fold, points), offset, mixing in zip(folds, tile.offsets, tile.mixing, strict=True):
            begin = self.margin - offset
            lines = room[:, begin : begin + mixing.shape[1] * fold.line].reshape(n, -1, fold.line)
            there = points[:, fold.columns].reshape(n, fold.lines, fold.line)
            if first:
                mixed = np.matmul(mixing, lines, out=there)
            else:
                mixed = spare[: there.size].reshape(there.shape)
                np.matmul(mixing, lines, out=mixed)
                np.add(there, mixed, out=there)
        # A number that is not finite is in every line of every fold.
        return np.asarray(np.isfinite(mixed[:, 0].sum(axis=1)))


def _signs(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    count = int(np.prod(shape))
    bits = np.unpackbits(rng.integers(256, size=-(-count // 8), dtype=np.uint8))[:count]
    return (bits.astype(np.float32) * 2 - 1).reshape(shape)


def _folds(lengths: list[int], lines: int) -> list[Fold]:
    ends = np.cumsum([0, *(lines * length for length in lengths)]).tolist()
    return [
        Fold(slice(start, stop), length, lines, lines * len(lengths))
        for start, stop, length in zip(ends[:-1], ends[1:], lengths, strict=True)
    ]


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
