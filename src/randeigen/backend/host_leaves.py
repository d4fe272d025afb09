"""A block in main memory whose rows lie in many places: each thread copies the part it takes.

One buffer for all threads would be written by one core and read by the others. A part of its own stays in a
core's cache while it is multiplied, and costs nobody a meeting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
        """The rows side by side, in an array of the caller's own."""
        out, columns = np.empty(self.shape, self.dtype), self._columns
        if columns.step == 1:
            self._fill(out, self._rows, slice(columns.start, columns.stop))
        else:
            for at, column in enumerate(columns):
                self._fill(out[:, at : at + 1], self._rows, slice(column, column + 1))
        return out
