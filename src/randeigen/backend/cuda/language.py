"""Triton, in which the kernels are written; modules can be imported without it, kernels cannot be run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

try:
    import triton
    import triton.language as tl

    jit, constexpr_function = triton.jit, triton.constexpr_function
except ImportError:

    def jit(function: Any = None, **options: Any) -> Any:
        """Nothing: there is no compiler."""
        return function or jit

    triton, tl, constexpr_function = None, None, jit

__all__ = ["constexpr_function", "divided", "jit", "launch", "tl", "triton"]

_compiled: dict[Any, Any] = {}


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    device: Any,
    numbers: tuple[Any, ...],
    constants: Mapping[str, Any],
    **options: int,
) -> None:
    """Run a kernel; a second time without Triton looking at each argument, which takes longer than the work.

    What it would look for must be the same whenever the constants are: tensors begin at multiples of 16
    bytes, integers are not specialised or constant. `constants` are in the kernel's own order, and last.
    """
    key = kernel.__name__, device.index, *constants.values(), *options.values()
    if (known := _compiled.get(key)) is not None:
        known[(*grid, 1, 1)[:3]](*numbers, *constants.values())
        return
    compiled = kernel[grid](*numbers, **constants, **options)
    if compiled is not None:  # an interpreter compiles nothing
        _compiled[key] = compiled


@jit
def divided(a, b, FLOAT: tl.constexpr):  # type: ignore[no-untyped-def]
    """a / b as IEEE rounds it; Triton's own is off in the last bits, and numbers equally near no more are."""
    if tl.float32 == FLOAT:
        return tl.div_rn(a, b)
    else:
        return a / b
