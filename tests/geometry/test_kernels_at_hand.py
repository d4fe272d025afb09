"""Which Tritons the kernels can be compiled with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import make_dataclass
from types import ModuleType

import pytest

from randeigen.backend.device_blocks import has_kernels

NEEDED = "launch_cooperative_grid"


def triton_with(monkeypatch: pytest.MonkeyPatch, *options: str, functions: bool = True) -> None:
    """Put a Triton that has these options in the place of any."""
    names = ["triton", "triton.backends", "triton.backends.nvidia", "triton.backends.nvidia.compiler"]
    modules = {name: ModuleType(name) for name in names}
    if functions:
        modules["triton"].constexpr_function = lambda function: function  # type: ignore[attr-defined]
    modules[names[-1]].CUDAOptions = make_dataclass("CUDAOptions", options)  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    has_kernels.cache_clear()


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    has_kernels.cache_clear()


def test_a_triton_that_has_what_kernels_need_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    triton_with(monkeypatch, "num_warps", NEEDED)
    assert has_kernels()


@pytest.mark.parametrize(("options", "functions"), [(("num_warps",), True), (("num_warps", NEEDED), False)])
def test_an_older_one_is_as_none(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], functions: bool
) -> None:
    triton_with(monkeypatch, *options, functions=functions)
    assert not has_kernels()
