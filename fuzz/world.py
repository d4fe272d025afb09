"""What a call must leave as it found it, what it must not print, and how long it may take."""

from __future__ import annotations

import os
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from randeigen.errors import RandEigenError

DESCRIPTORS = "/proc/self/fd"
WAITING = 6.0  # times as long may pass as may be worked


class Failure(Exception):
    """A property does not hold. `claim` names it, `where` is the place in the code if one is known."""

    def __init__(self, claim: str, message: str, where: str = "") -> None:
        super().__init__(message)
        self.claim, self.message, self.where = claim, message, where


class OutOfTime(BaseException):
    """The time for this input is over; no `except Exception` in between may swallow it."""


def expect(holds: Any, claim: str, message: str | Callable[[], str]) -> None:
    """Raise Failure unless it holds."""
    if not holds:
        raise Failure(claim, message if isinstance(message, str) else message())


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in the main thread after so long at work, or many times as long of waiting.

    The machine may have other things to do, so it is this process's own time that counts.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return

    def over(*_: Any) -> None:
        raise OutOfTime

    clocks = (
        (signal.SIGPROF, signal.ITIMER_PROF, seconds),
        (signal.SIGALRM, signal.ITIMER_REAL, WAITING * seconds),
    )
    before = [signal.signal(number, over) for number, _, _ in clocks]
    try:
        for _, clock, limit in clocks:
            signal.setitimer(clock, limit)
        yield
    finally:
        for (number, clock, _), handler in zip(clocks, before, strict=True):
            signal.setitimer(clock, 0)
            signal.signal(number, handler)


def world() -> dict[str, Any]:
    """All the global state that a call could change."""
    legacy: Any = np.random.get_state()
    found: dict[str, Any] = {
        "numpy's error state": np.geterr(),
        "numpy's random state": (legacy[1].tobytes(), *legacy[2:]),
        "random's state": random.getstate(),
        "warnings filters": (len(warnings.filters), tuple(warnings.filters[:8])),
        "showwarning": warnings.showwarning,
        "the folder": os.getcwd(),
        "recursion limit": sys.getrecursionlimit(),
    }
    if torch := sys.modules.get("torch"):
        found |= {
            "torch's random state": torch.random.get_rng_state().numpy().tobytes(),
            "torch's threads": torch.get_num_threads(),
            "torch's default dtype": torch.get_default_dtype(),
            "gradients": torch.is_grad_enabled(),
            "determinism": torch.are_deterministic_algorithms_enabled(),
            "TF32": torch.backends.cuda.matmul.allow_tf32,
        }
    return found


def unchanged(before: dict[str, Any]) -> None:
    """Raise Failure if something is not as it was."""
    after = world()
    for name, value in before.items():
        if after[name] != value:
            raise Failure("no global state is changed", f"{name}: {value!r:.100} → {after[name]!r:.100}")


def files_open() -> int:
    """How many files this process holds open, where that can be known."""
    return len(os.listdir(DESCRIPTORS)) if os.path.isdir(DESCRIPTORS) else 0


def attempt(call: Callable[[], Any], command: bool = False) -> tuple[Any, RandEigenError | None]:
    """What a call gives, or the documented error it raises; anything else, warnings too, is a Failure.

    A `command` has a process of its own: there rich may draw from `random` for the ids of its styles.
    """
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        before = world()
        if command:
            before.pop("random's state")
        try:
            result, error = call(), None
        except RandEigenError as found:
            result, error = None, found
        except Exception as found:
            told = f"{type(found).__name__}: {found}"[:400]
            raise Failure("only documented errors", told, place(found)) from found
        unchanged(before)
    if heard:
        first = heard[0]
        where = f"{os.path.basename(first.filename)}:{first.lineno}"
        raise Failure("no warning", f"{first.category.__name__}: {first.message}"[:300], where)
    return result, error


def place(error: BaseException) -> str:
    """The deepest line of the package in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "randeigen" in frame.filename.replace("\\", "/").split("/")]
    if not own:
        return ""
    return f"{os.path.basename(own[-1].filename)}:{own[-1].name}"
