"""The form that replies must have, and replies read in it where they lie, without a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from randeigen.bridges.quoting import quoted
from randeigen.rows.formats import npy
from randeigen.rows.formats.io import UnreadableFile, is_float, nbytes, storage
from randeigen.rows.write import stored

MAX_FLOAT_BYTES = 8  # of one number; wider ones are no array that a model holds
BFLOAT16 = "bfloat16"


class Refused(Exception):
    """A reply that is not of the form, and why."""


class Leaf(NamedTuple):
    """What one array must be."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]  # of a bfloat16 array that of the numbers read, float32
    bfloat16: bool = False

    def __str__(self) -> str:
        return f"{BFLOAT16 if self.bfloat16 else self.dtype} {list(self.shape)}"


def form_of(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Leaf]:
    """The form of a model."""
    return {name: Leaf(array.shape, array.dtype.newbyteorder("=")) for name, array in arrays.items()}


def matched(form: Mapping[str, Leaf], arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays in the form's order; Refused unless names, shapes and kinds of numbers are the form's."""
    check_names(form, arrays)
    for name, leaf in form.items():
        check_leaf(name, leaf, arrays[name].shape, arrays[name].dtype)
    return {name: arrays[name] for name in form}


def check_names(form: Mapping[str, Leaf], names: Mapping[str, Any]) -> None:
    """Refused unless the names are those of the form."""
    if missing := [name for name in form if name not in names]:
        more = f", nor {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise Refused(f"it has no array {quoted(missing[0])}{more}")
    if len(names) > len(form):
        extra = [name for name in names if name not in form]
        more = f" and {len(extra) - 1:,} more" if len(extra) > 1 else ""
        raise Refused(f"it has an array {quoted(extra[0])}{more} that the model has not")


def check_leaf(name: str, leaf: Leaf, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refused unless shape and kind of numbers are the leaf's; floats of any usual width stand for floats."""
    if shape != leaf.shape:
        raise Refused(f"array {quoted(name)} has shape {_short(shape)}, the model has {_short(leaf.shape)}")
    both_float = dtype.kind == leaf.dtype.kind == "f" and dtype.itemsize <= MAX_FLOAT_BYTES
    if not both_float and dtype.newbyteorder("=") != leaf.dtype:
        raise Refused(f"array {quoted(name)} is {quoted(dtype)[1:-1]}, the model has {leaf.dtype}")


def npy_view(data: bytes, *, bfloat16: bool = False) -> NDArray[Any]:
    """The array in the bytes of an .npy file, read-only and not copied; bfloat16 widened to float32.

    What the header declares is compared with the bytes there are before anything else is done.
    """
    try:
        code, shape, fortran, skip = npy.header(lambda count: _known(data[:count], bfloat16), in_strips=False)
        if skip + nbytes(code, shape) != len(data):
            declared = f"{code} {_short(shape)}, {nbytes(code, shape):,} bytes"
            raise Refused(f"an array declares {declared}, found {len(data) - skip:,}")
    except UnreadableFile as why:
        raise Refused(f"an array {why}") from why
    values = np.frombuffer(data, storage(code), offset=skip).reshape(shape, order="F" if fortran else "C")
    if not bfloat16:
        return values
    if code != "U16":
        raise Refused(f"an array is {code}, the model has {BFLOAT16}")
    return (values.astype(np.uint32) << 16).view(np.float32)


def _known(head: bytes, bfloat16: bool) -> bytes:
    """A header that numpy can name: it has no bfloat16 and writes two bytes without a meaning."""
    for unnamed in (b"'|V2'", b"'<V2'"):
        head = head.replace(unnamed, b"'<u2'") if bfloat16 else head
    return head


def npy_bytes(array: NDArray[Any], *, bfloat16: bool = False) -> bytes:
    """The bytes of an .npy file, made with one copy of the numbers."""
    array = np.asarray(stored(array, "BF16") if bfloat16 else array, order="C")
    head = _Sink()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "|V2" if bfloat16 else array.dtype.str, "fortran_order": False, "shape": array.shape}
    )
    return b"".join((*head.parts, array.reshape(-1).data.cast("B") if array.size else b""))


class _Sink:
    """What a header is written to."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.parts.append(data)


def in_dtype(leaf: Leaf, array: NDArray[Any]) -> NDArray[Any]:
    """An average in the model's dtype; what does not fit a narrow float becomes its largest number."""
    if array.dtype == leaf.dtype:
        return array
    if leaf.dtype.kind == "f" and leaf.dtype.itemsize < array.dtype.itemsize:
        most = float(np.finfo(leaf.dtype).max)
        array = np.clip(array, -most, most)
    return array.astype(leaf.dtype)


def is_averaged(leaf: Leaf) -> bool:
    """Whether the leaf holds floats, which are averaged; integers and bools are decided by vote."""
    return leaf.bfloat16 or is_float(leaf.dtype.str)


def _short(shape: tuple[int, ...]) -> str:
    return quoted(list(shape))[1:-1]
