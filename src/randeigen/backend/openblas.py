"""What numpy's own BLAS is, and its switches."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

# Names by which OpenBLAS knows the processors for which it has kernels of small products.
SMALL_KERNEL_CORES = frozenset({"SkylakeX", "Cooperlake", "SapphireRapids"})
# Those whose kernels are for AVX2: also what OpenBLAS takes on a processor that it does not know yet.
AVX2_CORES = frozenset({"Haswell", "Zen"})
AVX512_CORE, AVX512_FEATURES = "SkylakeX", ("AVX512F", "AVX512CD", "AVX512BW", "AVX512DQ", "AVX512VL")


def thread_switches() -> tuple[Callable[[], int], Callable[[int], Any]]:
    """How many threads it has, and how that is set; 1 and nothing where it is another BLAS."""
    get_threads, set_threads = _openblas("get_num_threads"), _openblas("set_num_threads")
    if get_threads is None or set_threads is None:
        return lambda: 1, lambda threads: None
    return get_threads, set_threads


def _openblas(function: str) -> Any:
    """A function of OpenBLAS's own, under one of the names that numpy's builds give it; None without it."""
    names = ("scipy_openblas_{}64_", "openblas_{}64_", "openblas_{}")
    return function_of_numpys_library(*(name.format(function) for name in names))


def function_of_numpys_library(*names: str) -> Any:
    """The first of these that the libraries behind numpy have, or None."""
    with suppress(OSError, TypeError):
        library = ctypes.CDLL(_numpys_core().__file__)
        return next((getattr(library, name) for name in names if hasattr(library, name)), None)
    return None


def _numpys_core() -> Any:
    """The module in which numpy is compiled."""
    return sys.modules.get("numpy._core._multiarray_umath") or sys.modules["numpy.core._multiarray_umath"]


@cache
def has_small_kernels() -> bool:
    """Whether BLAS multiplies small matrices where they lie, without copying them, on this processor."""
    return kernels() in SMALL_KERNEL_CORES


@cache
def kernels() -> str:
    """The processor for which OpenBLAS has taken its kernels, in its own words; "unknown" of another BLAS."""
    name_of_core = _openblas("get_corename")
    if name_of_core is None:
        return "unknown"
    name_of_core.restype = ctypes.c_char_p
    return (name_of_core() or b"unknown").decode()


@cache
def better_core() -> str | None:
    """The processor whose kernels OpenBLAS could take here instead, where it leaves AVX-512 unused."""
    features = getattr(_numpys_core(), "__cpu_features__", {})
    has_avx512 = all(features.get(name) for name in AVX512_FEATURES)
    return AVX512_CORE if has_avx512 and kernels() in AVX2_CORES else None
