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

    def __init__(self, table: Any, block_bytes: int, multiple: int = 1) -> None:
        table = plain(table) if is_tensor(table) else table
        check_array(table)
        self._table = table if is_tensor(table) else np.asarray(table)
        self.n: int = int(table.shape[0])
        self.d: int = int(table.shape[1])
        self.lost: Mapping[int, str] = {}
        self._work = working([table.dtype])
        turned = is_tensor(table) and table.is_neg()  # its memory holds the negative of its numbers
        self._views = self._table.dtype == self._work and not turned
        self._budget = HOST_VIEW_BLOCKS * block_bytes if self._views else block_bytes
        self._multiple = multiple
        if not on_host(table):
            columns = DEVICE_VIEW_COLUMNS * self.n * self._work.itemsize
            self._budget = columns if self._views else DEVICE_COPY_BLOCKS * block_bytes

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        """Views of the caller's own numbers where the dtype allows, else casts into one buffer."""
        shape = self.d, self.n, self._work.itemsize, self._budget, self._multiple
        if self._views:
            for columns in block_columns(*shape):
                yield columns, self._table[:, columns]
            return
        buffer = empty((self.n, block_width(*shape)), self._work, self._table)
        for columns in block_columns(*shape):
            block = buffer[:, : columns.stop - columns.start]
            copy(block, self._table[:, columns])
            yield columns, block

    def answer(self) -> Answer:
        """A fresh vector of the same dtype, on the same device."""
        vector = empty((self.d,), self._table.dtype, self._table)
        return OutputBuffer(Layout([(self.d,)]), [vector], lambda weights: vector)


def check_array(table: Any) -> None:
    """Raise BadRows unless this is an (n, d) table of floats."""
    reason = unfit(table)
    if reason:
        raise BadRows(f"rows {reason}.")
    if table.ndim != 2:
        raise BadRows(
            f"rows must be (n, d), one row per sender, found shape {tuple(table.shape)}; "
            "use rows.reshape(n, -1), or list(rows) to average arrays of a shape."
        )
    if kind(table.dtype) != "float":
        raise BadRows(
            f"rows must be floating-point, found {dtype_name(table.dtype)}; "
            "averages of integers are rarely integers, so cast them first, to float32 say."
        )
    if not all(table.shape):
        raise BadRows(f"rows must hold numbers, found shape {tuple(table.shape)}; pass one row per sender.")
