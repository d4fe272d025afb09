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
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.thread_memory import memory_of_thread

SWITCH = "RANDEIGEN_NATIVE"
INTERFACE = 7  # which arguments the loops take, as kernels.c says
KINDS = {1: "AVX2", 2: "AVX-512"}  # what the loops are for, by their number
VECTORS = 8  # vectors that a covariance is multiplied with at once
AS_IT_IS, FROM_BFLOAT16, FROM_FLOAT16 = range(3)  # how `copy` converts; from half precision to float32
GRAM_ROOM = 8, 1040  # what a Gram matrix of n rows needs memory for: so many rows more, of so many columns
_ADDRESS, _COUNT, _OFFSET = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int64
_ARGUMENTS: dict[str, list[Any]] = {
    "gram": [_ADDRESS, _COUNT, _COUNT, _COUNT, _ADDRESS, _ADDRESS],
    "wide_gram": [_ADDRESS, _COUNT, _COUNT, _COUNT, _ADDRESS, _ADDRESS],
    "fold": [
        *(_ADDRESS, _COUNT, _COUNT, _COUNT, _ADDRESS, _ADDRESS, _ADDRESS, ctypes.c_int, _ADDRESS, _COUNT),
        *[_ADDRESS, _ADDRESS, _COUNT, _COUNT] * 2,
    ],
    "squares": [_ADDRESS, _COUNT, _COUNT, _COUNT, _ADDRESS],
    "project": [_ADDRESS, _COUNT, _COUNT, _COUNT, _ADDRESS, _ADDRESS],
    "add_up": [_ADDRESS, _COUNT, _COUNT, _COUNT, _ADDRESS, _ADDRESS],
    "covariance_times": [_ADDRESS, *[_COUNT] * 3, *[_ADDRESS] * 6],
    "copy": [
        *(_ADDRESS, _COUNT, _ADDRESS, _ADDRESS, _COUNT, _ADDRESS, _COUNT),
        *(_COUNT, _COUNT, _COUNT, _ADDRESS, _COUNT),
    ],
}
_READ_ARGUMENTS: list[Any] = [*(_ADDRESS, _ADDRESS, _ADDRESS, _COUNT), *(_OFFSET, _COUNT, _ADDRESS, _COUNT)]

Floats = NDArray[np.float32]
Bits = NDArray[np.uint8]  # eight signs in each


class Loops(NamedTuple):
    """The functions of kernels.c, for this processor. They take arrays by their addresses."""

    processor: str  # "AVX2" or "AVX-512"
    gram: Callable[..., None]
    wide_gram: Callable[..., None]
    fold: Callable[..., None]
    squares: Callable[..., None]
    project: Callable[..., None]
    add_up: Callable[..., None]
    covariance_times: Callable[..., None]
    copy: Callable[..., None]
    read: Callable[..., int]


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
    if loops() is None or rows.dtype != np.float32:
        return False
    return rows.strides[1] == 4 and rows.strides[0] % 4 == 0


def fold(
    rows: Floats,
    pivot: Floats | None,
    starts: NDArray[np.intp],
    before: Bits,
    fresh: bool,
    kept: Floats | None,
    sums: Sequence[tuple[Floats, Bits]],
) -> None:
    """Mix (r, b) rows, measured from a pivot, and add them to the (r, k) points of one or two sketches.

    Each block of them begins at its start, modulo the width of a sketch. Signs are those before and, for each
    sketch, after they are mixed. What is mixed is written into `kept` too.
    """
    given = rows.ctypes.data, rows.strides[0] // 4, *rows.shape, None if pivot is None else pivot.ctypes.data
    keeping = (None, 0) if kept is None else (kept.ctypes.data, kept.strides[0] // 4)
    into: list[tuple[int | None, int | None, int, int]] = [
        (bits.ctypes.data, points.ctypes.data, points.strides[0] // 4, points.shape[1])
        for points, bits in sums
    ]
    into += [(None, None, 0, 0)] * (2 - len(into))
    _used().fold(*given, starts.ctypes.data, before.ctypes.data, fresh, *keeping, *chain.from_iterable(into))


def squared_lengths(points: Floats) -> NDArray[np.float64]:
    """(r,) sums of squares, in float64."""
    lengths = np.empty(len(points))
    _used().squares(points.ctypes.data, points.strides[0] // 4, *points.shape, lengths.ctypes.data)
    return lengths


def projections(points: Floats, direction: Floats) -> NDArray[np.float64]:
    """(r,) inner products with a direction."""
    out, at = np.empty(len(points)), direction.ctypes.data
    _used().project(points.ctypes.data, points.strides[0] // 4, *points.shape, at, out.ctypes.data)
    return out


def weighted_sum(points: Floats, weights: Floats) -> Floats:
    """(k,) Σ wᵢ·yᵢ."""
    sums, at = np.empty(points.shape[1], np.float32), weights.ctypes.data
    _used().add_up(points.ctypes.data, points.strides[0] // 4, *points.shape, at, sums.ctypes.data)
    return sums


def covariance_times(
    points: Floats, vectors: Floats, shifts: Floats, weights: Floats
) -> tuple[Floats, Floats]:
    """The (r, p) shares w·(points·vectorsᵀ − shifts), and their (p, k) sums over the points."""
    shares = np.empty((len(points), VECTORS), np.float32)
    return shares, _sums(points, shares, vectors.ctypes.data, shifts.ctypes.data, weights.ctypes.data)


def combined(points: Floats, shares: Floats) -> Floats:
    """The (p, k) sums over the points of these (r, p) shares."""
    return _sums(points, shares, None, None, None)


def _sums(points: Floats, shares: Floats, *given: int | None) -> Floats:
    n, k = points.shape
    sums = np.empty((VECTORS, k), np.float32)
    room = memory_of_thread((2 * VECTORS, k + 16), np.dtype(np.float32))
    others = (x.ctypes.data for x in (room, shares, sums))
    _used().covariance_times(points.ctypes.data, points.strides[0] // 4, n, k, *given, *others)
    return sums


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
