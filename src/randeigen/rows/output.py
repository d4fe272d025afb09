"""Where the second pass writes: the answer in the caller's form; integers and bools are settled by vote."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import apart, copy, in_memory, largest_number
from randeigen.rows.layout import Layout
from randeigen.types import Weights

# Sums of weights carry rounding; half is reached a little early, so that ties fall to the lower value.
HALF_OF_WEIGHT = 0.5 * (1 - 1e-9)


class OutputBuffer:
    """The answer while it is being written, column by column, into leaves of its own."""

    def __init__(self, layout: Layout, leaves: Sequence[Any], settle: Callable[[Weights], Any]) -> None:
        self._layout = layout
        self._flat = [in_memory(leaf).reshape(-1) for leaf in leaves]
        self._settle = settle

    def write(self, columns: slice, values: Any) -> float:
        """Store the answer for some columns, cast to each leaf's dtype; how far that moved them."""
        moved = 0.0
        for piece in self._layout.pieces(columns):
            stored, given = self._flat[piece.leaf][piece.start : piece.stop], values[piece.columns]
            copy(stored, given)
            if stored.dtype != given.dtype:
                here = apart(stored, given)
                if not math.isfinite(here):  # a rule that stretches rows may go past the largest float16
                    most = largest_number(stored.dtype)
                    copy(stored, given.clip(-most, most))
                    here = apart(stored, given)
                moved = math.hypot(moved, here)
        return moved

    def place(self, columns: slice, like: Any) -> Any:
        """The answer's own memory for these columns, or None if it does not hold numbers like these."""
        pieces = self._layout.pieces(columns)
        leaf = self._flat[pieces[0].leaf]
        return (
            leaf[pieces[0].start : pieces[0].stop] if len(pieces) == 1 and leaf.dtype == like.dtype else None
        )

    def finish(self, weights: Weights) -> Any:
        """The caller's form; `weights` settle integers and bools."""
        return self._settle(np.asarray(weights, np.float64))


def lower_median(values: NDArray[Any], weights: Weights) -> NDArray[Any]:
    """Per column of (m, b) integers, the least value that half the weight does not exceed."""
    order = np.argsort(values, axis=0, kind="stable")
    mass = np.cumsum(weights[order], axis=0)
    index = (mass >= HALF_OF_WEIGHT * weights.sum()).argmax(axis=0)
    chosen = np.take_along_axis(order, index[None], axis=0)
    return np.asarray(np.take_along_axis(values, chosen, axis=0)[0])


def majority(values: NDArray[Any], weights: Weights) -> NDArray[np.bool_]:
    """Per column of (m, b) bools, what more than half the weight says; False in a tie."""
    return np.asarray(weights @ (values == 0) < HALF_OF_WEIGHT * weights.sum())
