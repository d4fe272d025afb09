"""Loops in C that most of the time on a CPU goes into; numpy does the same where they are missing.

They are compiled when the package is installed from its sources, if there is a C compiler, for processors of
the x86-64 family with AVX2 or AVX-512: OpenBLAS takes older kernels on those that it does not know yet.
RANDEIGEN_NATIVE=0 leaves them unused. Results agree with numpy's to rounding, not to the bit, as those of two
BLAS libraries do. They take float32 alone; numbers that overflow become infinite or NaN without a warning.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.thread_memory import memory_of_thread

SWITCH = "RANDEIGEN_NATIVE"
INTERFACE = 5  # which arguments the loops take, as kernels.c says
KINDS = {1: "AVX2", 2: "AVX-512"}  # what the loops are for, by their number
VECTORS = 8  # vectors that a covariance is multiplied with at once
AS_IT_IS, FROM_BFLOAT16, FROM_FLOAT16 = range(3)  # how `copy` converts; from half precision to float32
GRAM_ROOM = 8, 1040  # what a Gram matrix of n rows needs memory for: so many rows more, of so many columns
_ADDRESS, _COUNT, _OFFSET = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int64
_ARGUMENTS: dict[str, list[Any]] = {
    "gram": [_ADDRESS, _COUNT, _COUNT, _COUNT, _ADDRESS, _ADDRESS],
    "wide_gram": [_ADDRESS, _COUNT, _COUNT, _COUNT, _ADDRESS, _ADDRESS],
    "fold": [
        *(_ADDRESS, _COUNT, _COUNT, _ADDRESS, _COUNT, _COUNT, _COUNT),
        *(_ADDRESS, _ADDRESS, _ADDRESS, _COUNT, _ADDRESS, _COUNT),
    ],
    "covariance_times": [_ADDRESS, _COUNT, _COUNT, _COUNT, *[_ADDRESS] * 6],
    "copy": [
        *(_ADDRESS, _COUNT, _ADDRESS, _ADDRESS, _COUNT, _ADDRESS, _COUNT),
        *(_COUNT, _COUNT, _COUNT, _ADDRESS, _COUNT),
    ],
}
_READ_ARGUMENTS: list[Any] = [*(_ADDRESS, _ADDRESS, _ADDRESS, _COUNT), *(_OFFSET, _COUNT, _ADDRESS, _COUNT)]

Floats = NDArray[np.float32]


class Loops(NamedTuple):
    """The functions of kernels.c, for this processor. They take arrays by their addresses."""

    processor: str  # "AVX2" or "AVX-512"
    gram: Callable[..., None]
    wide_gram: Callable[..., None]
    fold: Callable[..., None]
    covariance_times: Callable[..., None]
    copy: Callable[..., None]
    read: Callable[..., int]


class Folds(NamedTuple):
    """How the columns of a tile are folded into two sketches."""

    order: NDArray[np.intp]  # which chunk is where
    # (m, 5) of each fold: how far into its first line the tile begins, the length of a line, lines, where its
    # sums begin, and in which sketch
    folds: NDArray[np.intp]
    mixing: Floats  # the factors of all lines, one fold after the other


@cache
def loops() -> Loops | None:
    """The loops, if they are there and wanted."""
    return None if os.environ.get(SWITCH) == "0" else loaded(Path(__file__).parent, EXTENSION_SUFFIXES)


def loaded(folder: Path, suffixes: Sequence[str], kind: int = 0) -> Loops | None:
    """The loops in a folder, of the best kind that runs here, or of one that is named."""
    for suffix in suffixes:
        try:
            library = ctypes.CDLL(str(folder / f"_kernels{suffix}"))
            functions = {name: getattr(library, f"randeigen_{name}") for name in _ARGUMENTS}
            best, interface = int(library.randeigen_kind()), int(library.randeigen_interface())
            read = library.randeigen_read
        except (OSError, AttributeError, TypeError):  # not there, for another processor, of another version
            continue
        if interface != INTERFACE or not best or kind > best:
            return None
        for name, arguments in _ARGUMENTS.items():
            functions[name].argtypes, functions[name].restype = [ctypes.c_int, *arguments], None
        kind = kind or best
        read.argtypes, read.restype = _READ_ARGUMENTS, _COUNT
        for_kind = {name: partial(function, kind) for name, function in functions.items()}
        return Loops(KINDS[kind], read=read, **for_kind)
    return None


@cache
def processor() -> str:
    """For which processors the loops in use are, for a record."""
    return "none" if (used := loops()) is None else used.processor


def take(rows: NDArray[Any]) -> bool:
    """Whether the loops are there and take these rows: float32 that lie side by side."""
    return loops() is not None and rows.dtype == np.float32 and rows.strides[1] == 4


def fold(given: Floats, tile: Folds, first: Floats, second: Floats) -> None:
    """Add all folds of (r, chunks, c) numbers to the (r, k) sums of two sketches."""
    order, folds, mixing = tile
    shape = given.strides[0] // 4, len(second), order.ctypes.data, order.size, given.shape[2]
    plan = len(folds), folds.ctypes.data, mixing.ctypes.data
    into = first.ctypes.data, first.strides[0] // 4, second.ctypes.data, second.strides[0] // 4
    _used().fold(given.ctypes.data, *shape, *plan, *into)


def covariance_times(
    points: Floats, vectors: Floats, shifts: Floats, weights: Floats
) -> tuple[Floats, Floats]:
    """The (r, p) shares w·(points·vectorsᵀ − shifts), and their (p, k) sums over the points."""
    n, k = points.shape
    shares, sums = np.empty((n, VECTORS), np.float32), np.empty((VECTORS, k), np.float32)
    room = memory_of_thread((2 * VECTORS, k + 16), np.dtype(np.float32))
    others = (x.ctypes.data for x in (vectors, shifts, weights, room, shares, sums))
    _used().covariance_times(points.ctypes.data, points.strides[0] // 4, n, k, *others)
    return shares, sums


class Leaves(NamedTuple):
    """Leaves of n rows, which end to end are the rows, by their addresses."""

    addresses: NDArray[np.intp]  # (n, leaves); 0 where a row is NaN
    ends: NDArray[np.intp]  # the column after the last of each leaf
    conversions: NDArray[np.intc]  # how `copy` converts each


def copy(leaves: Leaves, rows: NDArray[np.intp], columns: slice, out: NDArray[Any]) -> None:
    """Write these columns of some rows side by side."""
    addresses, ends, conversions = (x.ctypes.data for x in leaves)
    first = int(leaves.ends.searchsorted(columns.start, "right"))
    which = first, rows.ctypes.data, len(rows), columns.start, columns.stop
    into = out.itemsize, out.ctypes.data, out.strides[0]
    _used().copy(addresses, len(leaves.ends), ends, conversions, *which, *into)


class Files(NamedTuple):
    """Open files that hold the same numbers, each from another byte on, and the lines these are read into."""

    descriptors: NDArray[np.intc]
    starts: NDArray[np.int64]
    lines: NDArray[np.intp]


def read(files: Files, at: int, out: NDArray[Any]) -> int:
    """Read as many numbers as fit a line, from byte `at` of each file's on; how many files gave them all."""
    descriptors, starts, lines = (x.ctypes.data for x in files)
    size = out.shape[1] * out.itemsize
    return int(
        _used().read(descriptors, starts, lines, len(files.lines), at, size, out.ctypes.data, out.strides[0])
    )


def _used() -> Loops:
    used = loops()
    assert used is not None
    return used
