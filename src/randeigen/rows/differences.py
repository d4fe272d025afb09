"""How records differ, in words: what was found, what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from randeigen.backend.arrays import dtype_name, kind
from randeigen.errors import BadRows
from randeigen.rows.walk import Path, Unreadable, entry, location

Entries: TypeAlias = tuple[tuple[Any, ...], ...]  # of a Record
Leaf: TypeAlias = tuple[Any, tuple[int, ...], Any]  # home, shape, dtype
MODEL = "all rows must come from the same model"


def leaves_of(entries: Entries) -> dict[Path, Leaf]:
    """Home, shape and dtype by path."""
    return {entry[0]: entry[1:] for entry in entries if len(entry) > 2}


def kind_name(dtype: Any) -> str:
    """Floats are cast to each other; integers of another width are another kind."""
    return "float" if kind(dtype) == "float" else dtype_name(dtype)


def difference(
    first: Mapping[Path, Leaf], other_leaves: Mapping[Path, Leaf], row: int | None, other: int | None
) -> tuple[str, str]:
    """The first way in which `other_leaves` departs from `first`, and what to do.

    Rows are named by index, or if None as "it" and "most rows".
    """
    me = "it" if row is None else f"row {row}"
    them, has, are = ("most rows", "have", "are") if other is None else (f"row {other}", "has", "is")
    lacks = next((path for path in first if path not in other_leaves), None)
    extra = next((path for path in other_leaves if path not in first), None)
    if lacks is not None and extra is not None and not (lacks and extra):
        names = ["an array", "a record"] if lacks else ["a record", "an array"]
        return f"{me} is {names[0]}, {them} {are} {names[1]}", "pass all rows in one form"
    if lacks is not None:
        return f"{me} has no {entry(lacks)}, {them} {has}", MODEL
    if extra is not None:
        return f"{me} has {entry(extra)}, {them} {has} not", MODEL
    path = next(path for path in first if not same(first[path], other_leaves[path]))
    return unlike(
        first[path], other_leaves[path], path, me if row is None else location(row, path), them, has
    )


def unlike(first: Leaf, other: Leaf, path: Path, where: str, them: str, has: str) -> tuple[str, str]:
    """How one leaf differs, and what to do."""
    where = entry(path) if path and where == "it" else where
    if (first[0] is None) != (other[0] is None):
        names = ["numpy array" if leaf[0] is None else "torch tensor" for leaf in (other, first)]
        return f"{where} is a {names[0]}, in {them} it is a {names[1]}", "pass all rows in one form"
    if first[0] != other[0]:
        return f"{where} is on {other[0]}, in {them} on {first[0]}", "move rows to one device"
    if first[1] != other[1] and len(first[1]) == len(other[1]) == 1 and not path:
        return f"{where} has {other[1][0]:,} columns, {them} {has} {first[1][0]:,}", MODEL
    if first[1] != other[1]:
        return f"{where} has shape {tuple(other[1])}, in {them} {tuple(first[1])}", MODEL
    return f"{where} is {dtype_name(other[2])}, in {them} {dtype_name(first[2])}", MODEL


def same(first: Leaf, second: Leaf) -> bool:
    """Whether two leaves agree in library, device, shape and kind."""
    return first[:2] == second[:2] and kind_name(first[2]) == kind_name(second[2])


def unreadable(why: Unreadable) -> str:
    """A reason as it is given for one row."""
    return f"unreadable: {entry(why.path) if why.path else 'it'} {why.reason}"


def none_readable(n: int, refused: Mapping[int, Unreadable]) -> str:
    """What to say if no row can be read."""
    row, why = min(refused.items())
    many = "" if n == 1 else f"none of the {n:,} rows can be read: "
    return f"{many}{location(row, why.path)} {why.reason}; {why.advice}."


def without_floats(row: int, leaves: Mapping[Path, Any]) -> str:
    """What to say if most rows hold nothing to average."""
    if list(leaves) == [()] and kind(leaves[()][2]) != "float":
        name = dtype_name(leaves[()][2])
        return f"rows must be floating-point, row {row} has dtype {name}; cast it first, to float32 say."
    return f"rows must hold floating-point numbers, found none in row {row}; pass float arrays."


def one_device(row: int, homes: Mapping[Path, Any]) -> None:
    """Raise BadRows unless the float leaves of most rows share library and device."""
    first = next(iter(homes))
    for path, home in homes.items():
        if home != homes[first]:
            names = ["numpy" if device is None else device for device in (homes[first], home)]
            raise BadRows(
                f"row {row} mixes devices: {entry(first)} on {names[0]}, {entry(path)} on {names[1]}; "
                "keep all of a row in one library, on one device."
            )
