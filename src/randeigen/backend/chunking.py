"""Every byte budget, how columns are cut, and how what is cut is spread over the cores.

- A block is what `rows.blocks()` yields: all n rows, some columns, a view where that costs nothing.
- A part is what one thread takes of a block. Parts do not depend on the number of threads, so no bit does.
- A piece is what is copied, or cast to float64, at once.
- A strip is what is sorted at once, column by column.
- A tile of a random projection is the columns that share one generator; `geometry/projection` cuts them.

BLAS's threads gain nothing on a product as flat as ours, n×n out of n×d; they wait for one another, and spin
for milliseconds after each call on cores that others need. Cutting the columns instead, one part to a thread,
while BLAS keeps to one of its own, halves the time on two cores.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.openblas import thread_switches
from randeigen.types import Block

# Blocks.
BLOCK_BYTES = 8 * 2**20  # bytes of a block that is copied out of the caller's rows
HOST_VIEW_BLOCKS = 16  # a view may be as many blocks wide: it costs no memory, and each a meeting of threads
DEVICE_VIEW_COLUMNS = 2**30  # columns of a view on a GPU, where each costs launches; 32 bits can count them
DEVICE_COPY_BLOCKS = 4  # copies on a GPU may be as many blocks wide; that stays far below 64 MB
MAX_BLOCK_COLUMNS = 4_200_000  # columns that are merged at once; a multiple of every block multiple in use
MAX_COPIED_BYTES = 2**24  # bytes of all rows up to which one thread copies or casts them, block by block
MAX_KEPT_BYTES = 2**18  # bytes of all rows, copied or cast, that are kept for the second reading
MAX_COPY_BYTES = 2**24  # bytes of a block from which unusable rows are left out by copying the others

# Parts.
PART_BYTES = 2**22  # bytes that a thread takes at once, of copies too: two threads' stay in a shared cache
MIN_PART_COLUMNS = 2**12  # columns that it takes at least: an n×n Gram matrix comes of each part
PART_MULTIPLE = 2**10  # columns of which a part has a multiple: those of one product
ALIKE_COLUMNS = 16  # columns that BLAS adds up alike: those beyond a multiple it does in another way
POINT_PARTS = 8  # parts of many points or of a large matrix that cores share; no bit depends on the cores
MIN_PARALLEL_NUMBERS = 2**17  # fewer numbers are done before a second thread has begun
# Rows that lie a multiple of this many bytes apart begin at few places of a core's first cache, and put one
# another out of it while they are multiplied; a line of the cache more between them and they do not.
CROWDED_BYTES, CACHE_LINE_BYTES = 2**10, 2**6
MIN_CROWDED_ROWS = 64  # rows: the product of so many gains more than a copy of them costs

# Pieces.
PIECE_BYTES = 2**23  # bytes copied at a time
DEVICE_PIECES = 4  # on a GPU, where every copy costs a launch, this many times as many; of float64
COMPARED_NUMBERS = 2**18  # numbers of two vectors compared at a time
DEVICE_COMPARED_NUMBERS = 2**21  # the same on a GPU, where each time costs a dozen launches
FLOAT64_PIECE_NUMBERS = 2**17  # numbers cast to float64 at a time: they stay in a core's own cache
MAX_FLOAT64_POINT_NUMBERS = 2**22  # numbers of a sketch that may as well be kept in float64
GRAM_LINES_AT_ONCE = 512  # lines of a Gram matrix of thousands of rows that are added to at a time
CHUNK_GROUP_NUMBERS = 2**20  # numbers of chunks that are copied at once; an eighth as many of Gram matrices
HOST_GRAM_NUMBERS = 2**19  # of Gram matrices that are judged together on a core: each round is many steps
MAX_JUDGED_NUMBERS = 2**22  # of parts that are judged together: where their unit is not 1 they are copied
DEVICE_GRAM_NUMBERS = 2**24  # of Gram matrices that are judged together on a GPU: a verdict is many launches
DEVICE_SLICE_NUMBERS = 2**24  # numbers of parts that are cast to float64 together on a GPU: 128 MB
MIXED_NUMBERS = 2**22  # numbers of pre-aggregated rows that are made at a time
TORCH_GRAIN = 2**15  # numbers up to which torch copies on one thread; its others spin on cores we need

# Strips.
STRIP_NUMBERS = 2**17  # numbers in a strip, so that it and its sorted copy fit the processor's cache
STRIPS_PER_THREAD = 4  # strips that a thread takes at once
DEVICE_STRIP_NUMBERS = 2**21  # on a GPU launches cost, and torch sorts with 64-bit indices beside
MIN_STRIP_COLUMNS = 64  # columns of a strip, however many rows there are

# Threads.
MAX_SINGLE_THREADED_ROWS = 1024  # rows up to which n×n work is as fast on one BLAS thread
MAX_THREADS = 8  # threads: each holds a copy of its part, and Python hands out parts one at a time

Part = TypeVar("Part")
Result = TypeVar("Result")


def is_host_block(block: Block) -> bool:
    """Whether the cores take parts of it: an array of numpy's, or rows that each part is copied from."""
    return isinstance(block.dtype, np.dtype)


def parts(block: Block, rows: int | None = None) -> list[Block]:
    """The block cut for the cores, the same on every machine: nothing may depend on how many there are.

    `rows` are those of a part that a core takes at a time, where these are not all.
    """
    n, width = block.shape
    if n * width < MIN_PARALLEL_NUMBERS:
        return [block]
    step = max(PART_BYTES // (block.dtype.itemsize * min(n, rows or n)), MIN_PART_COLUMNS)
    step = min(step - step % PART_MULTIPLE, -(-width // 2))
    return [block[:, i : i + step] for i in range(0, width, step)]


def pieces(block: Block) -> list[Block]:
    """The block cut small enough to copy."""
    numbers = PIECE_BYTES // 4 if isinstance(block, np.ndarray) else DEVICE_PIECES * PIECE_BYTES // 8
    columns = max(1, numbers // block.shape[0])
    return [block[:, i : i + columns] for i in range(0, block.shape[1], columns)]


def memory_for_rows(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """(n, b) numbers, rows of which are multiplied with one another."""
    n, width = shape
    more = 0 if width * dtype.itemsize % CROWDED_BYTES else CACHE_LINE_BYTES // dtype.itemsize
    return np.empty((n, width + more), dtype)[:, :width]


def as_blas_takes_them(rows: NDArray[Any]) -> NDArray[Any]:
    """The same rows, copied if they are reversed, stepped or broadcast: numpy multiplies these by itself."""
    (n, width), (down, along), size = rows.shape, rows.strides, rows.itemsize
    by_rows = along == size and down >= size * width and down % size == 0
    by_columns = down == size and along >= size * n and along % size == 0
    return rows if by_rows or by_columns else np.ascontiguousarray(rows)


def uncrowded(rows: NDArray[Any]) -> NDArray[Any]:
    """The same rows, copied if there are many and they crowd a cache."""
    if len(rows) < MIN_CROWDED_ROWS or rows.strides[0] % CROWDED_BYTES:
        return rows
    np.copyto(copy := memory_for_rows(rows.shape, rows.dtype), rows)
    return copy


def block_columns(d: int, n: int, itemsize: int, budget: int, multiple: int = 1) -> Iterator[slice]:
    """The columns of each block, as many as n rows fit the budget of bytes."""
    step = block_width(d, n, itemsize, budget, multiple)
    return (slice(start, min(start + step, d)) for start in range(0, d, step))


def block_width(d: int, n: int, itemsize: int, budget: int, multiple: int = 1) -> int:
    """Columns in a block: within the budget, but a multiple of `multiple` and, if possible, of 1024."""
    most = max(multiple, budget // (n * itemsize))
    step = math.lcm(multiple, 1024) if most >= math.lcm(multiple, 1024) else multiple
    return min(d, most - most % step)


def narrower(columns: slice, block: Block, wide: int = MAX_BLOCK_COLUMNS) -> Iterator[tuple[slice, Block]]:
    """A block, cut if it is a wide view, so that what is made of it stays small."""
    for start in range(columns.start, columns.stop, wide):
        part = slice(start, min(start + wide, columns.stop))
        yield part, block[:, part.start - columns.start : part.stop - columns.start]


def parallel_map(work: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """`work` on every part, in order, on as many threads as BLAS was given; a lone part is left to BLAS."""
    if len(parts) < 2 or getattr(_sharing, "has_part", False):
        return [work(part) for part in parts]
    with _blas as threads:
        helpers = min(threads, MAX_THREADS, len(parts)) - 1
        if helpers < 1:
            return [work(part) for part in parts]
        todo, results = deque(enumerate(parts)), dict[int, Result]()
        error_state = np.geterr()  # each thread has its own: hostile numbers must overflow as quietly there

        def work_through() -> None:
            _sharing.has_part = True
            with np.errstate(**error_state):
                while todo:
                    try:
                        index, part = todo.popleft()
                    except IndexError:  # another thread took the last one
                        return
                    results[index] = work(part)

        helping = []
        try:
            with suppress(RuntimeError):  # the interpreter is on its way out and starts no more threads
                pool = _pool(os.getpid())
                _keep_off(pool.ids)
                helping += [pool.submit(work_through) for _ in range(helpers)]
            work_through()
        finally:
            _sharing.has_part = False
            todo.clear()
            for helper in helping:  # one that never began, the others being busy, is not waited for
                helper.cancel() or helper.result()
        return [results[index] for index in range(len(parts))]


def one_ahead(read: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
    """What is read of every part, in order, the next while one is in use: it waits for a disk."""
    if len(parts) < 2:
        yield from map(read, parts)
        return
    error_state = np.geterr()

    def in_thread(part: Part) -> Result:
        with np.errstate(**error_state):
            return read(part)

    with ThreadPoolExecutor(1, "randeigen-reader") as thread:
        coming = thread.submit(in_thread, parts[0])
        for part in parts[1:]:
            result, coming = coming.result(), thread.submit(in_thread, part)
            yield result
        yield coming.result()


def single_threaded_blas(n: int) -> AbstractContextManager[object]:
    """Limit BLAS to one thread for n×n work: on small matrices more threads only wait for each other."""
    return nullcontext() if n > MAX_SINGLE_THREADED_ROWS else _blas


class _Threads(ThreadPoolExecutor):
    """A pool that knows the system's number of each of its threads."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        super().__init__(MAX_THREADS - 1, "randeigen", lambda: self.ids.append(threading.get_native_id()))


@cache
def _pool(process: int) -> _Threads:
    """One pool for each process: the threads of a pool do not survive a fork."""
    return _Threads()


def _keep_off(threads: Sequence[int]) -> None:
    """Let these threads run on any core but this one.

    Linux wakes a thread on the core that called it, where it would wait behind us for milliseconds while
    another core is idle: longer than most of our work takes.
    """
    if _core is None:
        return
    with suppress(OSError):  # a thread that is gone, or a system that forbids it
        others = os.sched_getaffinity(0) - {_core()}
        for thread in threads if others else ():
            os.sched_setaffinity(thread, others)


def _which_core() -> Callable[[], int] | None:
    """The C library's function for the core on which this runs, where there is one."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        return getattr(ctypes.CDLL(None), "sched_getcpu", None)
    except (OSError, TypeError):
        return None


_core = _which_core()


def weighted_columns(weights: Any, matrix: Any, out: Any = None) -> Any:
    """weights @ matrix, where a column in main memory has the same bits wherever it lies."""
    if not isinstance(matrix, np.ndarray):
        return weights @ matrix
    matrix = as_blas_takes_them(matrix)
    if not (rest := matrix.shape[1] % ALIKE_COLUMNS):
        return np.matmul(weights, matrix, out=out)
    total = np.empty(matrix.shape[1], matrix.dtype) if out is None else out
    if rest < total.size:
        np.matmul(weights, matrix[:, :-rest], out=total[:-rest])
    last = np.zeros((len(matrix), ALIKE_COLUMNS), matrix.dtype)
    last[:, :rest] = matrix[:, -rest:]
    total[-rest:] = (weights @ last)[:rest]
    return total


class _Blas:
    """Limits BLAS to one thread while any caller is inside; yields the thread count it had before.

    Set for the whole process; where it cannot be, 1: BLAS goes on with its threads, and nobody adds to them.
    """

    def __init__(self) -> None:
        self._get_threads, self._set_threads = thread_switches()
        self._lock, self._users, self._before = threading.Lock(), 0, 1

    def __enter__(self) -> int:
        with self._lock:
            if self._users == 0:
                self._before = self._get_threads()
                if self._before > 1:
                    self._set_threads(1)
            self._users += 1
            return self._before

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._before > 1:
                self._set_threads(self._before)


_blas = _Blas()
_sharing = threading.local()  # `has_part`: this thread works on a part, and others on the rest
