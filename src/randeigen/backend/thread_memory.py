"""Memory of one part of a block, kept by each thread for the next part it copies."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.chunking import BLOCK_BYTES, CACHE_LINE_BYTES, CROWDED_BYTES, memory_for_rows

MAX_THREAD_BYTES = BLOCK_BYTES + 2**16  # bytes that a thread keeps: a block, its rows kept apart


class _ThreadMemory(threading.local):
    """Memory that a thread takes for part after part: fresh memory is cleared first, which takes longer
    than to write into it.
    """

    def __init__(self) -> None:
        self.numbers = np.empty(0, np.uint8)

    def references(self) -> int:
        """How many there are to the memory: more than to one that nobody has an array of, if somebody has."""
        return sys.getrefcount(self.numbers)


_memory, _second = _ThreadMemory(), _ThreadMemory()
_UNUSED = _memory.references()


def memory_of_thread(shape: tuple[int, ...], dtype: np.dtype[Any], second: bool = False) -> NDArray[Any]:
    """What `memory_for_rows` gives, but kept from part to part unless somebody still holds an array of it.

    `second`: beside the first, for what the numbers there are made from.
    """
    return _taken(_second if second else _memory, shape, dtype)


def _taken(memory: _ThreadMemory, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    n, width = shape
    used = width * dtype.itemsize
    line = used + (0 if used % CROWDED_BYTES else CACHE_LINE_BYTES)
    if n * line > MAX_THREAD_BYTES:
        return memory_for_rows(shape, dtype)
    if memory.numbers.size < n * line or memory.references() > _UNUSED:
        memory.numbers = np.empty(max(n * line, memory.numbers.size), np.uint8)
    return memory.numbers[: n * line].reshape(n, line)[:, :used].view(dtype)
