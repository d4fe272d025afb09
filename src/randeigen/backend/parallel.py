"""Work on parts of a block, spread over the cores; BLAS keeps to one thread of its own meanwhile.

BLAS's threads gain nothing on a product as flat as ours, n×n out of n×d; they wait for one another, and spin
for milliseconds after each call on cores that others need. Cutting the columns instead, one part to a thread,
halves the time on two cores. Parts do not depend on the number of threads, so neither does any bit.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TypeVar

import numpy as np

MAX_SINGLE_THREADED_ROWS = 512  # rows up to which n×n work is fastest on one BLAS thread
MAX_THREADS = 8  # threads: each holds a copy of its part, and Python hands out parts one at a time

Part = TypeVar("Part")
Result = TypeVar("Result")


def parallel_map(work: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """`work` on every part, in order, on as many threads as BLAS was given; a lone part is left to BLAS."""
    if len(parts) < 2:
        return [work(part) for part in parts]
    with _blas.single_threaded() as threads:
        helpers = min(threads, MAX_THREADS, len(parts)) - 1
        if helpers < 1:
            return [work(part) for part in parts]
        todo, results = deque(enumerate(parts)), dict[int, Result]()
        error_state = np.geterr()  # each thread has its own: hostile numbers must overflow as quietly there

        def work_through() -> None:
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
            todo.clear()
            for helper in helping:  # one that never began, the others being busy, is not waited for
                helper.cancel() or helper.result()
        return [results[index] for index in range(len(parts))]


@contextmanager
def single_threaded_blas(n: int) -> Iterator[None]:
    """Limit BLAS to one thread for n×n work: on small matrices more threads only wait for each other."""
    if n > MAX_SINGLE_THREADED_ROWS:
        yield
        return
    with _blas.single_threaded():
        yield


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


class _Blas:
    """How many threads numpy's BLAS uses, where that can be set. It is set for the whole process."""

    def __init__(self) -> None:
        self._get_threads, self._set_threads = _switches()
        self._lock, self._users, self._before = threading.Lock(), 0, 1

    @contextmanager
    def single_threaded(self) -> Iterator[int]:
        """Limit BLAS to one thread while any caller is inside; yields the previous thread count.

        Where it cannot be set, 1: BLAS goes on with its own threads, and nobody adds to them.
        """
        with self._lock:
            if self._users == 0:
                self._before = self._get_threads()
            self._users += 1
            if self._before > 1:
                self._set_threads(1)
        try:
            yield self._before
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0 and self._before > 1:
                    self._set_threads(self._before)


def _switches() -> tuple[Callable[[], int], Callable[[int], Any]]:
    """OpenBLAS's own functions, under the names that numpy's builds give them."""
    core = sys.modules.get("numpy._core._multiarray_umath") or sys.modules["numpy.core._multiarray_umath"]
    try:
        library = ctypes.CDLL(core.__file__)
    except (OSError, TypeError):
        return lambda: 1, lambda threads: None
    for name in ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads"):
        if hasattr(library, name.format("set")) and hasattr(library, name.format("get")):
            return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return lambda: 1, lambda threads: None


_blas = _Blas()
