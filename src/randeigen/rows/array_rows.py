"""Rows that already lie in one (n, d) array or tensor: blocks are views of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from randeigen.backend.arrays import copy, dtype_name, empty, is_tensor, kind, on_host, plain, unfit, working
from randeigen.backend.chunking import (
    DEVICE_COPY_BLOCKS,
    DEVICE_VIEW_COLUMNS,
    HOST_VIEW_BLOCKS,
    block_columns,
    block_width,
)
from randeigen.errors import BadRows
from randeigen.rows.layout import Layout
from randeigen.rows.output import OutputBuffer
from randeigen.types import Answer, Block


class ArrayRows:
    """An (n, d) numpy array, memmap or tensor; never copied whole."""

    def __init__(self, array: Any, block_bytes: int, multiple: int = 1) -> None:
        array = plain(array) if is_tensor(array) else array
        check_array(array)
        self._array = array if is_tensor(array) else np.asarray(array)
        self.n: int = int(array.shape[0])
        self.d: int = int(array.shape[1])
        self.unusable: Mapping[int, str] = {}
        self.carries = False
        self._work = working([array.dtype])
        negated = is_tensor(array) and array.is_neg()  # its memory holds the negative of its numbers
        self._views = self._array.dtype == self._work and not negated
        self._budget = HOST_VIEW_BLOCKS * block_bytes if self._views else block_bytes
        self._multiple = multiple
        if not on_host(array):
            columns = DEVICE_VIEW_COLUMNS * self.n * self._work.itemsize
            self._budget = columns if self._views else DEVICE_COPY_BLOCKS * block_bytes

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        """Views of the caller's own numbers where the dtype allows, else casts into one buffer."""
        shape = self.d, self.n, self._work.itemsize, self._budget, self._multiple
        if self._views:
            for columns in block_columns(*shape):
                yield columns, self._array[:, columns]
            return
        buffer = empty((self.n, block_width(*shape)), self._work, self._array)
        for columns in block_columns(*shape):
            block = buffer[:, : columns.stop - columns.start]
            copy(block, self._array[:, columns])
            yield columns, block

    def answer(self) -> Answer:
        """A fresh vector of the same dtype, on the same device."""
        vector = empty((self.d,), self._array.dtype, self._array)
        return OutputBuffer(Layout([(self.d,)]), [vector], lambda weights: vector)

    def changed(self) -> list[int]:
        """No row: arrays are the caller's own."""
        return []


def check_array(array: Any) -> None:
    """Raise BadRows unless this is an (n, d) array of floats."""
    reason = unfit(array)
    if reason:
        raise BadRows(f"rows {reason}.")
    if array.ndim != 2:
        raise BadRows(
            f"rows must be (n, d), one row per sender, found shape {tuple(array.shape)}; "
            "use rows.reshape(n, -1), or list(rows) to average arrays of a shape."
        )
    if kind(array.dtype) != "float":
        raise BadRows(
            f"rows must be floating-point, found {dtype_name(array.dtype)}; "
            "averages of integers are rarely integers, so cast them first, to float32 say."
        )
    if not all(array.shape):
        raise BadRows(f"rows must hold numbers, found shape {tuple(array.shape)}; pass one row per sender.")
