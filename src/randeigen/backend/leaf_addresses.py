"""Tensors in main memory by their addresses: a loop in C copies what it needs of all of them by one call."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend import native


class LeafAddresses:
    """Where the leaves of n rows lie; rows that are not among them are NaN."""

    def __init__(self, rows: Mapping[int, Sequence[Any]], leaves: native.Leaves) -> None:
        self._rows, self._leaves = rows, leaves  # the rows, so that what the addresses point to stays
        self._every = np.arange(len(leaves.addresses))

    @classmethod
    def of(
        cls,
        rows: Mapping[int, Sequence[Any]],
        known: Mapping[int, Sequence[int]],
        averaged: Sequence[int],
        n: int,
        dtype: np.dtype[Any],
    ) -> LeafAddresses | None:
        """Those of some leaves, if the loop can copy every one of them into an array of a dtype.

        `known` are addresses of all leaves of rows that are alike but for their numbers.
        """
        if native.loops() is None or isinstance(next(iter(rows.values()))[averaged[0]], np.ndarray):
            return None
        tensor, get = sys.modules["torch"].Tensor, attrgetter("dtype")
        first = [rows[next(iter(known or rows))][k] for k in averaged]
        dtypes, addresses = list(map(get, first)), np.zeros((n, len(averaged)), np.intp)
        conversions = [_conversions().get((each, dtype.itemsize), -1) for each in dtypes]
        if -1 in conversions:
            return None
        every = len(averaged) == len(next(iter(rows.values())))
        for row, of_row in known.items():
            addresses[row] = of_row if every else [of_row[k] for k in averaged]
        for row in rows.keys() - known.keys():
            leaves = rows[row]
            some = [leaves[k] for k in averaged]
            if list(map(get, some)) != dtypes or not all(map(tensor.is_contiguous, some)):
                return None
            if any(map(tensor.is_neg, some)):
                return None
            addresses[row] = list(map(tensor.data_ptr, some))
        ends = np.array(list(accumulate(leaf.numel() for leaf in first)), np.intp)
        return cls(rows, native.Leaves(addresses, ends, np.array(conversions, np.intc)))

    def copy_to(self, out: NDArray[Any], rows: Sequence[int], columns: slice) -> None:
        """Write these columns of some rows."""
        follow = isinstance(rows, range) and rows.step == 1
        some = self._every[rows.start : rows.stop] if follow else np.array(rows, np.intp)  # type: ignore[attr-defined]
        native.copy(self._leaves, some, columns, out)


@cache
def _conversions() -> dict[tuple[Any, int], int]:
    """By the dtype of tensors, and the size of the numbers they become."""
    torch = sys.modules["torch"]
    return {
        (torch.float32, 4): native.AS_IT_IS,
        (torch.float64, 8): native.AS_IT_IS,
        (torch.bfloat16, 4): native.FROM_BFLOAT16,
        (torch.float16, 4): native.FROM_FLOAT16,
    }
