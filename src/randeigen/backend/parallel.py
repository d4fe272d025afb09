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

MAX_SINGLE_THREADED_ROWS = 512  # rows
MAX_THREADS = 8  # threads: each holds a copy of its part, and Python hands out parts one at a time

Part = TypeVar("Part")
Found = TypeVar("Found")


def parallel_map(work: Callable[[Part], Found], parts: Sequence[Part]) -> list[Found]:
    """`work` on every part, in order, on as many threads as BLAS was given; a lone part is left to BLAS."""
    if len(parts) < 2:
        return [work(part) for part in parts]
    with _blas.alone() as threads:
        helpers = min(threads, MAX_THREADS, len(parts)) - 1
        if helpers < 1:
            return [work(part) for part in parts]
        todo, found = deque(enumerate(parts)), dict[int, Found]()
        heed = np.geterr()  # a thread's own: hostile numbers must overflow as quietly there as here

        def some() -> None:
            with np.errstate(**heed):
                while todo:
                    try:
                        place, part = todo.popleft()
                    except IndexError:  # another thread took the last one
                        return
                    found[place] = work(part)

        helping = []
        try:
            with suppress(RuntimeError):  # the interpreter is on its way out and starts no more threads
                pool = _pool(os.getpid())
                _keep_off(pool.ids)
                helping += [pool.submit(some) for _ in range(helpers)]
            some()
        finally:
            todo.clear()
            for helper in helping:  # one that never began, the others being busy, is not waited for
                helper.cancel() or helper.result()
        return [found[place] for place in range(len(parts))]


@contextmanager
def single_threaded_blas(n: int) -> Iterator[None]:
    """BLAS on one thread for work on n×n tables: below `SMALL` rows more threads only wait for each other."""
    if n > MAX_SINGLE_THREADED_ROWS:
        yield
        return
    with _blas.alone():
        yield


class _Threads(ThreadPoolExecutor):
    """Threads that wait for work, known by number."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        super().__init__(MAX_THREADS - 1, "randeigen", lambda: self.ids.append(threading.get_native_id()))


@cache
def _pool(process: int) -> _Threads:
    """None of its threads lives on in a process that was forked."""
    return _Threads()


def _keep_off(threads: Sequence[int]) -> None:
    """Let these threads run on any core but this one.

    Linux wakes a thread on the core that called it, where it would wait behind us for milliseconds while
    another core stands idle: longer than most of our work takes.
    """
    if _core is None:
        return
    with suppress(OSError):  # a thread that is gone, or a system that forbids it
        others = os.sched_getaffinity(0) - {_core()}
        for thread in threads if others else ():
            os.sched_setaffinity(thread, others)


def _which_core() -> Callable[[], int] | None:
    """The C library's way to tell on which core this runs, where there is one."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        return getattr(ctypes.CDLL(None), "sched_getcpu", None)
    except (OSError, TypeError):
        return None


_core = _which_core()


class _Blas:
    """How many threads numpy's BLAS uses, where it can be told. It is told for the whole process."""

    def __init__(self) -> None:
        self._ask, self._tell = _switches()
        self._lock, self._users, self._before = threading.Lock(), 0, 1

    @contextmanager
    def alone(self) -> Iterator[int]:
        """BLAS on one thread until the last of those who asked is done; the number it had before.

        Where it cannot be told, 1: it goes on with its own threads, and nobody adds to them.
        """
        with self._lock:
            if self._users == 0:
                self._before = self._ask()
            self._users += 1
            if self._before > 1:
                self._tell(1)
        try:
            yield self._before
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0 and self._before > 1:
                    self._tell(self._before)


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
