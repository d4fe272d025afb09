"""Files as hostile senders may write them, for `what_a_sender_can_cost`."""

from __future__ import annotations

import struct
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from randeigen.rows import write_answer
from randeigen.rows.formats.headers import FREE_HEADER_BYTES, MAX_TIMES_MEDIAN

SHAPES = {"body": (256, 256), "head": (64, 256)}  # of the leaves of a file
LEAVES = {f"layer.{index}": (16, 32) for index in range(200)}  # of a file with a long header

Leaves = dict[str, Any]
Write = Callable[[Path, Leaves], None]


def save(path: Path, leaves: Leaves) -> None:
    """As an honest sender does."""
    write_answer(path, next(iter(leaves.values())) if path.suffix == ".npy" else leaves)


def deflated(path: Path, leaves: Leaves) -> None:
    np.savez_compressed(path, **leaves)


def in_fortran_order(path: Path, leaves: Leaves, pack: Any = np.savez) -> None:
    arrays = {name: np.asfortranarray(leaf) for name, leaf in leaves.items()}
    if path.suffix == ".npy":
        np.save(path, arrays["body"])
    else:
        pack(path, **arrays)


def in_fortran_order_deflated(path: Path, leaves: Leaves) -> None:
    in_fortran_order(path, leaves, np.savez_compressed)


def wide(path: Path, leaves: Leaves) -> None:
    save(path, {name: leaf.astype(np.float64) for name, leaf in leaves.items()})


def names(count: int) -> Write:
    """A header of names without numbers."""

    def write(path: Path, leaves: Leaves) -> None:
        nothing = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
        header = "{" + ",".join(f'"{index:x}":{nothing}' for index in range(count)) + "}"
        path.write_bytes(struct.pack("<Q", len(header)) + header.encode())

    return write


def members(count: int) -> Write:
    """An archive of arrays without numbers."""

    def write(path: Path, leaves: Leaves) -> None:
        array = BytesIO()
        np.save(array, np.zeros(0, np.float32))
        with zipfile.ZipFile(path, "w") as archive:
            for index in range(count):
                archive.writestr(f"{index:x}.npy", array.getvalue())

    return write


def brackets(path: Path, leaves: Leaves) -> None:
    header = b'{"a":' + b"[" * 2**22
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def long_header(path: Path, leaves: Leaves) -> None:
    text = b"(" * 10**7
    path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text)


def bomb(path: Path, leaves: Leaves) -> None:
    np.savez_compressed(path, body=np.zeros((4096, 4096), np.float32), head=np.zeros(3, np.float32))


def sparse(path: Path, leaves: Leaves) -> None:
    with path.open("wb") as file:
        shape = {"descr": "<f4", "fortran_order": False, "shape": (5 * 10**9,)}
        np.lib.format.write_array_header_1_0(file, shape)
        file.truncate(20 * 10**9 + file.tell())


NAME_BYTES, MEMBER_BYTES = 55, 52  # of header, that one of the names or members above takes at most
MOST_NAMES = FREE_HEADER_BYTES // NAME_BYTES, MAX_TIMES_MEDIAN * len(LEAVES)  # that are still parsed
MOST_MEMBERS = FREE_HEADER_BYTES // MEMBER_BYTES, MAX_TIMES_MEDIAN * len(LEAVES)

# By what a sender does: the suffix, what honest senders do, what the hostile one does, and all files' leaves.
FILES: dict[str, tuple[str, Write, Write, dict[str, tuple[int, int]]]] = {
    "a header of 295,000 names": (".safetensors", save, names(295_000), SHAPES),
    "as many names as are parsed": (".safetensors", save, names(MOST_NAMES[0]), SHAPES),
    "twice as many names as others": (".safetensors", save, names(MOST_NAMES[1]), LEAVES),
    "a header of brackets": (".safetensors", save, brackets, SHAPES),
    "float64 among float32": (".safetensors", save, wide, SHAPES),
    "an archive of 100,000 members": (".npz", save, members(100_000), SHAPES),
    "as many members as are parsed": (".npz", save, members(MOST_MEMBERS[0]), SHAPES),
    "twice as many members as others": (".npz", save, members(MOST_MEMBERS[1]), LEAVES),
    "deflated": (".npz", save, deflated, SHAPES),
    "Fortran order": (".npz", save, in_fortran_order, SHAPES),
    "Fortran order, deflated": (".npz", save, in_fortran_order_deflated, SHAPES),
    "Fortran order among deflated": (".npz", deflated, in_fortran_order_deflated, SHAPES),
    "a deflated bomb": (".npz", save, bomb, SHAPES),
    "a deflated bomb among deflated": (".npz", deflated, bomb, SHAPES),
    "Fortran order, one array": (".npy", save, in_fortran_order, SHAPES),
    "a header of 10 MB": (".npy", save, long_header, SHAPES),
    "20 GB of nothing": (".npy", save, sparse, SHAPES),
}


def written(
    folder: Path, n: int, suffix: str, ways: Sequence[Write], shapes: dict[str, tuple[int, int]]
) -> list[Path]:
    """n files in a folder of their own, each in its sender's way."""
    rng, inside = np.random.default_rng(0), Path(tempfile.mkdtemp(dir=folder))
    paths = [inside / f"{index}{suffix}" for index in range(n)]
    for path, write in zip(paths, ways, strict=True):
        write(path, {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()})
    return paths
