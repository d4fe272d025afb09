"""Triton, in which the kernels are written; modules can be imported without it, kernels cannot be run."""

from __future__ import annotations

from typing import Any

try:
    import triton
    import triton.language as tl

    jit, constexpr_function = triton.jit, triton.constexpr_function
except ImportError:

    def jit(function: Any) -> Any:
        """Nothing: there is no compiler."""
        return function

    triton, tl, constexpr_function = None, None, jit

__all__ = ["constexpr_function", "jit", "tl", "triton"]
