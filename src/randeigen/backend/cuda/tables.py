"""Where rows lie in a GPU's memory, as tables of addresses that the kernels read.

A matrix is one leaf, whose rows are a stride apart; vectors and state_dicts have an address for every row of
every leaf. Columns are taken in steps, which are dealt out to the programs in turn, leaf after leaf: one
launch takes all leaves, no program has much more to do than another, and what is read at once lies side by
side.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.device_blocks import Leaves

VECTOR_BYTES = 16  # bytes that a thread loads at once where addresses allow


def addresses(block: Any) -> NDArray[np.int64]:
    """(leaves, n) where each row of a block begins."""
    if isinstance(block, Leaves):
        return block.addresses
    stride = block.stride(0) * block.element_size()
    found: NDArray[np.int64] = block.data_ptr() + np.arange(block.shape[0], dtype=np.int64)[None] * stride
    return found


def alignment(block: Any, *places: NDArray[np.int64]) -> int:
    """Bytes that divide every address: as many as a thread loads at once, or those of one number."""
    return VECTOR_BYTES if not any((found % VECTOR_BYTES).any() for found in places) else block.dtype.itemsize


def in_steps(block: Any, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """The columns of each leaf, the steps before it, and all steps. The last of a leaf may be shorter."""
    lengths = np.array(block.lengths if isinstance(block, Leaves) else [block.shape[1]], np.int64)
    ends = np.cumsum(-(-lengths // step))
    return lengths, np.append(0, ends[:-1]), int(ends[-1])


def on_device(device: Any, *tables: NDArray[Any]) -> list[Any]:
    """Tables of 64-bit numbers on a GPU, by one transfer that nobody waits for."""
    import torch

    whole = torch.from_numpy(np.concatenate([table.view(np.int64).ravel() for table in tables]))
    parts = whole.to(device, non_blocking=True).split([table.size for table in tables])
    return [
        part.view(torch.float64) if t.dtype == np.float64 else part
        for part, t in zip(parts, tables, strict=True)
    ]


@cache
def processors(device: Any) -> int:
    """Multiprocessors of a GPU; on a CPU, where Triton's interpreter runs, a few."""
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 2
