"""Where rows lie in a GPU's memory, as tables of addresses that the kernels read.

A matrix is one leaf, whose rows are a stride apart; vectors and state_dicts have an address for every row of
every leaf. Columns are taken in steps, which are dealt out to the programs in turn, leaf after leaf: one
launch takes all leaves, no program has much more to do than another, and what is read at once lies side by
side. All but the addresses of leaves is kept: the next rows of the same shape need no transfer.
"""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.device_blocks import Leaves

VECTOR_BYTES = 16  # bytes that a thread loads at once where addresses allow
KEPT_SHAPES = 256  # shapes of blocks whose tables and launches are kept; each takes a few kB


class Addresses(NamedTuple):
    """Where each row of each leaf begins."""

    base: int  # added to every address
    rows: Any  # (leaves · n,) on the device; 0 where there is nothing
    align: int  # bytes that divide every address: as many as a thread loads at once, or those of one number


class Steps(NamedTuple):
    """The columns of each leaf in steps; tensors are on the device."""

    lengths: Any  # (leaves,) columns
    before: Any  # (leaves,) steps before a leaf
    leaves: int
    total: int  # of all leaves; the last of a leaf may be shorter


def addresses_of(block: Any) -> Addresses:
    """Of a matrix from its own table of multiples of the stride; of leaves transferred once."""
    if isinstance(block, Leaves):
        if block.on_device is None:
            rows = on_device(block.device, block.addresses)[0]
            block.on_device = Addresses(0, rows, alignment(block, block.addresses))
        kept: Addresses = block.on_device
        return kept
    size = block.dtype.itemsize
    base, stride = block.data_ptr(), block.stride(0) * size
    aligned = not (base % VECTOR_BYTES or stride % VECTOR_BYTES)
    return Addresses(
        base, _multiples(block.device, block.shape[0], stride), VECTOR_BYTES if aligned else size
    )


@lru_cache(KEPT_SHAPES)
def _multiples(device: Any, n: int, stride: int) -> Any:
    return on_device(device, np.arange(n, dtype=np.int64) * stride, wait=True)[0]


def lengths_of(block: Any) -> tuple[int, ...]:
    """The columns of each leaf of a block."""
    return tuple(block.lengths) if isinstance(block, Leaves) else (block.shape[1],)


@lru_cache(KEPT_SHAPES)
def steps_of(device: Any, lengths: tuple[int, ...], step: int) -> Steps:
    """Of leaves with so many columns, taken in steps of so many."""
    ends = list(accumulate(-(-length // step) for length in lengths))
    columns, before = on_device(device, np.array(lengths), np.array([0, *ends[:-1]]), wait=True)
    return Steps(columns, before, len(lengths), ends[-1])


def addresses(block: Any) -> NDArray[np.int64]:
    """(leaves, n) where each row of a block begins."""
    if isinstance(block, Leaves):
        return block.addresses
    stride = block.stride(0) * block.element_size()
    starts: NDArray[np.int64] = block.data_ptr() + np.arange(block.shape[0], dtype=np.int64)[None] * stride
    return starts


def alignment(block: Any, starts: NDArray[np.int64]) -> int:
    """Bytes that divide every address: as many as a thread loads at once, or those of one number."""
    return block.dtype.itemsize if (starts % VECTOR_BYTES).any() else VECTOR_BYTES


def on_device(device: Any, *tables: NDArray[Any], wait: bool = False) -> list[Any]:
    """Tables of 64-bit numbers, or of pairs of 32, on a GPU: by one transfer, awaited only if told to.

    Each begins at a multiple of 16 bytes: kernels are compiled for that, and else would be once more.
    """
    import torch

    numbers = [table.reshape(-1).view(np.int64) for table in tables]
    sizes = [each.size + each.size % 2 for each in numbers]
    whole, at = np.zeros(sum(sizes), np.int64), 0
    for each, size in zip(numbers, sizes, strict=True):
        whole[at : at + each.size] = each
        at += size
    there = torch.from_numpy(whole).to(device, non_blocking=not wait)
    parts = there.split(sizes) if len(sizes) > 1 else [there]
    floats = {np.dtype(np.float64): torch.float64, np.dtype(np.float32): torch.float32}
    return [
        part.view(floats[t.dtype]) if t.dtype in floats else part
        for part, t in zip(parts, tables, strict=True)
    ]


@cache
def processors(device: Any) -> int:
    """Multiprocessors of a GPU; on a CPU, where Triton's interpreter runs, a few."""
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 2


@cache
def sorts_pairs(device: Any) -> bool:
    """Whether a GPU has an instruction for the minima of two pairs of half precision."""
    import torch

    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
