"""Every byte budget, and how columns are cut into blocks, parts and pieces."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from randeigen.types import Block

COPY_BYTES = 2**23  # a copy of a block is made this much at a time
DEVICE_COPY_PIECES = 4  # and this many times as much on a GPU, where every copy costs a launch
PART_NUMBERS, MIN_PART_COLUMNS = (
    2**19,
    2**12,
)  # numbers and columns that a thread takes at once: a table of n×n comes of each
MIN_PARALLEL_NUMBERS = 2**17  # numbers that are done before a second thread has begun


def parts(block: Block) -> list[Block]:
    """The block cut for the cores, the same on every machine: nothing may depend on how many there are."""
    n, width = block.shape
    if n * width < MIN_PARALLEL_NUMBERS:
        return [block]
    step = min(max(PART_NUMBERS // n, MIN_PART_COLUMNS), -(-width // 2))
    return [block[:, i : i + step] for i in range(0, width, step)]


def pieces(block: Block) -> list[Block]:
    """The block cut into strips small enough to copy."""
    most = COPY_BYTES if isinstance(block, np.ndarray) else DEVICE_COPY_PIECES * COPY_BYTES
    columns = max(1, most // (4 * block.shape[0]))
    return [block[:, i : i + columns] for i in range(0, block.shape[1], columns)]


MAX_BLOCK_COLUMNS = 4_200_000  # columns; a multiple of every chunk in use
MAX_COPY_BYTES = 2**24  # bytes

BLOCK_BYTES = 8 * 2**20


def strips(d: int, n: int, itemsize: int, budget: int, multiple: int = 1) -> Iterator[slice]:
    """Slices over d columns, each as wide as n rows fit the budget."""
    step = strip_width(d, n, itemsize, budget, multiple)
    return (slice(start, min(start + step, d)) for start in range(0, d, step))


def strip_width(d: int, n: int, itemsize: int, budget: int, multiple: int = 1) -> int:
    """Columns in a strip: within the budget, but a multiple of `multiple` and, if possible, of 1024."""
    most = max(multiple, budget // (n * itemsize))
    step = math.lcm(multiple, 1024) if most >= math.lcm(multiple, 1024) else multiple
    return min(d, most - most % step)


# A view costs no memory, and on a device every block costs launches: let it be wide, if 32 bits can count it.
DEVICE_VIEW_COLUMNS = 2**30
# Here every block costs a meeting of threads.
HOST_VIEW_BLOCKS = 8
# Copies on a device do cost memory; four blocks' worth still stays far below 64 MB.
DEVICE_COPY_BLOCKS = 4

MIXED_NUMBERS = 2**22  # numbers: mixed rows are made this many at a time
