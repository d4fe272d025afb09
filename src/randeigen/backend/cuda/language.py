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

__all__ = ["constexpr_function", "divided", "jit", "tl", "triton"]


@jit
def divided(a, b, FLOAT: tl.constexpr):  # type: ignore[no-untyped-def]
    """a / b as IEEE rounds it; Triton's own is off in the last bits, and numbers equally near no more are."""
    if tl.float32 == FLOAT:
        return tl.div_rn(a, b)
    else:
        return a / b
