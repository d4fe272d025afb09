"""Rows made of leaves: vectors, state_dicts, lists of arrays. Matched by name, read strip by strip."""

from __future__ import annotations

import numbers
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from randeigen.errors import BadRows
from randeigen.rows.arrays import (
    copy,
    dtype_name,
    empty,
    flat,
    gather,
    is_tensor,
    kind,
    on_host,
    promote,
    unfit,
    working,
)
from randeigen.rows.layout import Draft, Layout, lower_median, majority, strips, width
from randeigen.rows.matrix import DEVICE_COPIES
from randeigen.types import Answer, Block, Weights

Path: TypeAlias = tuple[Any, ...]  # keys and indices from the record down to the leaf
DEPTH = 8  # deeper than any model's records; ends those that contain themselves


class Records:
    """n records with the same leaves; floats are averaged, integers and bools carried."""

    def __init__(self, records: Sequence[Any], block_bytes: int, multiple: int = 1) -> None:
        self._first = records[0]
        self._paths, self._rows = aligned(records)
        averaged = [k for k, leaf in enumerate(self._rows[0]) if kind(leaf.dtype) == "float"]
        self._averaged = averaged
        self._carried = [k for k, leaf in enumerate(self._rows[0]) if kind(leaf.dtype) != "float"]
        shapes = [tuple(self._rows[0][k].shape) for k in averaged]
        self._layout = Layout(shapes)
        self.n: int = len(self._rows)
        self.d: int = self._layout.d
        self.lost: Mapping[int, str] = {}
        self.carries = bool(self._carried)
        if not self.d:
            raise BadRows("rows must hold floating-point numbers, found none in row 0; pass float arrays.")
        self._dtypes = [common(row[k].dtype for row in self._rows) for k in averaged]
        self._like = self._rows[0][averaged[0]]
        one_device([self._rows[0][k] for k in averaged], [self._paths[k] for k in averaged])
        self._work = working(self._dtypes)
        self._budget = block_bytes * (1 if on_host(self._like) else DEVICE_COPIES)
        self._multiple = multiple

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        """Strips copied into one buffer, across as many leaves as fit."""
        shape = self.d, self.n, self._work.itemsize, self._budget, self._multiple
        buffer = empty((self.n, width(*shape)), self._work, self._like)
        for columns in strips(*shape):
            block = buffer[:, : columns.stop - columns.start]
            for piece in self._layout.pieces(columns):
                leaf = self._averaged[piece.leaf]
                parts = [flat(row[leaf], piece.start, piece.stop) for row in self._rows]
                gather(block[:, piece.columns], parts)
            yield columns, block

    def answer(self) -> Answer:
        """A fresh record like the first row."""
        first = self._rows[0]
        leaves = [
            empty(tuple(first[k].shape), dtype, self._like)
            for k, dtype in zip(self._averaged, self._dtypes, strict=True)
        ]

        def settle(weights: Weights) -> Any:
            values = dict(zip(self._averaged, leaves, strict=True))
            values.update((k, self._carry(k, weights)) for k in self._carried)
            return rebuilt(self._first, iter([values[k] for k in range(len(self._paths))]))

        return Draft(self._layout, leaves, settle)

    def _carry(self, k: int, weights: Weights) -> Any:
        """One integer or bool leaf, settled by the rows that have weight."""
        rows = [row[k] for row, weight in zip(self._rows, weights, strict=True) if weight > 0]
        rule = majority if kind(rows[0].dtype) == "bool" else lower_median
        out = empty(tuple(rows[0].shape), rows[0].dtype, rows[0])
        line = out.reshape(-1)
        for columns in strips(len(line), len(rows), 8, self._budget // 8) if len(line) else ():
            parts = [flat(row, columns.start, columns.stop) for row in rows]
            values = np.stack([part.cpu().numpy() if is_tensor(part) else part for part in parts])
            copy(line[columns], rule(values, weights[weights > 0]))
        return out


def aligned(records: Sequence[Any]) -> tuple[list[Path], list[list[Any]]]:
    """The paths of row 0, and every row's leaves in that order; BadRows if they do not match."""
    first = dict(leaves(records[0], 0))
    rows = []
    for i, record in enumerate(records):
        found = dict(leaves(record, i)) if i else first
        same_names(first, found, i)
        rows.append([found[path] for path in first])
        for path in first:
            same_leaf(path, first[path], found[path], i)
    return list(first), rows


def leaves(record: Any, row: int, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every leaf of a record with the way to it, in order."""
    if len(path) > DEPTH:
        raise BadRows(f"{place(row, path[:2])} is nested deeper than {DEPTH} levels; pass flat records.")
    if isinstance(record, Mapping):
        for key, value in record.items():
            yield from leaves(value, row, (*path, key))
    elif isinstance(record, (list, tuple)) and not is_vector(record):
        for index, value in enumerate(record):
            yield from leaves(value, row, (*path, index))
    else:
        yield path, as_leaf(record, row, path)


def is_vector(record: Sequence[Any]) -> bool:
    """Whether a list holds plain numbers, not arrays."""
    return bool(record) and all(isinstance(value, numbers.Real) for value in record)


def as_leaf(thing: Any, row: int, path: Path) -> Any:
    """The leaf as a tensor without history or a plain numpy array."""
    if isinstance(thing, (list, tuple)):
        thing = np.asarray(thing, np.float64)
    elif isinstance(thing, (bool, int, float)) and path:
        thing = np.asarray(thing)
    elif not is_tensor(thing) and not isinstance(thing, np.ndarray):
        thing = from_protocol(thing, row, path)
    reason = unfit(thing)
    if reason:
        raise BadRows(f"{place(row, path)} {reason}.")
    if not path and thing.ndim == 0:
        raise BadRows(f"row {row} is a single number; pass vectors, each row one sender's.")
    if not path and kind(thing.dtype) != "float":
        raise BadRows(
            f"rows must be floating-point, row {row} has dtype {dtype_name(thing.dtype)}; "
            "cast it first, to float32 say."
        )
    return thing.detach() if is_tensor(thing) else np.asarray(thing)


def from_protocol(thing: Any, row: int, path: Path) -> Any:
    """Arrays of other libraries (jax, pandas) by way of `__array__`."""
    if not hasattr(thing, "__array__"):
        advice = "pass .toarray()" if hasattr(thing, "toarray") else "pass arrays or tensors of floats"
        raise BadRows(f"{place(row, path)} is a {type(thing).__name__}, not an array; {advice}.")
    try:
        return np.asarray(thing)
    except Exception as error:
        raise BadRows(
            f"{place(row, path)} is a {type(thing).__name__} that numpy cannot read ({error}); "
            "convert it to a numpy array first."
        ) from error


def same_names(first: Mapping[Path, Any], found: Mapping[Path, Any], row: int) -> None:
    """Raise BadRows, naming one difference, unless both have the same leaves."""
    if not first:
        raise BadRows("row 0 is empty; pass at least one float array per row.")
    lacks = next((path for path in first if path not in found), None)
    extra = next((path for path in found if path not in first), None)
    if lacks is not None and extra is not None and not (lacks and extra):
        raise BadRows(f"of row {row} and row 0 one is an array, one a record; pass all rows in one form.")
    if lacks is not None:
        raise BadRows(f"row {row} has no {entry(lacks)}, row 0 has; all rows must come from the same model.")
    if extra is not None:
        raise BadRows(f"row {row} has {entry(extra)}, row 0 has not; all rows must come from the same model.")


def same_leaf(path: Path, first: Any, found: Any, row: int) -> None:
    """Raise BadRows unless two leaves agree in library, device, shape and kind."""
    same = is_tensor(first) == is_tensor(found) and first.shape == found.shape and first.dtype == found.dtype
    if same and (not is_tensor(first) or first.device == found.device):
        return  # the usual case, a hundred thousand times over: before any words are made
    where = place(row, path)
    if is_tensor(first) != is_tensor(found):
        names = ["torch tensor" if is_tensor(leaf) else "numpy array" for leaf in (found, first)]
        raise BadRows(f"{where} is a {names[0]}, in row 0 it is a {names[1]}; pass all rows in one form.")
    if is_tensor(first) and first.device != found.device:
        raise BadRows(f"{where} is on {found.device}, in row 0 on {first.device}; move rows to one device.")
    if first.shape != found.shape:
        raise BadRows(f"{misshapen(path, first, found, row)}; all rows must come from the same model.")
    kinds = kind(found.dtype), kind(first.dtype)
    if kinds[0] != kinds[1] or (kinds[0] != "float" and found.dtype != first.dtype):
        names = [dtype_name(found.dtype), dtype_name(first.dtype)]
        raise BadRows(f"{where} is {names[0]}, in row 0 {names[1]}; all rows must come from the same model.")


def misshapen(path: Path, first: Any, found: Any, row: int) -> str:
    """Both shapes, in words."""
    if first.ndim == found.ndim == 1 and not path:
        return f"row {row} has {len(found):,} columns, row 0 has {len(first):,}"
    return f"{place(row, path)} has shape {tuple(found.shape)}, in row 0 {tuple(first.shape)}"


def one_device(averaged: Sequence[Any], paths: Sequence[Path]) -> None:
    """Raise BadRows unless the float leaves of row 0 share library and device."""
    homes = [str(leaf.device) if is_tensor(leaf) else "numpy" for leaf in averaged]
    for home, path in zip(homes, paths, strict=True):
        if home != homes[0]:
            raise BadRows(
                f"row 0 mixes devices: {entry(paths[0])} on {homes[0]}, {entry(path)} on {home}; "
                "keep all of a row in one library, on one device."
            )


def common(dtypes: Iterator[Any]) -> Any:
    """One dtype for a leaf: that of the rows, or the narrowest that holds them all."""
    found = next(dtypes)
    for dtype in dtypes:
        found = found if dtype == found else promote(found, dtype)
    return found


def rebuilt(record: Any, values: Iterator[Any]) -> Any:
    """A record like this one, with its leaves replaced in order."""
    if isinstance(record, OrderedDict):
        fresh = OrderedDict((key, rebuilt(value, values)) for key, value in record.items())
        if isinstance(getattr(record, "_metadata", None), Mapping):  # module versions, for load_state_dict
            fresh._metadata = record._metadata.copy()  # type: ignore[attr-defined]
        return fresh
    if isinstance(record, Mapping):
        return {key: rebuilt(value, values) for key, value in record.items()}
    if isinstance(record, (list, tuple)) and not is_vector(record):
        fresh_list = [rebuilt(value, values) for value in record]
        return tuple(fresh_list) if isinstance(record, tuple) else fresh_list
    return next(values)


def entry(path: Path) -> str:
    """The leaf's name in a message."""
    return f"entry {'.'.join(map(str, path))!r}" if path else "vector"


def place(row: int, path: Path) -> str:
    """Row and leaf, in a message."""
    return f"row {row}, {entry(path)}," if path else f"row {row}"
