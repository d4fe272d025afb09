"""Small things done to a block of columns, alike for numpy arrays and torch tensors; and a quick median."""

from __future__ import annotations

from typing import Any

import numpy as np

from randeigen.types import Array, Block

PIECE_BYTES = 2**23  # a copy of a block is made this much at a time
PART, LONG = 2**19, 2**12  # numbers and columns that a thread takes at once: a table of n×n comes of each
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
    columns = max(1, PIECE_BYTES // (4 * block.shape[0]))
    return [block[:, i : i + columns] for i in range(0, block.shape[1], columns)]


def middle(a: Any, b: Any, c: Any) -> Any:
    """The middle of three in each column: what no single one of them can set."""
    if isinstance(a, np.ndarray):
        low, high = np.minimum(a, b), np.maximum(a, b)
        return np.maximum(low, np.minimum(high, c))
    low, high = a.minimum(b), a.maximum(b)
    return low.maximum(high.minimum(c))


def median_of_columns(exact: Any) -> Any:
    """(b,) what fewer than half of the rows cannot set."""
    if isinstance(exact, np.ndarray):
        return np.median(exact, axis=0)
    return exact.median(dim=0).values


def doubled(block: Block) -> Any:
    """A float64 copy where the block is."""
    return block.astype(np.float64) if isinstance(block, np.ndarray) else block.double().clone()


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
