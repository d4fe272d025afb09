"""What can be wrong with a file: each of its fields, its bytes, its format."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz import forms

Array = np.ndarray[Any, Any]
Rng = np.random.Generator

SUFFIXES = (".npy", ".npz", ".safetensors")
CODES = {"float16": "F16", "float32": "F32", "float64": "F64", "int64": "I64", "bool": "BOOL"}


def leaves_of(row: Array, place: int, carried: bool) -> dict[str, Array]:
    """A row as named arrays, with integers beside them in some runs."""
    leaves: dict[str, Array] = dict(forms.cut(row))
    if carried:
        leaves |= {"steps": np.array([place, 3]), "flag": np.array(place % 2 == 0)}
    return leaves


def npy(array: Array) -> bytes:
    """An array as .npy."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=True)
    return stream.getvalue()


def npz(arrays: dict[str, Array], method: int = zipfile.ZIP_STORED) -> bytes:
    """Arrays as .npz."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, array in arrays.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), npy(array), method)
    return stream.getvalue()


def safetensors(arrays: dict[str, Array], edit: Callable[[dict[str, Any]], Any] | None = None) -> bytes:
    """Arrays as .safetensors; `edit` changes the header, or gives the text to stand in its place."""
    header, at = {}, 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": CODES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    changed = edit(header) if edit else None
    text = (changed if isinstance(changed, str) else json.dumps(header)).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in arrays.values())


def written(rng: Rng, suffix: str, row: Array, place: int, carried: bool) -> bytes:
    """One honest sender's file, in any of the ways to write it."""
    if suffix == ".npy":
        d = len(row)
        return npy(np.asfortranarray(row.reshape(2, d // 2)) if d % 2 == 0 and carried else row.reshape(
            (2, d // 2) if d % 2 == 0 and carried else (d,)))  # fmt: skip
    arrays = leaves_of(row, place, carried)
    if suffix == ".npz":
        return npz(arrays, zipfile.ZIP_DEFLATED if rng.random() < 0.4 else zipfile.ZIP_STORED)
    return safetensors(arrays)


# Mutations of bytes, whatever they are.


def truncated(rng: Rng, data: bytes) -> bytes:
    return data[: int(rng.integers(len(data)))]


def extended(rng: Rng, data: bytes) -> bytes:
    return data + rng.bytes(int(rng.integers(1, 100)))


def flipped(rng: Rng, data: bytes) -> bytes:
    found = bytearray(data)
    reach = len(found) if rng.random() < 0.4 else min(len(found), 200)
    for at in rng.integers(reach, size=int(rng.integers(1, 9))):
        found[at] ^= 1 << int(rng.integers(8))
    return bytes(found)


def overwritten(rng: Rng, data: bytes) -> bytes:
    at, count = int(rng.integers(len(data))), int(rng.integers(1, 9))
    filler = [b"\0", b"\xff", rng.bytes(1)][int(rng.integers(3))] * count
    return data[:at] + filler + data[at + count :]


def spliced(rng: Rng, data: bytes) -> bytes:
    a, b = sorted(int(at) for at in rng.integers(len(data) + 1, size=2))
    return data[:b] + data[a:b] * int(rng.integers(0, 3)) + data[b:]


def emptied(rng: Rng, data: bytes) -> bytes:
    return b""


def noise(rng: Rng, data: bytes) -> bytes:
    return rng.bytes(int(rng.integers(1, 400)))


BYTES = (truncated, extended, flipped, flipped, overwritten, spliced, emptied, noise)

# Mutations of the fields of a format.

DESCRIPTIONS = (
    "'<f8'",
    "'<f2'",
    "'>f4'",
    "'|O'",
    "'<c8'",
    "'<U4'",
    "'<i4'",
    "'|V8'",
    "[('a', '<f4')]",
    "None",
)
SIDES = (
    "(-1,)",
    "(0,)",
    "()",
    "(1,)",
    "(4611686018427387904,)",
    "(2, 3)",
    "'x'",
    "(True,)",
    "(1.5,)",
    "None",
)


def npy_fields(rng: Rng, row: Array) -> bytes:
    """A header with one field that is not the array's."""
    header = {"descr": repr(row.dtype.str), "fortran_order": "False", "shape": f"({len(row)},)"}
    field = str(rng.choice(list(header)))
    header[field] = str(rng.choice({"descr": DESCRIPTIONS, "shape": SIDES}.get(field, ("True", "2", "'x'"))))
    if rng.random() < 0.1:
        del header[field]
    text = "{" + ", ".join(f"'{key}': {value}" for key, value in header.items()) + "}"
    if rng.random() < 0.1:
        text = "(" * int(rng.integers(1, 3000)) + text
    version = bytes(rng.choice([[1, 0], [2, 0], [3, 0], [9, 9]], p=[0.7, 0.1, 0.1, 0.1]).astype(np.uint8))
    body = text.encode() + b" " * (-len(text) % 64) + b"\n"
    length = struct.pack("<H" if version == b"\1\0" else "<I", len(body) if rng.random() < 0.9 else 60000)
    return b"\x93NUMPY" + version + length + body + row.tobytes()


def npz_fields(rng: Rng, arrays: dict[str, Array]) -> bytes:
    """An archive with members that no honest one has, or a directory that lies about them."""
    draw = int(rng.integers(9))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", npy(array))
        if draw == 0:
            archive.writestr("../evil.npy", npy(np.ones(3)))
        elif draw == 1:
            archive.writestr("notes.txt", "hello")
        elif draw == 2:
            archive.writestr("objects.npy", npy(np.array([{}, None], dtype=object)))
        elif draw == 3:
            archive.writestr(
                "b.npy", npy(np.ones(4)), [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA][int(rng.integers(2))]
            )
        elif draw == 4:
            for extra in range(int(rng.integers(1, 300))):
                archive.writestr(f"{extra}.npy", b"")
        elif draw == 5:
            archive.comment = rng.bytes(50)
    data = bytearray(stream.getvalue())
    if draw >= 6:  # the central directory: sizes, checksum, offset, method, flags
        at = data.rfind(b"PK\1\2")
        place, wide = [(8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (42, 4)][int(rng.integers(7))]
        values = [0, 1, 8, 99, 2 ** (8 * wide) - 1, int(rng.integers(2 ** (8 * wide)))]
        data[at + place : at + place + wide] = int(rng.choice(values)).to_bytes(wide, "little")
    return bytes(data)


def safetensors_fields(rng: Rng, arrays: dict[str, Array]) -> bytes:
    """A header with one field that is not so."""
    wrong: list[Any] = [
        None,
        -1,
        1.5,
        "x",
        [],
        {},
        [-1],
        [2**62],
        [1] * 40,
        [[1]],
        True,
        [True],
        [0, 0],
        [8, 0],
        "F8_E4M3",
    ]

    def edit(header: dict[str, Any]) -> Any:
        name = str(rng.choice(list(header)))
        field = str(rng.choice(["dtype", "shape", "data_offsets"]))
        draw = int(rng.integers(9))
        if draw < 4:
            header[name][field] = wrong[int(rng.integers(len(wrong)))]
        elif draw == 4:
            del header[name][field]
        elif draw == 5:
            header["__metadata__"] = [{"a": 1}, [], {"a": "b"}, "x"][int(rng.integers(4))]
        elif draw == 6:
            text = json.dumps(header)
            return text[:-1] + "," + text[1:]  # every name twice
        elif draw == 7:
            header["\ud800" if rng.random() < 0.5 else "x" * 1000] = header.pop(name)
        else:
            return str(rng.choice(["[" * 5000, "{}", "NaN", '{"a": NaN}', "", " ", "null", '{"a": 1e999}']))
        return None

    data = safetensors(arrays, edit)
    if rng.random() < 0.1:
        data = struct.pack("<Q", int(rng.choice([0, 1, 2**24 + 1, 2**62]))) + data[8:]
    return data


def hostile(rng: Rng, suffix: str, row: Array, place: int, carried: bool) -> bytes:
    """What a Byzantine sender puts in its file."""
    draw = rng.random()
    if draw < 0.15:
        other = str(rng.choice(SUFFIXES))
        return written(rng, other, row[: int(rng.integers(1, len(row) + 1))], place, carried)
    if draw < 0.55:
        if suffix == ".npy":
            return npy_fields(rng, row)
        arrays = leaves_of(row, place, carried)
        return npz_fields(rng, arrays) if suffix == ".npz" else safetensors_fields(rng, arrays)
    return BYTES[int(rng.integers(len(BYTES)))](rng, written(rng, suffix, row, place, carried))
