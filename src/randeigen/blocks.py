"""Small things done to a block of columns, alike for numpy arrays and torch tensors; and a quick median."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.types import Array, Block

PIECE_BYTES = 2**23  # a copy of a block is made this much at a time
DEVICE_PIECES = 4  # and this many times as much on a GPU, where every copy costs a launch
PART, LONG = 2**19, 2**12  # numbers and columns that a thread takes at once: a table of n×n comes of each
UNIT = {4: 2.0**-24, 8: 2.0**-53}  # the rounding of one operation, by item size
FEW = 2**17  # numbers that are done before a second thread has begun


def at_hand(block: Block) -> Block:
    """What lies in main memory as a numpy array: one library's threads, not two that wait for each other."""
    return block if isinstance(block, np.ndarray) or block.device.type != "cpu" else block.numpy()


def parts(block: Block) -> list[Block]:
    """The block cut for the cores, the same on every machine: nothing may depend on how many there are."""
    n, width = block.shape
    if n * width < FEW:
        return [block]
    step = min(max(PART // n, LONG), -(-width // 2))
    return [block[:, i : i + step] for i in range(0, width, step)]


def pieces(block: Block) -> list[Block]:
    """The block cut into strips small enough to copy."""
    most = PIECE_BYTES if isinstance(block, np.ndarray) else DEVICE_PIECES * PIECE_BYTES
    columns = max(1, most // (4 * block.shape[0]))
    return [block[:, i : i + columns] for i in range(0, block.shape[1], columns)]


def middle(a: Any, b: Any, c: Any) -> Any:
    """The middle of three in each column: what no single one of them can set, not even by NaN."""
    if isinstance(a, np.ndarray):
        low, high = np.fmin(a, b), np.fmax(a, b)
        return np.fmax(low, np.fmin(high, c))
    low, high = a.fmin(b), a.fmax(b)
    return low.fmax(high.fmin(c))


def median_of_columns(exact: Any) -> Any:
    """(b,) what fewer than half of the rows cannot set."""
    if isinstance(exact, np.ndarray):
        return np.median(exact, axis=0)
    return exact.median(dim=0).values


def doubled(block: Block) -> Any:
    """A float64 copy where the block is."""
    return block.astype(np.float64) if isinstance(block, np.ndarray) else block.double().clone()


def reach(block: Any) -> Array:
    """(n,) the largest magnitude of each row; NaN if it holds one."""
    if isinstance(block, np.ndarray):
        return host(np.maximum(block.max(1), -block.min(1)))
    return host(block.amax(1).maximum(-block.amin(1)))


def largest(vector: Any) -> int:
    """The exponent of the largest magnitude, 0 if there is none: 2^-that times the vector is at most 1."""
    size = float(reach(vector[None])[0])
    return math.frexp(size)[1] if math.isfinite(size) else 0


def scaled(block: Any, exponent: int | NDArray[np.int64]) -> Any:
    """The same times 2^exponent, one for all or one for each row; in two steps: 2^exponent may not fit."""
    if isinstance(exponent, int) and abs(exponent) < 100:
        return block if exponent == 0 else block * 2.0**exponent
    for step in (exponent // 2, exponent - exponent // 2):
        factor: Any = 2.0**step if isinstance(step, int) else like(np.ldexp(1.0, step), block)[:, None]
        block = block * factor
    return block


def where_finite(values: Any, instead: Any) -> Any:
    """`instead` where the values are finite, the values themselves where they are not."""
    if isinstance(values, np.ndarray):
        return np.where(np.isfinite(values), instead, values)
    return instead.where(values.isfinite(), values)


def host(values: Any) -> Array:
    """As float64 numbers in main memory."""
    if not isinstance(values, (np.ndarray, np.generic)):
        values = values.double().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def as_host(values: Any) -> Any:
    """In main memory, in the dtype they have."""
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()


def like(values: Array, block: Block) -> Any:
    """The same numbers in the block's library, dtype and device."""
    return values.astype(block.dtype) if isinstance(block, np.ndarray) else block.new_tensor(values)


def bordered(inner: Array, to_origin: Any, origin: Any) -> Array:
    """The (n+1, n+1) table whose last line is the origin's."""
    n = inner.shape[0]
    table = np.empty((n + 1, n + 1))
    table[:n, :n] = inner
    table[:n, n] = table[n, :n] = to_origin
    table[n, n] = origin
    return table


def median(values: Array) -> float:
    """numpy's takes longer to look at its arguments than to sort a hundred numbers."""
    ordered = np.sort(values)
    return float(ordered[(values.size - 1) // 2] + ordered[values.size // 2]) / 2
