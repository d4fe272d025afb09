"""Where rows lie in a GPU's memory, as tables of addresses that the kernels read.

A matrix is one leaf, whose rows are a stride apart; vectors and state_dicts have an address for every row of
every leaf. Columns are taken in steps, which are dealt out to the programs in turn, leaf after leaf: one
launch takes all leaves, no program has much more to do than another, and what is read at once lies side by
side. Tables of matrices are kept: the next one of the same shape needs no transfer.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.device_blocks import Leaves

VECTOR_BYTES = 16  # bytes that a thread loads at once where addresses allow
KEPT_TABLES = 256  # shapes of matrices whose tables are kept; each takes a few kB


class Layout(NamedTuple):
    """Where the numbers of a block are; tensors are on the device."""

    base: int  # added to every address
    addresses: Any  # (leaves · n,) where each row of each leaf begins; 0 where there is nothing
    lengths: Any  # (leaves,) columns
    before: Any  # (leaves,) steps before a leaf
    leaves: int
    steps: int  # in all leaves; the last of a leaf may be shorter
    align: int  # bytes that divide every address: as many as a thread loads at once, or those of one number


def layout_of(block: Any, step: int) -> Layout:
    """Of a block whose columns are taken in steps of so many."""
    if isinstance(block, Leaves):
        lengths, before, steps = in_steps(block, step)
        rows, columns, earlier = on_device(block.device, block.addresses, lengths, before)
        align = alignment(block, block.addresses)
        return Layout(0, rows, columns, earlier, len(lengths), steps, align)
    base, stride = block.data_ptr(), block.stride(0) * block.dtype.itemsize
    rows, columns, earlier = _of_matrix(block.device, *block.shape, stride)
    aligned = base % VECTOR_BYTES == 0 and stride % VECTOR_BYTES == 0
    align = VECTOR_BYTES if aligned else block.dtype.itemsize
    return Layout(base, rows, columns, earlier, 1, -(-block.shape[1] // step), align)


@lru_cache(KEPT_TABLES)
def _of_matrix(device: Any, n: int, d: int, stride: int) -> list[Any]:
    return on_device(device, np.arange(n, dtype=np.int64) * stride, np.array([d]), np.array([0]), wait=True)


def in_steps(block: Any, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """The columns of each leaf, the steps before it, and all steps."""
    lengths = np.array(block.lengths if isinstance(block, Leaves) else [block.shape[1]], np.int64)
    ends = np.cumsum(-(-lengths // step))
    return lengths, np.append(0, ends[:-1]), int(ends[-1])


def addresses(block: Any) -> NDArray[np.int64]:
    """(leaves, n) where each row of a block begins."""
    if isinstance(block, Leaves):
        return block.addresses
    stride = block.stride(0) * block.element_size()
    starts: NDArray[np.int64] = block.data_ptr() + np.arange(block.shape[0], dtype=np.int64)[None] * stride
    return starts


def alignment(block: Any, *starts: NDArray[np.int64]) -> int:
    """Bytes that divide every address: as many as a thread loads at once, or those of one number."""
    return VECTOR_BYTES if not any((some % VECTOR_BYTES).any() for some in starts) else block.dtype.itemsize


def on_device(device: Any, *tables: NDArray[Any], wait: bool = False) -> list[Any]:
    """Tables of 64-bit numbers on a GPU, by one transfer that nobody waits for, if not told to.

    Each begins at a multiple of 16 bytes: kernels are compiled for that, and else would be once more.
    """
    import torch

    sizes = [table.size + table.size % 2 for table in tables]
    whole, at = np.zeros(sum(sizes), np.int64), 0
    for table, size in zip(tables, sizes, strict=True):
        whole[at : at + table.size] = table.view(np.int64).reshape(-1)
        at += size
    parts = torch.from_numpy(whole).to(device, non_blocking=not wait).split(sizes)
    return [
        part.view(torch.float64) if t.dtype == np.float64 else part
        for part, t in zip(parts, tables, strict=True)
    ]


@cache
def processors(device: Any) -> int:
    """Multiprocessors of a GPU; on a CPU, where Triton's interpreter runs, a few."""
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 2
