"""One matrix, in every form that `as_rows` accepts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from randeigen.rows import write_answer

try:
    import torch
except ImportError:
    torch = None

SHAPES = {"body.weight": (4, 3), "body.bias": (3,), "scale": (), "head": (2, 2, 5)}
COLUMNS = 36  # of the leaves above


def matrix(n: int = 5, d: int = COLUMNS, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Rows that float16 holds exactly, so that every form can be compared bit by bit."""
    return np.random.default_rng(seed).integers(-512, 512, (n, d)).astype(dtype) / dtype(64)


def split(row: np.ndarray) -> dict[str, np.ndarray]:
    """A row cut into named leaves."""
    found, at = {}, 0
    for name, shape in SHAPES.items():
        size = int(np.prod(shape))
        found[name] = row[at : at + size].reshape(shape)
        at += size
    return found


def joined(answer: Any) -> np.ndarray:
    """An answer in any form as one vector."""
    if isinstance(answer, dict):
        answer = list(answer.values())
    if isinstance(answer, (list, tuple)):
        return np.concatenate([joined(leaf) for leaf in answer])
    if torch is not None and isinstance(answer, torch.Tensor):
        answer = answer.float().cpu().numpy() if answer.dtype == torch.bfloat16 else answer.cpu().numpy()
    return np.asarray(answer, np.float64).reshape(-1)


def memmap(rows: np.ndarray, folder: Path) -> Any:
    path = folder / "rows.npy"
    np.save(path, rows)
    return np.load(path, mmap_mode="r")


def read_only(rows: np.ndarray, folder: Path) -> Any:
    rows = rows.copy()
    rows.flags.writeable = False
    return rows


class Foreign:
    """An array of another library, as jax's are seen from here."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._array.astype(dtype) if dtype else self._array


def nested(rows: np.ndarray, folder: Path) -> Any:
    found = []
    for leaves in map(split, rows):
        body = {"weight": leaves["body.weight"], "bias": leaves["body.bias"]}
        found.append({"body": body, "scale": leaves["scale"], "head": leaves["head"]})
    return found


def saved(suffix: str, pack: Callable[..., Any] | None = None) -> Callable[[np.ndarray, Path], Any]:
    """Files of one format, one per row."""

    def form(rows: np.ndarray, folder: Path) -> Any:
        paths = [folder / f"{index}{suffix}" for index in range(len(rows))]
        for path, row in zip(paths, rows, strict=True):
            leaves = row if suffix == ".npy" else split(row)
            if pack:
                pack(path, leaves)
            else:
                write_answer(path, leaves)
        return paths

    return form


def deflated(path: Path, leaves: Any) -> None:
    np.savez_compressed(path, **leaves)


def fortran(path: Path, leaf: Any) -> None:
    np.save(path, np.asfortranarray(leaf.reshape(4, 9)))


FORMS: dict[str, Callable[[np.ndarray, Path], Any]] = {
    "array": lambda rows, _: rows,
    "fortran array": lambda rows, _: np.asfortranarray(rows),
    "big-endian array": lambda rows, _: rows.astype(">f4"),
    "float16 array": lambda rows, _: rows.astype(np.float16),
    "longdouble array": lambda rows, _: rows.astype(np.longdouble),
    "strided array": lambda rows, _: np.repeat(rows, 2, axis=1)[:, ::2],
    "read-only array": read_only,
    "memmap": memmap,
    "foreign array": lambda rows, _: Foreign(rows),
    "vectors": lambda rows, _: list(rows),
    "tuple of vectors": lambda rows, _: tuple(rows),
    "vectors of mixed width": lambda rows, _: [
        row.astype(np.float64 if index else np.float32) for index, row in enumerate(rows)
    ],
    "foreign vectors": lambda rows, _: [Foreign(row) for row in rows],
    "plain lists": lambda rows, _: rows.tolist(),
    "arrays of a shape": lambda rows, _: list(rows.reshape(-1, 4, 9)),
    "turned arrays": lambda rows, _: [np.asfortranarray(row.reshape(4, 3, 3)) for row in rows],
    "dicts": lambda rows, _: [split(row) for row in rows],
    "ordered dicts": lambda rows, _: [OrderedDict(split(row)) for row in rows],
    "nested dicts": nested,
    "lists of arrays": lambda rows, _: [list(split(row).values()) for row in rows],
    "safetensors files": saved(".safetensors"),
    "npz files": saved(".npz"),
    "deflated npz files": saved(".npz", deflated),
    "npy files": saved(".npy"),
    "fortran npy files": saved(".npy", fortran),
}

if torch is not None:
    FORMS |= {
        "tensor": lambda rows, _: torch.tensor(rows),
        "float64 tensor": lambda rows, _: torch.tensor(rows, dtype=torch.float64),
        "float16 tensor": lambda rows, _: torch.tensor(rows, dtype=torch.float16),
        "tensor with gradient": lambda rows, _: torch.tensor(rows, requires_grad=True),
        "turned tensor": lambda rows, _: torch.tensor(rows.T.copy()).T,
        "tensors": lambda rows, _: [torch.tensor(row) for row in rows],
        "turned tensors": lambda rows, _: [
            torch.tensor(row.reshape(4, 3, 3)).permute(2, 0, 1).contiguous().permute(1, 2, 0) for row in rows
        ],
        "state_dicts": lambda rows, _: [
            OrderedDict((name, torch.tensor(leaf)) for name, leaf in split(row).items()) for row in rows
        ],
    }
