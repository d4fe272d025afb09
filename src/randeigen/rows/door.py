"""The door in: whatever holds the rows, seen strip by strip."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from randeigen.errors import BadRows
from randeigen.rows.arrays import is_tensor
from randeigen.rows.files import Files, Visit
from randeigen.rows.leaves import Records, from_protocol
from randeigen.rows.matrix import Matrix
from randeigen.types import Rows

BLOCK_BYTES = 8 * 2**20


def as_rows(
    rows: Any, *, block_bytes: int = BLOCK_BYTES, multiple: int = 1, visit: Visit | None = None
) -> Rows:
    """Rows in any accepted form, checked; nothing is read or copied yet but the headers of files.

    An (n, d) array, memmap or tensor; a sequence of vectors, of state_dicts, of lists of arrays, or of
    paths to .safetensors, .npz or .npy files. Blocks begin at multiples of `multiple` columns.
    `visit` is shown each file that is accepted, open, before its numbers are read.
    """
    if isinstance(rows, (Matrix, Records, Files)):
        return rows
    if is_tensor(rows) or isinstance(rows, np.ndarray):
        return Matrix(rows, block_bytes, multiple)
    if hasattr(rows, "__array__") and not isinstance(rows, (Sequence, Mapping)):
        return Matrix(from_protocol(rows, 0, ()), block_bytes, multiple)
    check_sequence(rows)
    paths = [row for row, item in enumerate(rows) if isinstance(item, (str, bytes, os.PathLike))]
    if not paths:
        return Records(rows, block_bytes, multiple)
    if len(paths) < len(rows):
        other = min(set(range(len(rows))) - set(paths))
        found = type(rows[other]).__name__
        raise BadRows(f"row {paths[0]} is a path, row {other} a {found}; pass all rows in one form.")
    return Files([os.fsdecode(item) for item in rows], block_bytes, multiple, visit)


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
