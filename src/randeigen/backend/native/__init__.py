"""Three loops in C that most of the time on a CPU goes into; numpy does the same where they are missing.

They are compiled when the package is installed from its sources, if there is a C compiler, for processors of
the x86-64 family with AVX2 or AVX-512: OpenBLAS takes older kernels on those that it does not know yet.
RANDEIGEN_NATIVE=0 leaves them unused. Results agree with numpy's to rounding, not to the bit, as those of two
BLAS libraries do. They take float32 alone; numbers that overflow become infinite or NaN without a warning.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SWITCH = "RANDEIGEN_NATIVE"
KINDS = {1: "AVX2", 2: "AVX-512"}  # what the loops are for, by their number
VECTORS = 8  # vectors that a covariance is multiplied with at once: the loops' VECTORS
# Columns of a product. Each of eight lanes or more adds up an eighth of them: fewer than BLAS may here.
GRAM_COLUMNS = 1024
SPARE_ROWS, SPARE_COLUMNS = 8, 16  # of the memory of a product: rows in groups, columns in lanes

Floats = NDArray[np.float32]
_Address, _Count = ctypes.c_void_p, ctypes.c_ssize_t
_ARGUMENTS: dict[str, list[Any]] = {
    "randeigen_gram": [_Address, _Count, _Count, _Count, _Count, _Address, _Address],
    "randeigen_fold": [_Address, _Count, _Count, _Address, _Count, _Count, _Count, *[_Address] * 3, _Count],
    "randeigen_covariance_times": [_Address, _Count, _Count, _Count, *[_Address] * 5],
}


class Folds(NamedTuple):
    """How a tile is folded into the columns of one sketch."""

    # (m, 4) of each fold: how far into its first line the tile begins, the length of a line, lines, and
    # where its columns begin
    places: NDArray[np.intp]
    mixing: Floats  # the factors of all lines, one fold after the other


def loops() -> str | None:
    """For which processors the loops in use are: those with AVX2 or with AVX-512."""
    return None if _library() is None else KINDS[_kind()]


def takes(rows: NDArray[Any]) -> bool:
    """Whether the loops are there and take these rows: float32 that lie side by side."""
    return (
        rows.dtype == np.float32
        and rows.dtype.isnative
        and rows.strides[1] == 4
        and rows.strides[0] % 4 == 0
        and _library() is not None
    )


def gram(rows: Floats) -> NDArray[np.float64]:
    """(n, n) rows·rowsᵀ, products of GRAM_COLUMNS columns added up in float64."""
    n, width = rows.shape
    total = np.zeros((n, n))
    room = np.empty((n + SPARE_ROWS, GRAM_COLUMNS + SPARE_COLUMNS), np.float32)
    _call("gram", rows, rows.strides[0] // 4, n, width, GRAM_COLUMNS, room, total)
    np.copyto(total, total.T.copy(), where=~np.tri(n, dtype=bool))
    return total


def fold(given: Floats, order: NDArray[np.intp], folds: Folds, sums: Floats) -> None:
    """Add all folds of (r, chunks, c) numbers to (r, k) sums; `order` says which chunk is at which place."""
    rows, _, chunk = given.shape
    places, mixing = folds
    where = (order, order.size, chunk, len(places), places, mixing)
    _call("fold", given, given.strides[0] // 4, min(rows, len(sums)), *where, sums, sums.strides[0] // 4)


def covariance_times(
    points: Floats, vectors: Floats, shifts: Floats, weights: Floats
) -> tuple[Floats, Floats]:
    """The (r, p) shares w·(points·vectorsᵀ − shifts), and their (p, k) sums over the points."""
    n, k = points.shape
    shares, sums = np.empty((n, VECTORS), np.float32), np.zeros((VECTORS, k), np.float32)
    _call("covariance_times", points, points.strides[0] // 4, n, k, vectors, shifts, weights, shares, sums)
    return shares, sums


def _call(name: str, *arguments: Any) -> None:
    """One of the loops, for this processor; arrays are handed over by their addresses."""
    library = _library()
    assert library is not None
    plain = [x.ctypes.data if isinstance(x, np.ndarray) else x for x in arguments]
    getattr(library, f"randeigen_{name}")(_kind(), *plain)


@cache
def _kind() -> int:
    library = _library()
    return 0 if library is None else int(library.randeigen_kind())


@cache
def _library() -> ctypes.CDLL | None:
    """The compiled loops, if they are there and wanted."""
    return None if os.environ.get(SWITCH) == "0" else _loaded(Path(__file__).parent, EXTENSION_SUFFIXES)


def _loaded(folder: Path, suffixes: Sequence[str]) -> ctypes.CDLL | None:
    for suffix in suffixes:
        try:
            library = ctypes.CDLL(str(folder / f"_kernels{suffix}"))
            for name, arguments in _ARGUMENTS.items():
                getattr(library, name).argtypes = [ctypes.c_int, *arguments]
                getattr(library, name).restype = None
            return library if library.randeigen_kind() else None
        except (OSError, AttributeError, TypeError):  # not there, for another processor, of another version
            continue
    return None
