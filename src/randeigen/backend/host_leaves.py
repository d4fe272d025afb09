"""A block in main memory whose rows lie in many places: each thread copies the part it takes.

One buffer for all threads would be written by one core and read by the others. A part of its own stays in a
core's cache while it is multiplied, and costs nobody a meeting.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.chunking import COPIED_PART_NUMBERS, TORCH_GRAIN, parallel_map

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
    """A contiguous leaf in main memory as a vector, of numpy where it is the quicker one; others as they are.

    Numpy widens half precision one number at a time: it stays a tensor, or becomes one if torch is there.
    """
    if isinstance(leaf, np.ndarray):
        if not leaf.flags.c_contiguous:
            return leaf
        torch: Any = sys.modules.get("torch") if leaf.dtype == np.float16 and leaf.flags.writeable else None
        return leaf.reshape(-1) if torch is None else torch.from_numpy(leaf.reshape(-1))
    if not leaf.is_contiguous():
        return leaf
    leaf = leaf if leaf.ndim == 1 else leaf.reshape(-1)
    return leaf if leaf.dtype.itemsize < 4 or leaf.is_neg() else leaf.numpy()


def cast_vector(target: NDArray[Any], vector: Any) -> None:
    """Cast a vector in main memory into part of a numpy array, without torch's threads."""
    if isinstance(vector, np.ndarray):
        np.copyto(target, vector, casting="unsafe")
        return
    beside = sys.modules["torch"].from_numpy(target)
    for start in range(0, len(target), TORCH_GRAIN):
        beside[start : start + TORCH_GRAIN].copy_(vector[start : start + TORCH_GRAIN])


def cast_vectors(target: NDArray[Any], vectors: Sequence[Any]) -> None:
    """Cast vectors in main memory, end to end, into a numpy array: of many short ones few calls."""
    if set(map(type, vectors)) == {np.ndarray}:
        np.concatenate(vectors, out=target, casting="unsafe")
        return
    at = 0
    for group in _together(vectors):
        vector = group[0] if len(group) == 1 else sys.modules["torch"].cat(group)
        cast_vector(target[at : at + len(vector)], vector)
        at += len(vector)


def _together(vectors: Sequence[Any]) -> Iterator[list[Any]]:
    """The vectors in order: short tensors of one dtype that follow one another together, others alone."""
    group, size = list[Any](), 0
    for vector in vectors:
        is_short = not isinstance(vector, np.ndarray) and size + len(vector) <= TORCH_GRAIN
        if group and not (is_short and vector.dtype == group[0].dtype):
            yield group
            group, size = [], 0
        group.append(vector)
        size += len(vector)
    yield group
