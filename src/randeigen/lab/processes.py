"""Runs in processes beside each other, which an interruption ends at once: quietly, with no draft left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import Any, TypeVar

from randeigen.errors import RandEigenError

Task = TypeVar("Task")
Result = TypeVar("Result")


class _Termination(BaseException):
    """The process was told to end: files that are being written are taken away on the way out."""


_BUSY: list[Any] = []  # in a process of the pool: what it works on


def in_processes(
    work: Callable[[Task], Result], tasks: Sequence[Task], jobs: int
) -> Generator[Result, None, None]:
    """The results as they come; on any error, or an interruption, the other processes end."""
    others = {child.pid for child in active_children()}
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin) as pool:
        try:
            with _uninterrupted():
                futures = [pool.submit(_work, work, task) for task in tasks]
            for future in as_completed(futures):
                yield future.result()
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                if child.pid not in others:
                    child.terminate()
            if isinstance(error, BrokenProcessPool):
                raise RandEigenError(
                    "a process ended in the middle of its run: it was killed, or there was not enough memory "
                    "for so many at a time. What is finished stays; the same call goes on, and fewer jobs "
                    "take less."
                ) from error
            raise


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes that begin in here never see Ctrl-C; this one sees it at the end."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """Processes beside each other must not each take all cores."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: Any) -> None:
    if not _BUSY:
        os._exit(1)
    raise _Termination


def _work(work: Callable[[Task], Result], task: Task) -> Result:
    _BUSY.append(task)
    try:
        return work(task)
    except _Termination:
        os._exit(1)
    finally:
        _BUSY.clear()
