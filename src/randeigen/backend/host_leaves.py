"""A block in main memory whose rows lie in many places: each thread copies the part it takes.

One buffer for all threads would be written by one core and read by the others. A part of its own stays in a
core's cache while it is multiplied, and costs nobody a meeting.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.chunking import PART_BYTES, TORCH_GRAIN, narrower, parallel_map
from randeigen.backend.thread_memory import memory_of_thread

INFINITE_FLOAT16 = 0x7C00  # the bits of infinity; those of NaN are above, those of finite numbers below
NAN_BFLOAT16 = 0x7FC0  # its bits
MIN_WIDENED_NUMBERS = 2**11  # fewer float16 numbers are cast by numpy in less time than by several steps
WIDENED_NUMBERS = TORCH_GRAIN  # float16 numbers cast at once: they stay in a core's own cache

# Writes these columns of some rows into an array.
Fill = Callable[[NDArray[Any], Sequence[int], slice], None]
# The same for a few columns far apart, where that can be done quicker than one column after the other.
FillFew = Callable[[NDArray[Any], Sequence[int], range], None]


class HostLeaves:
    """Slices of it are like it, and cost nothing; `numpy` makes the copy, as of a tensor in main memory."""

    is_cuda, device = False, SimpleNamespace(type="cpu")

    def __init__(
        self,
        fill: Fill,
        rows: Sequence[int],
        columns: range,
        dtype: np.dtype[Any],
        fill_few: FillFew | None = None,
        copied_columns: int | None = None,
    ) -> None:
        """`copied_columns`: of so many a copy is made at once, where one of all is wanted; None: of all."""
        self._fill, self._rows, self._columns = fill, rows, columns
        self._fill_few, self.copied_columns, self.dtype = fill_few, copied_columns, dtype
        self.shape = len(rows), len(columns)

    def __getitem__(self, key: Any) -> HostLeaves:
        """Some rows, by a slice or a list, or `[:, columns]`, by a slice with a step or without."""
        if isinstance(key, tuple):
            return self._like(self._rows, self._columns[key[1]])  # type: ignore[arg-type]
        rows = self._rows[key] if isinstance(key, slice) else [self._rows[i] for i in key]
        return self._like(rows, self._columns)

    def _like(self, rows: Sequence[int], columns: range) -> HostLeaves:
        return HostLeaves(self._fill, rows, columns, self.dtype, self._fill_few, self.copied_columns)

    def numpy(self) -> NDArray[Any]:
        """The rows side by side, in an array of the caller's own; what is wider than a part by every core."""
        out, columns = memory_of_thread(self.shape, self.dtype), self._columns
        if columns.step == 1:
            lines = max(1, 2 * PART_BYTES // (self.dtype.itemsize * max(len(columns), 1)))
            where = slice(columns.start, columns.stop)
            groups = [slice(i, i + lines) for i in range(0, len(self._rows), lines)]
            parallel_map(lambda some: self._fill(out[some], self._rows[some], where), groups)
        elif self._fill_few:
            self._fill_few(out, self._rows, columns)
        else:
            for at, column in enumerate(columns):
                self._fill(out[:, at : at + 1], self._rows, slice(column, column + 1))
        return out

    def copied_to(self, out: NDArray[Any]) -> NDArray[Any]:
        """The rows side by side in this array, written by the caller's own thread."""
        self._fill(out, self._rows, slice(self._columns.start, self._columns.stop))
        return out


def as_copied(blocks: Iterable[tuple[slice, Any]]) -> Iterator[tuple[slice, Any]]:
    """The blocks, those of large files cut into what is copied at once."""
    for columns, block in blocks:
        wide = block.copied_columns if isinstance(block, HostLeaves) else None
        yield from narrower(columns, block, wide) if wide else [(columns, block)]


def working_on_host(dtype: Any) -> np.dtype[Any]:
    """Numpy's dtype for numbers that are computed with in this dtype of torch's or numpy's."""
    return np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)


def as_lines(leaves: Sequence[Any]) -> list[Any]:
    """Leaves in main memory as lines that share their memory; one that does not lie in one piece as it is.

    A line is a (1, k) array; of bfloat16, which numpy has not, the bits, as integers. Torch widens float16 in
    a tenth of numpy's time: where it is there, such a line is a vector of its own.
    """
    torch: Any = sys.modules.get("torch")
    if isinstance(leaves[0], np.ndarray):
        return [_array_as_line(leaf, torch) for leaf in leaves]
    tensor, dtypes = torch.Tensor, {leaf.dtype for leaf in leaves}
    if len(dtypes) > 1 or not all(map(tensor.is_contiguous, leaves)) or any(map(tensor.is_neg, leaves)):
        return [leaf if leaf.is_neg() or not leaf.is_contiguous() else as_lines([leaf])[0] for leaf in leaves]
    if dtypes == {torch.float16}:
        return [leaf if leaf.ndim == 1 else leaf.view(-1) for leaf in leaves]
    if dtypes == {torch.bfloat16}:
        leaves = [leaf.view(torch.int16) for leaf in leaves]
    return [array.reshape(1, -1) for array in map(tensor.numpy, leaves)]


def _array_as_line(leaf: NDArray[Any], torch: Any) -> Any:
    if not leaf.flags.c_contiguous:
        return leaf
    by_torch = torch and leaf.dtype == np.float16 and leaf.flags.writeable
    return torch.from_numpy(leaf.reshape(-1)) if by_torch else leaf.reshape(1, -1)


def nan_line(like: Any, k: int) -> Any:
    """The line of k numbers of a row that cannot be read, where others are like this; it takes no memory."""
    if not isinstance(like, np.ndarray):
        return like.new_full((1,), math.nan).expand(k)
    return np.broadcast_to(np.array(NAN_BFLOAT16 if like.dtype.kind == "i" else math.nan, like.dtype), (1, k))


def bits_of_bfloat16(leaf: Any) -> NDArray[np.int16] | None:
    """The bits of a bfloat16 tensor in main memory, as integers that share its memory; None of any other."""
    torch: Any = sys.modules.get("torch")
    if isinstance(leaf, np.ndarray) or leaf.dtype is not torch.bfloat16 or leaf.is_neg():
        return None
    return leaf.view(torch.int16).numpy()  # type: ignore[no-any-return]


def cast_vector(target: NDArray[Any], vector: Any) -> None:
    """Cast a vector in main memory into part of a numpy array, without torch's threads."""
    if isinstance(vector, np.ndarray):
        cast_array(target, vector)
    else:
        copy_tensor(sys.modules["torch"].from_numpy(target), vector)


def copy_tensor(target: Any, source: Any) -> None:
    """Cast a tensor into another; in main memory without torch's threads, all pieces by one call."""
    if target.numel() <= TORCH_GRAIN or target.device.type != "cpu" or source.shape != target.shape:
        target.copy_(source.resolve_neg())
        return
    # Torch's quick way from float16 to float32 overlooks that a tensor is the negative of its memory.
    sys.modules["torch"]._foreach_copy_(_pieces(target), _pieces(source.resolve_neg()))


def _pieces(tensor: Any) -> list[Any]:
    """The tensor cut so small that torch copies each piece on one thread."""
    if tensor.numel() <= TORCH_GRAIN:
        return [tensor]
    if lines := TORCH_GRAIN * len(tensor) // tensor.numel():
        return list(tensor.split(lines))
    return [piece for line in tensor for piece in _pieces(line)]


def cast_array(target: NDArray[Any], values: NDArray[Any]) -> None:
    """Cast an array into another of its shape; integers are the bits of bfloat16."""
    if values.dtype == np.float16 and target.dtype == np.float32 and values.size >= MIN_WIDENED_NUMBERS:
        _widen(np.atleast_2d(target), np.atleast_2d(values))
    elif values.dtype.kind != "i":
        np.copyto(target, values, casting="unsafe")
    elif target.itemsize == 4:
        np.copyto(target.view(np.int32), values)
        _move_up(target)
    else:
        cast_array(narrow := np.empty(target.shape, np.float32), values)
        np.copyto(target, narrow)


def cast_lines(target: NDArray[Any], lines: Sequence[NDArray[Any]], dtype: np.dtype[Any] | None) -> None:
    """Cast (1, k) arrays into the lines of an array, by one call for all of them.

    `dtype` is that of all of them; None: they are of several, none of them bits.
    """
    if dtype is not None and dtype.kind == "i" and target.itemsize == 4:
        np.concatenate(lines, out=target.view(np.int32))
        _move_up(target)
    elif dtype is not None and dtype.itemsize == 2:
        step = max(1, WIDENED_NUMBERS // target.shape[1])
        for i in range(0, len(lines), step):
            some = lines[i : i + step]
            cast_array(target[i : i + step], some[0] if len(some) == 1 else np.concatenate(some))
    else:
        np.concatenate(lines, out=target, casting="unsafe")


def cast_vectors(target: NDArray[Any], vectors: Sequence[Any]) -> None:
    """Cast tensors into the lines of an array, without torch's threads.

    By one call: Python's lock is let go once, not for every line.
    """
    torch: Any = sys.modules["torch"]
    both: Any = torch.from_numpy(target).unbind(), vectors
    if target.shape[1] > TORCH_GRAIN:
        both = ([piece for line in lines for piece in line.split(TORCH_GRAIN)] for lines in both)
    torch._foreach_copy_(*both)


def _as_tensor(array: NDArray[Any]) -> Any:
    """The same memory, or a copy of what torch does not take: what is read-only, or runs backwards."""
    as_it_is = array.flags.writeable and min(array.strides) >= 0
    return sys.modules["torch"].from_numpy(array if as_it_is else array.copy())


def _move_up(numbers: NDArray[np.float32]) -> None:
    """The lower half of each number, which holds the bits of a bfloat16, becomes the upper one."""
    bits = numbers.view(np.int32)
    np.left_shift(bits, 16, out=bits)


def _widen(target: NDArray[np.float32], values: NDArray[Any]) -> None:
    """Float16 to float32: numpy does it one number at a time, torch takes a tenth of that."""
    if torch := sys.modules.get("torch"):
        copy_tensor(torch.from_numpy(target), _as_tensor(values))
        return
    lines = max(1, WIDENED_NUMBERS // values.shape[1])
    for i in range(0, len(values), lines):
        for j in range(0, values.shape[1], WIDENED_NUMBERS):
            here = slice(i, i + lines), slice(j, j + WIDENED_NUMBERS)
            _widen_by_bits(target[here], np.ascontiguousarray(values[here]))


def _widen_by_bits(target: NDArray[np.float32], halves: NDArray[np.float16]) -> None:
    """The same in a third of numpy's time."""
    bits, given = target.view(np.int32), halves.view(np.int16)
    np.copyto(bits, given)
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, np.int32(-0x70002000), out=bits)  # the sign, the exponent and the fraction
    np.multiply(target, np.float32(2.0**112), out=target)  # exponents count from 15 there, from 127 here
    if given.max() >= INFINITE_FLOAT16 or halves.view(np.uint16).max() >= INFINITE_FLOAT16 + 2**15:
        np.copyto(target, halves)


def side_by_side(out: NDArray[Any], leaves: Sequence[Any]) -> None:
    """Cast leaves of one shape into the lines of an array: of many small ones few calls, on this thread."""
    has_sides, in_numpy = bool(leaves[0].ndim), isinstance(leaves[0], np.ndarray)
    torch: Any = None if in_numpy else sys.modules["torch"]
    count = max(1, TORCH_GRAIN // max(out.shape[1], 1))
    for start in range(0, len(leaves), count):
        some, here = leaves[start : start + count], out[start : start + count]
        if in_numpy:
            dtypes = {leaf.dtype for leaf in some}
            dtype = dtypes.pop() if len(dtypes) == 1 else out.dtype
            some = some if has_sides else [leaf.reshape(1) for leaf in some]
            cast_array(here, np.concatenate(some, dtype=dtype, casting="unsafe").reshape(here.shape))
        else:
            joined = torch.cat(some) if has_sides else torch.stack(some)
            torch.from_numpy(here).copy_(joined.reshape(here.shape).resolve_neg())
