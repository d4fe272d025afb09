"""A block in main memory whose rows lie in many places: each thread copies the part it takes.

One buffer for all threads would be written by one core and read by the others. A part of its own stays in a
core's cache while it is multiplied, and costs nobody a meeting.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.chunking import COPIED_PART_NUMBERS, TORCH_GRAIN, parallel_map

BEYOND_FLOAT16 = 2.0**16  # no finite number of float16 is as large
MIN_WIDENED_NUMBERS = 2**12  # fewer float16 numbers are cast by numpy in less time than by several steps
WIDENED_NUMBERS = 2**16  # float16 numbers cast at once: they stay in a core's own cache
MAX_JOINED_COLUMNS = 256  # columns up to which vectors are joined, which costs less than to copy each

# Writes these columns of some rows into an array.
Fill = Callable[[NDArray[Any], Sequence[int], slice], None]


class HostLeaves:
    """Slices of it are like it, and cost nothing; `numpy` makes the copy, as of a tensor in main memory."""

    is_cuda, device = False, SimpleNamespace(type="cpu")

    def __init__(self, fill: Fill, rows: Sequence[int], columns: range, dtype: np.dtype[Any]) -> None:
        self._fill, self._rows, self._columns = fill, rows, columns
        self.dtype = dtype
        self.shape = len(rows), len(columns)

    def __getitem__(self, key: Any) -> HostLeaves:
        """Some rows, by a slice or a list, or `[:, columns]`, by a slice with a step or without."""
        if isinstance(key, tuple):
            return HostLeaves(self._fill, self._rows, self._columns[key[1]], self.dtype)  # type: ignore[arg-type]
        rows = self._rows[key] if isinstance(key, slice) else [self._rows[i] for i in key]
        return HostLeaves(self._fill, rows, self._columns, self.dtype)

    def numpy(self) -> NDArray[Any]:
        """The rows side by side, in an array of the caller's own; what is wider than a part by every core."""
        out, columns = np.empty(self.shape, self.dtype), self._columns
        if columns.step == 1:
            lines = max(1, 2 * COPIED_PART_NUMBERS // max(len(columns), 1))
            where = slice(columns.start, columns.stop)
            groups = [slice(i, i + lines) for i in range(0, len(self._rows), lines)]
            parallel_map(lambda some: self._fill(out[some], self._rows[some], where), groups)
        else:
            for at, column in enumerate(columns):
                self._fill(out[:, at : at + 1], self._rows, slice(column, column + 1))
        return out

    def copied_to(self, out: NDArray[Any]) -> NDArray[Any]:
        """The rows side by side in this array, written by the caller's own thread."""
        self._fill(out, self._rows, slice(self._columns.start, self._columns.stop))
        return out


def working_on_host(dtype: Any) -> np.dtype[Any]:
    """Numpy's dtype for numbers that are computed with in this dtype of torch's or numpy's."""
    return np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)


def as_vector(leaf: Any) -> Any:
    """A contiguous leaf in main memory as a vector of numpy's, without a copy; others as they are.

    Numpy has no bfloat16: that is a vector of its bits, as integers. It widens float16 one number at a time,
    which therefore stays a tensor, or becomes one if torch is there.
    """
    if isinstance(leaf, np.ndarray):
        if not leaf.flags.c_contiguous:
            return leaf
        torch: Any = sys.modules.get("torch") if leaf.dtype == np.float16 and leaf.flags.writeable else None
        return leaf.reshape(-1) if torch is None else torch.from_numpy(leaf.reshape(-1))
    if not leaf.is_contiguous() or leaf.is_neg():
        return leaf
    if leaf.dtype.itemsize >= 4:
        return leaf.numpy().reshape(-1)
    bits = bits_of_bfloat16(leaf)
    return leaf.reshape(-1) if bits is None else bits.reshape(-1)


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
        return
    beside = sys.modules["torch"].from_numpy(target)
    for start in range(0, len(target), TORCH_GRAIN):
        # Torch's quick way from float16 to float32 overlooks that a tensor is the negative of its memory.
        beside[start : start + TORCH_GRAIN].copy_(vector[start : start + TORCH_GRAIN].resolve_neg())


def copy_tensor(target: Any, source: Any) -> None:
    """Cast a tensor into another; in main memory without torch's threads, some lines at a time."""
    size = target.numel()
    if size <= TORCH_GRAIN or target.device.type != "cpu" or source.shape != target.shape:
        target.copy_(source.resolve_neg())
    elif lines := TORCH_GRAIN * len(target) // size:
        for start in range(0, len(target), lines):
            target[start : start + lines].copy_(source[start : start + lines].resolve_neg())
    else:
        for line, values in zip(target, source, strict=True):
            copy_tensor(line, values)


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


def cast_vectors(target: NDArray[Any], vectors: Sequence[NDArray[Any]]) -> None:
    """Cast vectors of one dtype into the lines of an array."""
    are_bits = vectors[0].dtype.kind == "i"
    if target.shape[1] <= MAX_JOINED_COLUMNS or (are_bits and target.itemsize == 8):
        cast_array(target, np.concatenate(vectors).reshape(target.shape))
        return
    if vectors[0].dtype == np.float16 and target.dtype == np.float32:
        step = max(1, WIDENED_NUMBERS // target.shape[1])
        for i in range(0, len(vectors), step):
            _widen(target[i : i + step], vectors[i : i + step])
        return
    lines = target.view(np.int32) if are_bits else target
    for line, vector in zip(lines, vectors, strict=True):
        np.copyto(line, vector, casting="unsafe")
    if are_bits:
        _move_up(target)


def _move_up(numbers: NDArray[np.float32]) -> None:
    """The lower half of each number, which holds the bits of a bfloat16, becomes the upper one."""
    bits = numbers.view(np.int32)
    np.left_shift(bits, 16, out=bits)


def _widen(target: NDArray[np.float32], vectors: Sequence[NDArray[Any]] | NDArray[Any]) -> None:
    """Float16 to float32 by bits: numpy does it one number at a time, which takes three times as long."""
    bits = target.view(np.int32)
    for line, vector in zip(bits, vectors, strict=True):
        np.copyto(line, vector.view(np.int16))
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, np.int32(-0x70002000), out=bits)  # the sign, the exponent and the fraction
    np.multiply(target, np.float32(2.0**112), out=target)  # exponents count from 15 there, from 127 here
    if not (target.max() < BEYOND_FLOAT16 and target.min() > -BEYOND_FLOAT16):  # NaN or infinity
        for line, vector in zip(target, vectors, strict=True):
            np.copyto(line, vector)


def side_by_side(leaves: Sequence[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """(n, k) leaves of one shape, each in a line: of many small ones few calls, without torch's threads."""
    k, has_sides = math.prod(leaves[0].shape), bool(leaves[0].ndim)
    if isinstance(leaves[0], np.ndarray):
        leaves = leaves if has_sides else [leaf.reshape(1) for leaf in leaves]
        return np.concatenate(leaves, dtype=dtype, casting="unsafe").reshape(len(leaves), k)
    torch: Any = sys.modules["torch"]
    out, count = np.empty((len(leaves), k), dtype), max(1, TORCH_GRAIN // max(k, 1))
    for start in range(0, len(leaves), count):
        some = leaves[start : start + count]
        joined = torch.cat(some) if has_sides else torch.stack(some)
        cast_vector(out[start : start + count].reshape(-1), joined.reshape(-1))
    return out
