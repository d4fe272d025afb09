"""The same numbers in every form the door accepts, and senders who do not send that form."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

Array = np.ndarray[Any, Any]
NUMPY = ("float16", "float32", "float64")


class Foreign:
    """An array of another library, as it is seen from here."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return self._array.astype(dtype) if dtype else self._array


def cast(rows: Array, dtype: str) -> Array:
    """Rows in a dtype of numpy; bfloat16 is kept as the float32 numbers it can hold."""
    with np.errstate(all="ignore"):
        if dtype != "bfloat16":
            return rows.astype(dtype)
        bits = rows.astype(np.float32).view(np.uint32)
        return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def _read_only(rows: Array) -> Array:
    rows = rows.copy()
    rows.flags.writeable = False
    return rows


def _unaligned(rows: Array) -> Array:
    raw = np.frombuffer(b"\0" + rows.tobytes(), np.uint8)[1:]
    return raw.view(rows.dtype).reshape(rows.shape)


def _memmap(rows: Array) -> Array:
    with tempfile.NamedTemporaryFile(suffix=".npy", delete=False) as file:
        np.save(file, rows)
    found = np.load(file.name, mmap_mode="r")
    os.unlink(file.name)
    return found


def _shaped(rows: Array) -> list[Array]:
    d = rows.shape[1]
    side = next(side for side in (3, 2, 1) if d % side == 0)
    return [row.reshape(side, d // side) for row in rows]


def cut(row: Any) -> dict[str, Any]:
    """A row as named leaves: two, or one where it is a single number, with what is carried beside them."""
    half = len(row) // 2
    return {"body.weight": row[:half], "head": row[half:]} if half else {"head": row}


def _carrying(row: Array, place: int) -> dict[str, Any]:
    leaves: dict[str, Any] = cut(row)
    leaves["steps"] = np.int64(place) if place % 2 else np.asarray(place)
    leaves["mask"] = np.array([place % 2 == 0, True])
    leaves["empty"] = np.zeros((0, 3), row.dtype)
    return leaves


def _nested(row: Array) -> dict[str, Any]:
    leaves = cut(row)
    head = leaves.pop("head")
    return {"body": {"more": leaves, "layers": [head]}}


ARRAYS: dict[str, Callable[[Array], Any]] = {
    "array": lambda rows: rows,
    "fortran": np.asfortranarray,
    "strided": lambda rows: np.repeat(rows, 2, axis=1)[:, ::2],
    "reversed": lambda rows: rows[::-1, ::-1].copy()[::-1, ::-1],
    "big-endian": lambda rows: rows.astype(rows.dtype.newbyteorder(">")),
    "read-only": _read_only,
    "unaligned": _unaligned,
    "memmap": _memmap,
    "longdouble": lambda rows: rows.astype(np.longdouble),
    "foreign": Foreign,
}
LISTS: dict[str, Callable[[Array], Any]] = {
    "vectors": list,
    "tuple": tuple,
    "foreign vectors": lambda rows: [Foreign(row) for row in rows],
    "plain lists": lambda rows: rows.tolist(),
    "shaped": _shaped,
    "dicts": lambda rows: [cut(row) for row in rows],
    "carrying dicts": lambda rows: [_carrying(row, place) for place, row in enumerate(rows)],
    "ordered dicts": lambda rows: [OrderedDict(cut(row)) for row in rows],
    "nested dicts": lambda rows: [_nested(row) for row in rows],
    "lists of arrays": lambda rows: [list(cut(row).values()) for row in rows],
}
TENSORS: dict[str, Callable[[Any], Any]] = {}
TENSOR_LISTS: dict[str, Callable[[Any], Any]] = {}

if torch is not None:

    def _negative_bit(rows: Any) -> Any:
        """The same numbers, stored negated with a bit that says so: rows of a dtype that complex has."""
        if rows.dtype not in (torch.float32, torch.float64):
            return rows
        return torch.complex(torch.zeros_like(rows), -rows).conj().imag

    def _carrying_tensors(rows: Any) -> Any:
        found = []
        for place, row in enumerate(rows):
            leaves = OrderedDict(cut(row))
            leaves["num_batches_tracked"] = torch.tensor(place, device=rows.device)
            leaves["mask"] = torch.tensor([place % 2 == 0], device=rows.device)
            found.append(leaves)
        return found

    TENSORS |= {
        "tensor": lambda rows: rows,
        "turned tensor": lambda rows: rows.T.contiguous().T,
        "strided tensor": lambda rows: rows.repeat_interleave(2, dim=1)[:, ::2],
        "tensor with gradient": lambda rows: rows.clone().requires_grad_(),
        "negative tensor": _negative_bit,
        "parameter": lambda rows: torch.nn.Parameter(rows.clone()),
    }
    TENSOR_LISTS |= {
        "tensors": list,
        "state_dicts": lambda rows: [OrderedDict(cut(row)) for row in rows],
        "carrying state_dicts": _carrying_tensors,
    }


def names(dtype: str, device: str = "cpu") -> list[str]:
    """The forms that can hold this dtype."""
    tensors = [*TENSORS, *TENSOR_LISTS]
    if device != "cpu" or dtype == "bfloat16":
        return tensors
    return [*ARRAYS, *LISTS, *tensors] if tensors else [*ARRAYS, *LISTS]


def formed(rows: Array, dtype: str, form: str, device: str = "cpu") -> Any:
    """The rows, which hold numbers of this dtype, in this form."""
    if form in ARRAYS:
        return ARRAYS[form](rows)
    if form in LISTS:
        return LISTS[form](rows)
    tensor = torch.from_numpy(rows.copy()).to(dtype=getattr(torch, dtype), device=device)
    return (TENSORS | TENSOR_LISTS)[form](tensor)


def odd_one(odd: str, row: Any, place: int) -> Any:
    """What a sender sends who does not send a row like the others'; `row` is what it would have been."""
    record = isinstance(row, dict)
    if odd == "none":
        return None
    if odd == "text":
        return "surprise"
    if odd == "number":
        return 3.5
    if odd == "empty":
        return {} if record else []
    if odd == "integers":
        return {key: [1, 2] for key in row} if record else np.arange(3)
    if odd == "objects":
        return np.array([None, "x"], dtype=object)
    if odd == "complex":
        return np.ones(3, complex)
    if odd == "endless":
        endless: list[Any] = []
        endless.append(endless)
        return endless
    if odd == "masked":
        return np.ma.masked_array(np.ones(3), [True, False, True])
    if odd == "other form":
        return [np.ones(2), np.ones(3)] if record else {"a": np.ones(2)}
    if not record:  # one number longer
        return np.append(joined(row).astype(np.float64), 1.0)
    found = dict(row)
    last = next(reversed(found))
    if odd == "missing":
        del found[last]
    elif odd == "renamed":
        found["nobody's"] = found.pop(last)
    elif odd == "extra":
        found["extra"] = found[last]
    else:
        found[last] = np.ones((2, 2, 2))
    return found


ODD = (
    *("none", "text", "number", "empty", "integers", "objects", "complex", "endless", "masked", "other form"),
    *("missing", "renamed", "extra", "longer"),
)


def _is_tensor(thing: Any) -> bool:
    return torch is not None and isinstance(thing, torch.Tensor)


def joined(answer: Any) -> Array:
    """The floating-point numbers of an answer in any form, in order, as one float64 vector."""
    found = [leaf for leaf in leaves(answer) if leaf.dtype.kind == "f"]
    return np.concatenate([leaf.reshape(-1).astype(np.longdouble) for leaf in found])


def leaves(answer: Any) -> list[Array]:
    """Every array of an answer, as numpy knows it; bfloat16 widened."""
    if isinstance(answer, dict):
        return [leaf for value in answer.values() for leaf in leaves(value)]
    if isinstance(answer, (list, tuple)):
        return [leaf for value in answer for leaf in leaves(value)]
    if _is_tensor(answer):
        answer = answer.detach().cpu()
        return [(answer.float() if answer.dtype == torch.bfloat16 else answer).numpy()]
    return [np.asarray(answer)]


def fingerprint(rows: Any, depth: int = 0) -> Any:
    """What must be the same afterwards: every byte, dtype and shape, whatever holds them."""
    if depth > 9:
        return "deep"
    if isinstance(rows, np.ndarray):
        return rows.dtype.str, rows.shape, rows.strides, np.ma.getdata(rows).tobytes()
    if isinstance(rows, dict):
        return [(key, fingerprint(value, depth + 1)) for key, value in rows.items()]
    if isinstance(rows, (list, tuple)):
        return [fingerprint(value, depth + 1) for value in rows]
    if _is_tensor(rows):
        flat = rows.detach().resolve_neg().reshape(-1)
        bits = torch.empty(flat.shape, dtype=flat.dtype, device=flat.device).copy_(flat).view(torch.uint8)
        return str(rows.dtype), tuple(rows.shape), rows.requires_grad, rows.grad, bits.cpu().numpy().tobytes()
    if isinstance(rows, Foreign):
        return fingerprint(rows._array)
    return repr(rows) if isinstance(rows, (str, int, float, type(None))) else id(rows)


def shares_memory(answer: Any, rows: Any) -> bool:
    """Whether writing to the answer would write to the caller's rows."""
    if not isinstance(rows, np.ndarray) or not isinstance(answer, np.ndarray):
        return False
    return bool(np.may_share_memory(answer, rows))


def torch_is_there() -> bool:
    """Whether tensors can be made."""
    return "torch" in sys.modules and torch is not None
