"""Where rows lie in a GPU's memory, as tables of addresses that the kernels read.

A matrix is one leaf, whose rows are a stride apart; vectors and state_dicts have an address for every row of
every leaf. Columns are dealt out to programs as items, (leaf, first column, one past the last), so that one launch
takes all leaves and every program has as much to do as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

VECTOR_BYTES = 16  # bytes that a thread loads at once where addresses allow
LEAF_COLUMNS = 3  # of an item: leaf, start, stop


class Leaves:
    """n rows on one GPU as they lie: a block of columns that is read through addresses, never copied whole.

    `leaves[k][i]` is leaf k of row i, flat and contiguous, or None where a row cannot be read; all are of one dtype.
    """

    def __init__(self, leaves: Sequence[Sequence[Any]]) -> None:
        self.leaves = leaves
        first = next(leaf for leaf in leaves[0] if leaf is not None)
        self.dtype, self.device, self.is_cuda = first.dtype, first.device, first.is_cuda
        self.lengths = [next(leaf for leaf in rows if leaf is not None).numel() for rows in leaves]
        self.shape = len(leaves[0]), sum(self.lengths)
        self.missing = [i for i, leaf in enumerate(leaves[0]) if leaf is None]

    def addresses(self) -> NDArray[np.int64]:
        """(leaves, n) addresses, 0 where there is nothing."""
        return np.array(
            [[0 if leaf is None else leaf.data_ptr() for leaf in rows] for rows in self.leaves], np.int64
        )


def addresses(block: Any) -> NDArray[np.int64]:
    """(leaves, n) addresses of the rows of a block."""
    if isinstance(block, Leaves):
        return block.addresses()
    n, stride = block.shape[0], block.stride(0) * block.element_size()
    return block.data_ptr() + np.arange(n, dtype=np.int64)[None] * stride


def lengths(block: Any) -> list[int]:
    """The columns of each leaf."""
    return block.lengths if isinstance(block, Leaves) else [block.shape[1]]


def aligned(found: NDArray[np.int64]) -> bool:
    """Whether every row begins where a thread may load VECTOR_BYTES at once."""
    return not (found % VECTOR_BYTES).any()


def dealt(leaf_lengths: Sequence[int], readers: int, step: int, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Items, and where each reader's begin among them: all columns in order, about as many steps for each reader.

    No item has more than `most` steps. What is left over at the end of a leaf is an item of its own, so that all
    others consist of whole steps and need no mask.
    """
    steps = np.array([-(-length // step) for length in leaf_lengths], np.int64)
    ends = np.cumsum(steps)
    total = int(ends[-1])
    readers = max(1, min(readers, total))
    bounds = np.arange(readers + 1, dtype=np.int64) * total // readers
    whole = ends - steps + np.array(leaf_lengths, np.int64) // step  # where the last, partial step begins
    longest = bounds[:-1, None] + np.arange(0, int((bounds[1:] - bounds[:-1]).max()), most, dtype=np.int64)
    cuts = np.unique(np.concatenate((bounds, ends, whole, np.minimum(longest, bounds[1:, None]).ravel())))
    starts, stops = cuts[:-1], cuts[1:]
    leaf = np.searchsorted(ends, starts, side="right")
    before = (ends - steps)[leaf]
    limit = np.array(leaf_lengths, np.int64)[leaf]
    items = np.stack((leaf, (starts - before) * step, np.minimum((stops - before) * step, limit)), axis=1)
    return items, np.searchsorted(starts, bounds)
