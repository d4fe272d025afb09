"""Every byte budget, and how columns are cut.

- A block is what `rows.blocks()` yields: all n rows, some columns, a view where that costs nothing.
- A part is what one thread takes of a block. Parts do not depend on the number of threads, so no bit does.
- A piece is what is copied, or cast to float64, at once.

Random projections have tiles besides, the columns that share one generator: they belong to the numbers,
not to memory, and are cut in `geometry/projection`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from randeigen.types import Block

# Blocks.
BLOCK_BYTES = 8 * 2**20  # bytes of a block that is copied out of the caller's rows
HOST_VIEW_BLOCKS = 8  # a view may be as many blocks wide: it costs no memory, and each a meeting of threads
DEVICE_VIEW_COLUMNS = 2**30  # columns of a view on a GPU, where each costs launches; 32 bits can count them
DEVICE_COPY_BLOCKS = 4  # copies on a GPU may be as many blocks wide; that stays far below 64 MB
MAX_BLOCK_COLUMNS = 4_200_000  # columns that are merged at once; a multiple of every block multiple in use
MAX_COPY_BYTES = 2**24  # bytes of a block from which unusable rows are left out by copying the others

# Parts.
PART_NUMBERS = 2**19  # numbers that a thread takes at once
MIN_PART_COLUMNS = 2**12  # columns that it takes at least: an n×n Gram matrix comes of each part
MIN_PARALLEL_NUMBERS = 2**17  # fewer numbers are done before a second thread has begun

# Pieces.
PIECE_BYTES = 2**23  # bytes copied at a time
DEVICE_PIECES = 4  # on a GPU, where every copy costs a launch, this many times as many
COMPARED_NUMBERS = 2**18  # numbers of two vectors compared at a time
FLOAT64_PIECE_NUMBERS = 2**17  # numbers cast to float64 at a time: they stay in a core's own cache
MAX_FLOAT64_POINT_NUMBERS = 2**22  # numbers of a sketch that may as well be kept in float64
GRAM_LINES_AT_ONCE = 512  # lines of a Gram matrix of thousands of rows that are added to at a time
MIXED_NUMBERS = 2**22  # numbers of pre-aggregated rows that are made at a time


def parts(block: Block) -> list[Block]:
    """The block cut for the cores, the same on every machine: nothing may depend on how many there are."""
    n, width = block.shape
    if n * width < MIN_PARALLEL_NUMBERS:
        return [block]
    step = min(max(PART_NUMBERS // n, MIN_PART_COLUMNS), -(-width // 2))
    return [block[:, i : i + step] for i in range(0, width, step)]


def pieces(block: Block) -> list[Block]:
    """The block cut small enough to copy."""
    most = PIECE_BYTES if isinstance(block, np.ndarray) else DEVICE_PIECES * PIECE_BYTES
    columns = max(1, most // (4 * block.shape[0]))
    return [block[:, i : i + columns] for i in range(0, block.shape[1], columns)]


def block_columns(d: int, n: int, itemsize: int, budget: int, multiple: int = 1) -> Iterator[slice]:
    """The columns of each block, as many as n rows fit the budget of bytes."""
    step = block_width(d, n, itemsize, budget, multiple)
    return (slice(start, min(start + step, d)) for start in range(0, d, step))


def block_width(d: int, n: int, itemsize: int, budget: int, multiple: int = 1) -> int:
    """Columns in a block: within the budget, but a multiple of `multiple` and, if possible, of 1024."""
    most = max(multiple, budget // (n * itemsize))
    step = math.lcm(multiple, 1024) if most >= math.lcm(multiple, 1024) else multiple
    return min(d, most - most % step)
