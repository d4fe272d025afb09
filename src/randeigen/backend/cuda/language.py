"""Triton, in which the kernels are written; modules can be imported without it, kernels cannot be run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

try:
    import triton
    import triton.language as tl

    jit, constexpr_function = triton.jit, triton.constexpr_function
except (ImportError, AttributeError):  # there is none, or an older one, which `has_kernels` knows

    def jit(function: Any = None, **options: Any) -> Any:
        """Nothing: there is no compiler."""
        return function or jit

    triton, tl, constexpr_function = None, None, jit

__all__ = ["Launch", "constexpr_function", "divided", "jit", "kept_launch", "tl", "triton"]

KEPT_LAUNCHES = 256  # of which the next is begun sooner
_compiled: dict[Any, Any] = {}


def current_stream(device: int) -> int:
    """The stream of torch's on which kernels run now."""
    import torch

    stream: int = torch._C._cuda_getCurrentRawStream(device)  # Triton's own way: others take microseconds
    return stream


class Launch:
    """A kernel, its grid and its constants: run without Triton looking at each argument once it is compiled.

    What it would look for must be the same whenever the constants are: tensors begin at multiples of 16
    bytes, integers are not specialised or constant. `constants` are in the kernel's own order, and last.
    """

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], device: Any, constants: Mapping[str, Any], **options: int
    ) -> None:
        self._kernel, self._grid, self._constants, self._options = kernel, grid, constants, options
        self._key = kernel.__name__, device.index, *constants.values(), *options.values()
        self._values, self._device = tuple(constants.values()), device.index
        self._run: Any = None

    def __call__(self, *numbers: Any) -> None:
        """Run it with these arguments."""
        if self._run is not None:
            # The launcher asks the driver about every tensor; of an address it does not.
            plain = [each.data_ptr() if hasattr(each, "data_ptr") else each for each in numbers]
            self._run(*plain, *self._values, stream=current_stream(self._device))
            return
        compiled = _compiled.get(self._key)
        if compiled is None:
            compiled = self._kernel[self._grid](*numbers, **self._constants, **self._options)
            if compiled is None:  # an interpreter compiles nothing
                return
            _compiled[self._key] = compiled
            return
        self._run = compiled[(*self._grid, 1, 1)[:3]]
        self(*numbers)


@lru_cache(KEPT_LAUNCHES)
def kept_launch(
    kernel: Any, programs: int, device: Any, constants: tuple[tuple[str, Any], ...], **options: int
) -> Launch:
    """The same launch whenever it is asked for: so many programs side by side."""
    return Launch(kernel, (programs,), device, dict(constants), **options)


@jit
def divided(a, b, FLOAT: tl.constexpr):  # type: ignore[no-untyped-def]
    """a / b as IEEE rounds it; Triton's own is off in the last bits, and numbers equally near no more are."""
    if tl.float32 == FLOAT:
        return tl.div_rn(a, b)
    else:
        return a / b
