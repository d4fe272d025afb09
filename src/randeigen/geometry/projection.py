"""Random projections as pure functions of (seed, column): never stored, the same for any block size.

Both accumulate n points in k columns, `points += block @ P[columns]`, one tile of columns at a time. A
tile's numbers come from a counter-based generator keyed by the secret seed and the tile's index, so blocks
may arrive in any size, any order and on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import as_host, like
from randeigen.backend.random_streams import Stream
from randeigen.types import Array, Block

EPS_JL = 0.1  # the paper's distortion (its section on randomized dimensionality reduction)
MIN_EPS_JL = 0.01  # the projection has ln(d)/eps_jl² columns: 125,000 here, for d = 2^18
HASHES = 4  # entries ±1 per column of the sparse sketch: with one, two heavy columns could cancel
CHECK_HASHES = 8  # as many in the sketch behind the certificate: with more, a few columns spoil fewer of them
FAILURE_PROBABILITY = 1e-7  # that a sketch shortens one fixed vector by more than `distortion` says
GAUSSIAN_TILE = 256  # columns that one generator fills
NATIVE_NUMBERS = 2**24  # random numbers that a GPU draws at once: 64 MB


def jl_width(d: int, eps_jl: float = EPS_JL) -> int:
    """Columns the paper's projection keeps, ln d / eps_jl².

    >>> jl_width(2**18)
    1248
    """
    return max(1, math.ceil(math.log(max(d, 2)) / eps_jl**2))


def distortion(k: int, hashes: int, chance: float = FAILURE_PROBABILITY) -> float:
    """δ such that a sparse sketch of k columns keeps |Sx|² ≥ (1 − δ)·|x|² for any one x, but for a chance.

    |Sx|² is the mean, over independent count sketches of k/hashes columns, of numbers that are at least 0,
    have mean |x|² and variance at most v·|x|⁴, v = 2·hashes/k, whatever x is. For such sums Bennett's
    inequality gives P(|Sx|² ≤ (1 − δ)|x|²) ≤ exp(−hashes·v·((1+y)·ln(1+y) − y)) with y = δ/v. 1 if no δ will
    do. It holds for an x chosen without knowledge of the sketch.

    >>> round(distortion(8192, 8), 2)
    0.45
    """
    v = 2 * hashes / k

    def unlikely(delta: float) -> bool:
        y = delta / v
        return hashes * v * ((1 + y) * math.log1p(y) - y) >= -math.log(chance)

    low, high = 0.0, 1.0
    if not unlikely(high):
        return 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if unlikely(middle) else (middle, high)
    return high


class GaussianProjection:
    """The paper's: every entry N(0, 1/k). Costs n·k·d.

    `native`: of blocks on a GPU the numbers come from the GPU's own generator. That takes milliseconds where
    drawing them on the host takes seconds, but the projection is then another one on every kind of device.
    """

    def __init__(self, seed: int, k: int, native: bool = False) -> None:
        self.k = k
        self._native = native
        self._key = key_of(seed, Stream.GAUSSIAN_PROJECTION)
        self._last: tuple[int, NDArray[np.float32]] | None = None  # narrow blocks need one tile many times

    def add(self, points: Array, columns: slice, block: Block) -> None:
        """points += block @ P[columns]."""
        if self._native and not isinstance(block, np.ndarray):
            points += as_host(self._product_on_device(columns, block)) / math.sqrt(self.k)
            return
        for tile, inside, at in _tiles(columns, GAUSSIAN_TILE):
            piece = block[:, at]
            points += as_host(piece @ like(self._tile(tile)[inside], piece)) / math.sqrt(self.k)

    def _product_on_device(self, columns: slice, block: Any) -> Any:
        import torch  # the block is a tensor, so it is loaded

        total = block.new_zeros((block.shape[0], self.k), dtype=torch.float64)
        generator, width = torch.Generator(device=block.device), max(NATIVE_NUMBERS // self.k, GAUSSIAN_TILE)
        for tile, inside, at in _tiles(columns, width):
            generator.manual_seed(int(tile_generator(self._key, tile).integers(2**62)))
            normals = torch.randn((width, self.k), generator=generator, device=block.device)
            total += block[:, at] @ normals[inside].to(block.dtype)
        return total

    def _tile(self, tile: int) -> NDArray[np.float32]:
        if self._last is None or self._last[0] != tile:
            rng = tile_generator(self._key, tile)
            self._last = tile, rng.standard_normal((GAUSSIAN_TILE, self.k), dtype=np.float32)
        return self._last[1]


class SparseProjection:
    """A few ±1 per column: some count sketches side by side. Costs n·d·hashes whatever k is.

    Each sketch is k/hashes wide and takes tiles of that many columns: it flips their signs at random,
    rotates the tile by a random amount and adds it up. A column meets itself never, another of its tile
    never, and one of another tile with the chance 1/width that any hash must allow; the variance of an
    inner product depends on nothing else.
    """

    def __init__(
        self, seed: int, k: int, hashes: int = HASHES, stream: Stream = Stream.SPARSE_PROJECTION
    ) -> None:
        self.k = k + -k % hashes
        self.hashes = hashes
        self._width = self.k // hashes
        self._key = key_of(seed, stream)

    def add(self, points: Array, columns: slice, block: Block) -> None:
        """points += block @ P[columns]."""
        width = self._width
        for tile, inside, at in _tiles(columns, width):
            rng = tile_generator(self._key, tile)
            piece = block[:, at]
            for first in range(0, self.k, width):
                turn = int(rng.integers(width))
                bits = np.unpackbits(rng.integers(256, size=(width + 7) // 8, dtype=np.uint8))[inside]
                flips = (bits.astype(np.float32) * 2 - 1) / math.sqrt(self.hashes)
                flipped = as_host(piece * like(flips, piece))
                start = (inside.start + turn) % width
                fit = min(width - start, flipped.shape[1])  # what does not fit wraps round to the front
                points[:, first + start : first + start + fit] += flipped[:, :fit]
                points[:, first : first + flipped.shape[1] - fit] += flipped[:, fit:]


def key_of(seed: int, stream: Stream) -> NDArray[np.uint64]:
    """The key of a projection's generators."""
    return np.asarray(np.random.SeedSequence([seed, stream]).generate_state(2, np.uint64), np.uint64)


def tile_generator(key: NDArray[np.uint64], tile: int) -> np.random.Generator:
    """The generator of one tile: it needs no other to have been used before."""
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, tile, 0], np.uint64)))


def _tiles(columns: slice, size: int) -> Iterator[tuple[int, slice, slice]]:
    """(tile index, columns inside the tile, columns inside the block) for each tile the block touches."""
    at = columns.start
    while at < columns.stop:
        tile, first = divmod(at, size)
        stop = min(columns.stop, (tile + 1) * size)
        yield tile, slice(first, first + stop - at), slice(at - columns.start, stop - columns.start)
        at = stop
