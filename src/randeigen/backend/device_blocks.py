"""Blocks as they lie on a GPU: in half precision, or as leaves in many places.

Kernels read both where they are. For all else `as_matrix` casts a block, or lays its leaves side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.host_leaves import HostLeaves
from randeigen.types import Array, Block

COPIED_NUMBERS = 2**23  # numbers of a block that are copied at a time
MAX_KERNEL_ROWS = 32  # rows: more of a part than that do not fit the registers of a GPU's program


@cache
def has_kernels() -> bool:
    """Whether kernels can be compiled for a GPU: torch brings Triton along wherever it has one.

    Older Tritons lack what the kernels are written with; torch does their work then.
    """
    try:
        import triton
        from triton.backends.nvidia.compiler import CUDAOptions
    except ImportError:
        return False
    options = getattr(CUDAOptions, "__dataclass_fields__", {})
    return hasattr(triton, "constexpr_function") and "launch_cooperative_grid" in options


def takes(block: Any) -> bool:
    """Whether the kernels can read a tensor or a block of leaves as it lies."""
    if isinstance(block, Leaves):
        return True
    return bool(block.is_cuda and block.stride(1) == 1 and has_kernels())


def in_kernels(numbers: Any) -> bool:
    """Whether a GPU's kernels take such (p, n, ...) numbers: each part in the registers of a program."""
    if isinstance(numbers, np.ndarray) or not numbers.is_cuda or not has_kernels():
        return False
    return bool(numbers.shape[1] <= MAX_KERNEL_ROWS and numbers.stride(2) == 1)


def as_matrix(block: Any) -> Any:
    """A block as one float32 or float64 array; a copy only if it is none."""
    if isinstance(block, np.ndarray):
        return block
    if isinstance(block, HostLeaves):
        return block.numpy()
    return block.matrix(working_dtype(block)) if isinstance(block, Leaves) else block.to(working_dtype(block))


def as_matrices(blocks: Iterable[tuple[slice, Any]]) -> Iterator[tuple[slice, Any]]:
    """Blocks as float32 or float64 arrays; those that must be copied, some columns at a time."""
    for columns, block in blocks:
        if is_matrix(block):
            yield columns, block
            continue
        step = max(1, COPIED_NUMBERS // block.shape[0])
        for start in range(columns.start, columns.stop, step):
            part = slice(start, min(start + step, columns.stop))
            yield part, as_matrix(block[:, part.start - columns.start : part.stop - columns.start])


def is_matrix(block: Any) -> bool:
    """Whether it is one float32 or float64 array as it lies."""
    if isinstance(block, (np.ndarray, Leaves, HostLeaves)):
        return isinstance(block, np.ndarray)
    return bool(block.dtype.itemsize >= 4)


def working_dtype(block: Any) -> Any:
    """The dtype of a tensor's numbers when they are computed with."""
    import torch

    return torch.float64 if block.dtype.itemsize == 8 else torch.float32


def empty_leaves(block: Any, wide: bool) -> list[Any]:
    """Memory for one number for each column of a tensor, leaf by leaf; float64 if `wide`."""
    import torch

    dtype = torch.float64 if wide else working_dtype(block)
    lengths = block.lengths if isinstance(block, Leaves) else [block.shape[1]]
    return [torch.empty(length, dtype=dtype, device=block.device) for length in lengths]


def gather(target: Any, rows: Sequence[int], values: Sequence[Any]) -> None:
    """Cast one vector into each of these rows of `target`, on a device."""
    import torch

    stacked = torch.stack(list(values))  # a launch costs more than the copy: one for all rows
    target[slice(None) if len(rows) == len(target) else list(rows)] = stacked.to(target.dtype)


class Leaves:
    """A block whose n rows lie in many places: read through addresses by the kernels, never copied whole.

    `leaves[k][i]` is leaf k of row i, contiguous, or None where a row cannot be read; all are on one GPU and
    of one dtype. Slices of it are views like those of a matrix.
    """

    is_cuda = True

    def __init__(self, leaves: Sequence[Sequence[Any]], like: Leaves | None = None) -> None:
        self.leaves = leaves
        self.on_device: Any = None  # the addresses, once a kernel has asked for them
        self.missing = [i for i, leaf in enumerate(leaves[0]) if leaf is None]
        if like is None:
            one_row = next(i for i, leaf in enumerate(leaves[0]) if leaf is not None)
            self.lengths = [rows[one_row].numel() for rows in leaves]
            self.dtype, self.device = leaves[0][one_row].dtype, leaves[0][one_row].device
        else:
            self.lengths, self.dtype, self.device = like.lengths, like.dtype, like.device
        self.shape = len(leaves[0]), sum(self.lengths)

    def __getitem__(self, key: Any) -> Leaves:
        """Some rows, by a slice or a list, or `[:, columns]`."""
        if not isinstance(key, tuple):
            index = range(self.shape[0])[key] if isinstance(key, slice) else key
            return Leaves([[rows[i] for i in index] for rows in self.leaves], self)
        first, last, _ = key[1].indices(self.shape[1])
        cut = []
        for rows, stop, length in zip(self.leaves, accumulate(self.lengths), self.lengths, strict=True):
            here = slice(max(first - (stop - length), 0), min(last - (stop - length), length))
            if here.start < here.stop:
                cut.append([None if leaf is None else leaf.reshape(-1)[here] for leaf in rows])
        return Leaves(cut)

    def matrix(self, dtype: Any) -> Any:
        """The rows side by side in one tensor; those that cannot be read are NaN."""
        import torch

        out = torch.empty(self.shape, dtype=dtype, device=self.device)
        if self.missing:
            out.fill_(math.nan)
        usable = [i for i in range(self.shape[0]) if i not in self.missing]
        at = 0
        for rows, length in zip(self.leaves, self.lengths, strict=True):
            leaves, columns = [rows[i].reshape(-1) for i in usable], slice(at, at + length)
            if self.missing:
                out[usable, columns] = torch.stack(leaves).to(dtype)
            elif dtype == self.dtype:
                torch.stack(leaves, out=out[:, columns])
            else:
                out[:, columns] = torch.stack(leaves)
            at += length
        return out

    @cached_property
    def addresses(self) -> NDArray[np.int64]:
        """(leaves, n), 0 where there is nothing."""
        starts = [0 if leaf is None else leaf.data_ptr() for rows in self.leaves for leaf in rows]
        return np.array(starts, np.int64).reshape(len(self.leaves), -1)

    def largest_magnitudes(self) -> Any:
        """(n,) the largest magnitude of each row on the device; NaN if it holds one or cannot be read."""
        import torch

        nothing = torch.full((), math.nan, dtype=self.dtype, device=self.device)
        ends = [
            nothing
            if row[0] is None
            else torch.stack([e for leaf in row for e in (leaf.amax(), -leaf.amin())]).amax()
            for row in zip(*self.leaves, strict=True)
        ]
        return torch.stack(ends)


class MergedColumns(NamedTuple):
    """An answer made column by column, and how far it is from two means of the rows."""

    answer: Any  # (b,); None if it has been written where it belongs
    from_sum: float  # Σ wᵢ xᵢ
    from_mean: float  # the plain mean
    cast_error: float  # how far the dtype of the place where it was written has moved it


BegunColumns: TypeAlias = Callable[[], MergedColumns | None]  # waits; None where sums have overflowed


@runtime_checkable
class InRegisters(Protocol):
    """A combiner that a GPU can run on rows where they lie, each column in registers."""

    def in_registers(
        self, block: Block, usable: Sequence[int], weights: Array, out: Any
    ) -> BegunColumns | None:
        """What waits for the answer for a block of all rows, `weights` being theirs.

        None where that cannot be done. It is written to `out` if that is given: memory for it, or for a block
        of leaves a list.
        """
