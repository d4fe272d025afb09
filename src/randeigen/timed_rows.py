"""Gaussian rows in every form that `aggregate` takes, each with the plain mean that it is compared with."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from randeigen.backend.chunking import parallel_map
from randeigen.errors import BadParameter, MissingExtra
from randeigen.rows.write import write_safetensors

Dtype: TypeAlias = Literal["float16", "bfloat16", "float32", "float64"]
Form: TypeAlias = Literal["matrix", "vectors", "state_dicts", "files"]

# Relative sizes of the 62 tensors of a ResNet-18 with 1,000 classes: stem, 19 more convolutions and the last
# layer, each convolution followed by a norm layer's two.
CONVOLUTIONS = (
    *(9408, *4 * (36864,), 73728, *3 * (147456,), 8192),
    *(294912, *3 * (589824,), 32768, 1179648, *3 * (2359296,), 131072),
)
CHANNELS = (64,) * 5 + (128,) * 5 + (256,) * 5 + (512,) * 5
LEAVES = (*(size for c, k in zip(CONVOLUTIONS, CHANNELS, strict=True) for size in (c, k, k)), 512000, 1000)


class TimedRows(NamedTuple):
    """Rows, and what is timed beside them."""

    rows: Any  # what `aggregate` is given
    mean: Callable[[], Any]  # the plain mean of the same rows, as one would write it
    wait: Callable[[], None]  # until the device has done what was asked of it
    answer_bytes: int


@contextmanager
def timed_rows(
    n: int, d: int, dtype: Dtype = "float32", device: str = "cpu", seed: int = 0, form: Form = "matrix"
) -> Iterator[TimedRows]:
    """n Gaussian rows of d numbers. Vectors and matrices are numpy's on the CPU, where it has the dtype.

    The plain mean of vectors and state_dicts stacks them; that of files adds up one after the other.
    """
    _check(n, d, dtype, device, form)
    with_torch = device != "cpu" or dtype == "bfloat16" or form == "state_dicts"
    torch: Any = _torch(device) if with_torch else None
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None
    answer_bytes = d * {"float64": 8, "float32": 4}.get(dtype, 2)
    draw = _tensors(torch, dtype, device, seed) if torch else _arrays(dtype, seed)
    if form == "files":
        with tempfile.TemporaryDirectory(prefix="randeigen-") as folder:
            yield TimedRows(*_files(n, d, dtype, draw, Path(folder)), wait, answer_bytes)
        return
    rows, mean = _matrix(n, d, draw) if form == "matrix" else _parts(n, d, draw, form, torch)
    yield TimedRows(rows, mean, wait, answer_bytes)


def _check(n: int, d: int, dtype: str, device: str, form: str) -> None:
    if n < 1 or d < 1:
        raise BadParameter(f"n={n}, d={d}; give at least one row and one column.")
    for name, value, known in (("dtype", dtype, get_args(Dtype)), ("form", form, get_args(Form))):
        if value not in known:
            raise BadParameter(f"{name}={value!r} is not known; choose one of {', '.join(known)}.")
    if form == "files" and device != "cpu":
        raise BadParameter(f"files are read by the CPU, found device={device!r}; use cpu.")
    if form == "state_dicts" and d < len(LEAVES):
        raise BadParameter(
            f"a state_dict has {len(LEAVES)} tensors here, found d={d}; give at least as many."
        )


def _torch(device: str) -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtra("this device, dtype or form needs torch; install randeigen[torch].") from None
    if device != "cpu" and not torch.cuda.is_available():
        raise BadParameter(f"device={device!r}, but torch sees no CUDA device here; use cpu.")
    return torch


def _arrays(dtype: str, seed: int) -> Callable[..., Any]:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Any:
        rows = np.empty(shape, dtype=dtype)
        flat = list(rows.reshape(-1, shape[-1]))

        def fill(lines: tuple[list[Any], np.random.Generator]) -> None:
            for row in lines[0]:
                row[:] = lines[1].standard_normal(
                    shape[-1], dtype=np.float64 if dtype == "float64" else np.float32
                )

        parallel_map(fill, list(zip((flat[::2], flat[1::2]), rng.spawn(2), strict=True)))
        return rows

    return draw


def _tensors(torch: Any, dtype: str, device: str, seed: int) -> Callable[..., Any]:
    rng = torch.Generator(device).manual_seed(seed)
    return lambda *shape: torch.empty(shape, dtype=getattr(torch, dtype), device=device).normal_(
        generator=rng
    )


def _matrix(n: int, d: int, draw: Callable[..., Any]) -> tuple[Any, Callable[[], Any]]:
    rows = draw(n, d)
    return rows, lambda: rows.mean(0)


def _parts(n: int, d: int, draw: Callable[..., Any], form: str, torch: Any) -> tuple[Any, Callable[[], Any]]:
    """Rows that are pieces of memory of their own."""
    stack = torch.stack if torch else np.stack
    if form == "vectors":
        rows = [draw(d) for _ in range(n)]
        return rows, lambda: stack(rows).mean(0)
    sizes = leaf_sizes(d)
    dicts = [{f"layer.{i}": draw(size) for i, size in enumerate(sizes)} for _ in range(n)]
    return dicts, lambda: {key: stack([row[key] for row in dicts]).mean(0) for key in dicts[0]}


def leaf_sizes(d: int) -> list[int]:
    """How many numbers each of the 62 tensors of a state_dict of d numbers holds."""
    ends = np.rint(np.cumsum(LEAVES) * ((d - len(LEAVES)) / sum(LEAVES))).astype(int)
    sizes: list[int] = (1 + np.diff(ends, prepend=0)).tolist()
    return sizes


def _files(
    n: int, d: int, dtype: str, draw: Callable[..., Any], folder: Path
) -> tuple[list[Path], Callable[[], Any]]:
    """One .safetensors file a row."""
    paths = [folder / f"{i}.safetensors" for i in range(n)]
    code = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}[dtype]
    for path in paths:
        write_safetensors(path, {"update": draw(d)}, {"update": code})
    skip = os.path.getsize(paths[0]) - d * {"float64": 8, "float32": 4}.get(dtype, 2)  # the header

    def mean() -> Any:
        total = np.zeros(d, np.float64 if dtype == "float64" else np.float32)
        for path in paths:
            total += _numbers(path, skip, dtype)
        return total / n

    return paths, mean


def _numbers(path: Path, skip: int, dtype: str) -> Any:
    """The numbers of a file, read whole; bfloat16 widened to float32."""
    if dtype != "bfloat16":
        return np.fromfile(path, dtype, offset=skip)
    return (np.fromfile(path, np.uint16, offset=skip).astype(np.uint32) << 16).view(np.float32)
