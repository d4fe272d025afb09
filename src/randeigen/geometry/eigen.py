"""Top eigenpairs by LAPACK, and by the paper's power iteration; where the bulk of a spectrum lies."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from randeigen.backend.chunking import single_threaded_blas
from randeigen.backend.openblas import function_of_numpys_library
from randeigen.types import Array, Mask

Operator: TypeAlias = Callable[[Array], Array]
Start: TypeAlias = Array | Callable[[], Array]  # (n, p) secret directions, or what draws them if need be

MAX_DECOMPOSED_ROWS = 24  # rows up to which numpy has all eigenvectors sooner than one by solving equations
MAX_DENSE_ROWS = 64  # rows up to which dense eigenvalues are always fastest, and on one thread
SOLVED_RESIDUAL = 1e-12  # of the eigenvalue, that a solution may have
RELATIVE_RESIDUAL = 1e-10  # of the eigenvalue, whose own error is the residual squared over the gap
MAX_PLAIN_EXPONENT = 300  # numbers within 2**±300 can be squared twice
MAX_POWER_STEPS = 200  # power iterations where LAPACK has failed
SEMICIRCLE = 2.2  # standard deviations from the middle to the end of an isotropic spectrum, with some room
WORK_NUMBERS = 67  # of work space for each row: LAPACK takes 64 columns at once if it can, and 3 more
WORK_INTEGERS = 6  # the same of whole numbers
MAX_KEPT_ROOMS = 8  # sizes of matrices for which a thread keeps LAPACK's work space: the latest


class Top(NamedTuple):
    """A top eigenpair: the eigenvalue lies between `value` and `value + allowance`."""

    value: float
    vector: Array  # of unit norm
    allowance: float = 0.0

    def scaled(self, exponent: int) -> Top:
        """That of the same matrix times 2**exponent."""
        return Top(_shifted(max(self.value, 0.0), exponent), self.vector, _shifted(self.allowance, exponent))


def top_dense(matrix: Array, start: Start, root_weights: Array | None = None) -> Top:
    """By LAPACK; where that fails, by power iteration, with an allowance up to the Frobenius norm.

    Where `root_weights` are 0, if they are given, lines of the matrix are.
    """
    if top := _top_alone(matrix, root_weights):
        return top
    start = start_of(start)
    if len(matrix) > MAX_DECOMPOSED_ROWS and (top := _top_by_solving(matrix, start)):
        return top
    values, vectors = decomposed(matrix)
    if math.isfinite(values[-1]):
        return Top(max(float(values[-1]), 0.0), vectors[:, -1])
    peak = float(abs(matrix).max())
    if not math.isfinite(peak):
        return Top(math.inf, unit(start[:, 0]))
    exponent = binary_exponent(peak)
    matrix = np.ldexp(matrix, -exponent)
    vector = unit(power_iteration(partial(np.dot, matrix), unit(start[:, 0]), MAX_POWER_STEPS))
    value = max(float(vector @ matrix @ vector), 0.0)
    return Top(value, vector, math.sqrt(np.vdot(matrix, matrix)) - value).scaled(exponent)


def top_eigenvalue(matrix: Array, root_weights: Array) -> float | None:
    """What `top_dense` finds by LAPACK, without the eigenvector: three quarters of the time."""
    top = _top_alone(matrix, root_weights, b"N")
    return None if top is None else top.value


def _top_alone(matrix: Array, root_weights: Array | None = None, job: bytes = b"V") -> Top | None:
    """LAPACK's top eigenpair without the others, which numpy has no function for; None where it fails.

    With b"N" as its job, not b"V", the eigenvalue alone.
    """
    solve, n = _dsyevx(), len(matrix)
    if solve is None or not math.isfinite(np.vdot(matrix, matrix)):
        return None
    if root_weights is not None and np.count_nonzero(root_weights) < n:
        index = root_weights.nonzero()[0]
        if (top := _top_alone(matrix[index[:, None], index], None, job)) is not None:
            vector = np.zeros(n)
            vector[index] = top.vector
            top = Top(top.value, vector)
        return top
    # Taken out while it is in use: a signal handler may come here too.
    room = _kept.rooms.pop(n, None) or _Room(n)
    room.matrix[:] = matrix
    if n <= MAX_DENSE_ROWS:
        solve(job, *room.arguments)
    else:
        with single_threaded_blas(n):  # on busy cores threads wait for one another for long
            solve(job, *room.arguments)
    (count, failed), first_end = room.status.tolist(), int(room.ends[0])
    value, vector = float(room.values[0]), room.vectors[0].copy()
    _kept.rooms[n] = room
    if len(_kept.rooms) > MAX_KEPT_ROOMS:
        del _kept.rooms[next(iter(_kept.rooms))]  # the one that was not used for longest
    # Of a tridiagonal matrix that falls apart LAPACK may count eigenvalues of several parts wrongly.
    if failed or count != 1 or (n > 1 and first_end != n) or not math.isfinite(value):
        return None
    return Top(max(value, 0.0), vector)


class _Room:
    """What LAPACK reads, writes and works in for a matrix of n rows.

    It should write one eigenvector, and whole numbers from the first on. It has written to what lies before
    them (IBLOCK(0) in DSTEBZ), where eigenvalues of several parts are equal; so there is room for more.
    """

    def __init__(self, n: int) -> None:
        sizes = np.array([n, WORK_NUMBERS * n, 0], np.int64)  # and 0 for what it does not read
        self.matrix, self.values, self.vectors = np.empty((n, n)), np.empty(n), np.empty((n, n))
        self.status = np.zeros(2, np.int64)  # the number of eigenvalues, and whether it failed
        integers = np.zeros((WORK_INTEGERS + 2) * n, np.int64)[n:]
        self.ends = integers[n : 2 * n]  # of the parts into which the tridiagonal matrix falls
        self._kept = sizes, np.empty(WORK_NUMBERS * n), integers
        size, work, integer = (each.ctypes.data for each in self._kept)
        matrix, values, vectors = (each.ctypes.data for each in (self.matrix, self.values, self.vectors))
        lwork, zero, status = size + 8, size + 16, self.status.ctypes.data
        addresses = (
            size, matrix, size, zero, zero, size, size, zero, status, values, vectors, size, work, lwork,
            integer, integer + 8 * (WORK_INTEGERS - 1) * n, status + 8,
        )  # fmt: skip
        self.arguments = [b"I", b"L", *map(ctypes.c_void_p, addresses), 1, 1, 1]


class _Kept(threading.local):
    """Rooms that a thread has used, by the number of rows."""

    def __init__(self) -> None:
        self.rooms: dict[int, _Room] = {}


_kept = _Kept()


@cache
def _dsyevx() -> Any:
    """LAPACK's function for some eigenpairs of a symmetric matrix, if numpy's own library has it."""
    # Under names that say that whole numbers have 64 bits.
    function = function_of_numpys_library("scipy_dsyevx_64_", "dsyevx_64_")
    if function is not None:
        function.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_void_p] * 17 + [ctypes.c_size_t] * 3
        function.restype = None
    return function


def _top_by_solving(matrix: Array, start: Array) -> Top | None:
    """LAPACK's top eigenvalue, and one step of inverse iteration; None if that did not get there."""
    try:
        with single_threaded_blas(len(matrix)):
            value = float(np.linalg.eigvalsh(matrix)[-1])
            if not 0 < value < math.inf:
                return None
            shifted = matrix.copy()
            shifted.reshape(-1)[:: len(matrix) + 1] -= value
            vector = unit(np.linalg.solve(shifted, start[:, :1])[:, 0])
    except np.linalg.LinAlgError:
        return None
    rest = np.dot(matrix, vector) / value - vector  # of the eigenvalue, which may be too large to be squared
    if not rest @ rest <= SOLVED_RESIDUAL**2:
        return None
    return Top(value, vector)


def start_of(start: Start) -> Array:
    """The secret directions themselves."""
    return start() if callable(start) else start


def unit(vector: Array) -> Array:
    """The vector over its norm, whatever that is; the first axis if it has none."""
    peak = float(abs(vector).max())
    if not 0 < peak < math.inf:
        return np.asarray(np.eye(1, vector.size)[0])
    vector = np.ldexp(vector, -math.frexp(peak)[1])
    return np.asarray(vector / math.sqrt(vector @ vector))


def binary_exponent(size: float) -> int:
    """0 while numbers of this size can be squared and squared again, else what brings them to 1."""
    exponent = math.frexp(size)[1] if math.isfinite(size) else 0
    return exponent if abs(exponent) > MAX_PLAIN_EXPONENT else 0


def _shifted(value: float, exponent: int) -> float:
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.inf


def outer(factor: float, vector: Array) -> Array | float:
    """(n, n) factor·vᵢ·vⱼ; one number where all entries are equal, as weights are at first."""
    first = vector[0]
    if np.count_nonzero(vector == first) == vector.size:
        return float(factor * first * first)
    return (factor * vector)[:, None] * vector


def decomposed(matrix: Array) -> tuple[Array, Array]:
    """numpy's eigenvalues and eigenvectors, NaN where it does not converge."""
    try:
        with single_threaded_blas(len(matrix)):  # on busy cores threads wait for one another for long
            values, vectors = np.linalg.eigh(matrix)
    except np.linalg.LinAlgError:
        values, vectors = np.full(matrix.shape[0], math.nan), np.full(matrix.shape, math.nan)
    return values, vectors


def power_iteration(apply: Operator, start: Array, steps: int) -> Array:
    """A fixed number of steps from `start`, however far that gets; zero if the operator is."""
    vector = start
    for _ in range(steps):
        vector = apply(vector)
        if not vector.any():
            break
        vector = unit(vector)
    return vector


def project_rows(covariance: Array, root_weights: Array, vector: Array) -> Array:
    """(n,) the rows' projections on the direction that an eigenvector of their covariance stands for."""
    if np.count_nonzero(root_weights) < root_weights.size:
        root_weights = np.where(root_weights > 0, root_weights, 1.0)
    return np.asarray(covariance.dot(vector) / root_weights)


class Bulk(NamedTuple):
    """Where the bulk of a covariance's spectrum lies."""

    weighted: Mask  # (n,) rows that have weight
    diagonal: Array
    middle: float
    width: float  # standard deviation of the eigenvalues
    low: float  # where it begins
    high: float  # near its end


def bulk_of(matrix: Array, root_weights: Array) -> Bulk | None:
    """By the mean and the variance of the eigenvalues; None where rounding is all there is."""
    weighted = root_weights > 0
    rank = max(int(np.count_nonzero(weighted)) - 1, 1)
    diagonal, square = matrix.diagonal(), float(np.vdot(matrix, matrix))
    middle = float(diagonal.sum()) / rank
    width = math.sqrt(max(square / rank - middle * middle, 0.0))
    if not (middle > 0 and 0 < width < math.inf):  # rounding is all there is, or its squares overflow
        return None
    low = max(middle - SEMICIRCLE * width, 0.0)
    # Of a semicircle's eigenvalues five lie beyond this: a block of eight holds them.
    high = middle + max(2 - (24 / rank) ** (2 / 3), 1.0) * width
    return Bulk(weighted, diagonal, middle, width, low, high)
