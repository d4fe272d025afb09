"""Whatever the caller passes as rows, in the one form the pipeline reads: blocks of columns.

An (n, d) array is such rows already, and is wrapped here; sequences have modules of their own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import (
    as_writable_array,
    copy,
    dtype_name,
    empty,
    is_tensor,
    kind,
    on_host,
    plain,
    store,
    unfit,
    working,
)
from randeigen.backend.chunking import (
    BLOCK_BYTES,
    DEVICE_COPY_BLOCKS,
    DEVICE_VIEW_COLUMNS,
    HOST_VIEW_BLOCKS,
    MAX_COPIED_BYTES,
    MAX_KEPT_BYTES,
    block_columns,
    block_width,
)
from randeigen.backend.device_blocks import takes
from randeigen.backend.host_leaves import HostLeaves, as_lines, bits_of_bfloat16, working_on_host
from randeigen.errors import BadRows
from randeigen.rows.file_rows import FileRows, Visit
from randeigen.rows.leaves import LeafOfRows
from randeigen.rows.mixed_rows import MixedRows
from randeigen.rows.record_rows import RecordRows
from randeigen.rows.walk import Unreadable, class_name, from_protocol
from randeigen.types import Answer, Block, Rows, Weights


def as_rows(
    rows: Any, *, block_bytes: int = BLOCK_BYTES, multiple: int = 1, visit: Visit | None = None
) -> Rows:
    """Rows in any accepted form, checked; nothing is read or copied yet but the headers of files.

    An (n, d) array, memmap or tensor; a sequence of vectors, of state_dicts, of lists of arrays, or of
    paths to .safetensors, .npz or .npy files. Blocks begin at multiples of `multiple` columns.
    In a sequence the form that more than half of the rows share is the form; the others are `unusable`.
    `visit` is called with each file that is accepted, open, before its numbers are read.
    """
    if isinstance(rows, (ArrayRows, RecordRows, FileRows, MixedRows)):
        return rows
    if isinstance(rows, np.ndarray) and rows.dtype == object and rows.ndim in (1, 2):
        rows = np.asarray(rows).tolist()  # rows of Python objects, each in a form of its own
    elif is_tensor(rows) or isinstance(rows, np.ndarray):
        return ArrayRows(rows, block_bytes, multiple)
    elif hasattr(rows, "__array__") and not isinstance(rows, (Sequence, Mapping)):
        try:
            return ArrayRows(from_protocol(rows), block_bytes, multiple)
        except Unreadable as why:
            raise BadRows(
                f"rows must be an (n, d) array, but what was found {why.reason}; {why.advice}."
            ) from why
    check_sequence(rows)
    return from_sequence(list(rows), block_bytes, multiple, visit)


class ArrayRows:
    """An (n, d) numpy array, memmap or tensor; never copied whole."""

    def __init__(self, array: Any, block_bytes: int, multiple: int = 1) -> None:
        in_torch = is_tensor(array)
        array = plain(array) if in_torch else array
        check_array(array)
        self._array = array if in_torch else np.asarray(array)
        self.n: int = int(array.shape[0])
        self.d: int = int(array.shape[1])
        self.unusable: Mapping[int, str] = {}
        self.carries = False
        self.on_host = on_host(array)
        self.segment_columns: int | None = None
        self.leaves: Sequence[tuple[str, tuple[int, ...]]] = [("", (self.d,))]
        self._work = working([array.dtype])
        negated = in_torch and array.is_neg()  # its memory holds the negative of its numbers
        # Half precision is cast, but on a GPU, where it can be multiplied as it is.
        as_it_is = array.dtype == self._work or (in_torch and takes(array))
        self._views = as_it_is and not negated
        self._budget = HOST_VIEW_BLOCKS * block_bytes if self._views else block_bytes
        self._multiple = multiple
        self._kept: Block | None = None  # all columns, once cast, if they are few
        if not self.on_host:
            columns = DEVICE_VIEW_COLUMNS * self.n * self._work.itemsize
            self._budget = columns if self._views else DEVICE_COPY_BLOCKS * block_bytes

    def blocks(self, multiple: int = 1) -> Iterator[tuple[slice, Block]]:
        """Views of the caller's own numbers where the dtype allows, else casts: of large arrays in parts."""
        shape = self.d, self.n, self._work.itemsize, self._budget, math.lcm(self._multiple, multiple)
        if self._views:
            if block_width(*shape) == self.d:
                yield slice(0, self.d), self._array
                return
            for columns in block_columns(*shape):
                yield columns, self._array[:, columns]
            return
        if self.on_host and self.n * self.d * self._work.itemsize > MAX_COPIED_BYTES:
            for columns in block_columns(*shape[:3], HOST_VIEW_BLOCKS * self._budget, shape[-1]):
                of_all = range(columns.start, columns.stop)
                yield columns, HostLeaves(self._fill, range(self.n), of_all, working_on_host(self._work))
            return
        if self._kept is not None:
            yield slice(0, self.d), self._kept
            return
        buffer = empty((self.n, block_width(*shape)), self._work, self._array)
        for columns in block_columns(*shape):
            block = buffer[:, : columns.stop - columns.start]
            copy(block, self._array[:, columns])
            if block.shape[1] == self.d and block.nbytes <= MAX_KEPT_BYTES:
                self._kept = block  # for the second reading
            yield columns, block

    def _fill(self, out: NDArray[Any], rows: Sequence[int], columns: slice) -> None:
        """Write these columns of some rows, cast."""
        self._as_leaf.copy_to(out, rows, columns.start, columns.stop)

    @cached_property
    def _as_leaf(self) -> LeafOfRows:
        array = self._array
        if not isinstance(array, np.ndarray) and not array.is_neg():
            bits = bits_of_bfloat16(array)
            array = array.numpy() if bits is None else bits
        return LeafOfRows(array if isinstance(array, np.ndarray) else as_lines(list(array)))

    def answer(self) -> Answer:
        """A fresh vector of the same dtype, on the same device."""
        return _VectorAnswer(empty((self.d,), self._array.dtype, self._array))

    def changed(self) -> list[int]:
        """No row: arrays are the caller's own."""
        return []


class _VectorAnswer:
    """The answer to the rows of one array: a vector."""

    def __init__(self, vector: Any) -> None:
        self._vector, self._memory = vector, as_writable_array(vector)

    def write(self, columns: slice, values: Any) -> float:
        return store(self._memory[columns], values)

    def memory_for(self, columns: slice, like: Any) -> Any:
        if self._memory.dtype != like.dtype:
            return None
        whole = columns.stop - columns.start == len(self._memory)
        return self._memory if whole else self._memory[columns]

    def finish(self, weights: Weights) -> Any:
        return self._vector


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


def from_sequence(rows: Sequence[Any], block_bytes: int, multiple: int, visit: Visit | None = None) -> Rows:
    """Rows in a list: paths, or whatever else most of them are."""
    paths: dict[int, str] = {}
    if any(issubclass(kind, (str, bytes, os.PathLike)) for kind in set(map(type, rows))):
        paths = {row: path for row, item in enumerate(rows) if (path := as_path(item)) is not None}
    if len(paths) == len(rows):
        return FileRows(list(paths.values()), block_bytes, multiple, visit)
    if 2 * len(paths) < len(rows):
        others = dict.fromkeys(paths, "unlike most rows: it is text or a path, most rows are not")
        return RecordRows(rows, block_bytes, multiple, others)
    classes = {row: class_name(item) for row, item in enumerate(rows) if row not in paths}
    if len(paths) == len(classes):
        raise BadRows(
            f"more than half of the rows must share one form, found {len(paths):,} paths and "
            f"{len(classes):,} others: row {min(paths)} is a path, row {min(classes)} a "
            f"{classes[min(classes)]}; pass all rows in one form."
        )
    others = {row: f"unlike most rows: it is a {name}, most rows are paths" for row, name in classes.items()}
    try:
        files = FileRows(list(paths.values()), block_bytes, multiple, visit)
    except BadRows as error:  # which counts the paths alone
        raise BadRows(
            f"{len(paths):,} of {len(rows):,} rows are paths; of the paths alone: {error}"
        ) from error
    return MixedRows(files, list(paths), others)


def as_path(item: Any) -> str | None:
    """The path that an item is, or None: whatever a sender's class raises is no reason to stop."""
    try:
        return os.fsdecode(item) if isinstance(item, (str, bytes, os.PathLike)) else None
    except Exception:
        return None


def check_sequence(rows: Any) -> None:
    """Raise BadRows, saying what to pass, unless these are rows in an order."""
    if isinstance(rows, (str, bytes, os.PathLike)):
        raise BadRows(
            f"rows must be many, found one path, {os.fsdecode(rows)}; pass a list of paths, one per sender."
        )
    if isinstance(rows, Mapping):
        raise BadRows(f"rows must be a sequence, found a {type(rows).__name__}; pass list(rows.values()).")
    if isinstance(rows, AbstractSet):
        raise BadRows(f"rows must have an order, found a {type(rows).__name__}; pass a list.")
    if not isinstance(rows, Sequence):
        advice = "pass list(rows)" if hasattr(rows, "__iter__") else "pass an (n, d) array or a list of rows"
        raise BadRows(f"rows must be readable twice and in order, found a {type(rows).__name__}; {advice}.")
    if not rows:
        raise BadRows("rows must hold at least one row, found an empty sequence; pass one row per sender.")
