"""What every test runs under: no network, no display, the same examples on every run, and skips for extras.

A test that needs an optional dependency which is not installed is skipped, and the last lines name it: numpy,
pytest and hypothesis are enough to run the rest.
"""

from __future__ import annotations

import os
import sys
import types
import urllib.request
from collections import Counter
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

os.environ.setdefault("MPLBACKEND", "Agg")
if "PYTEST_XDIST_WORKER" in os.environ:
    # OpenMP's threads spin while they wait, which stops the other processes; those of BLAS sleep.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "2")

OPTIONAL = (
    *("byzfl", "clarabel", "hypothesis", "joblib", "matplotlib", "rich", "safetensors", "scipy", "sklearn"),
    *("torch", "typer"),
)


LONG_NAME = 8  # bytes


def is_absent(module: str) -> bool:
    """Whether a module is not installed; one that is hidden for a test is."""
    return module not in sys.modules and find_spec(module) is None


ABSENT = frozenset(module for module in OPTIONAL if is_absent(module))

if "hypothesis" not in ABSENT:
    from hypothesis import settings

    # A first run must not fail on an example nobody has seen; HYPOTHESIS_PROFILE=explore seeks such.
    settings.register_profile("steady", deadline=None, derandomize=True)
    settings.register_profile("explore", deadline=None, print_blob=True)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def absent_extra(error: BaseException | None) -> str | None:
    """The optional dependency for want of which something failed, if that is why it failed."""
    while ABSENT and error is not None:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in ABSENT:
            return (error.name or "").partition(".")[0]
        if type(error).__name__ == "MissingExtra":
            named = [module for module in sorted(ABSENT) if module in str(error)]
            return named[0] if named else "an extra"
        error = error.__cause__ or error.__context__
    return None


class Module(pytest.Module):
    """A test module that is skipped where it imports what is not installed."""

    def _getobj(self) -> Any:
        try:
            return super()._getobj()
        except self.CollectError as error:
            if extra := absent_extra(error):
                pytest.skip(f"needs {extra}", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> pytest.Module | None:
    return Module.from_parent(parent, path=module_path) if ABSENT else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _skipped_without_extra())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _skipped_without_extra())


def _skipped_without_extra() -> Generator[None, object, object]:
    try:
        return (yield)
    except Exception as error:
        if extra := absent_extra(error):
            pytest.skip(f"needs {extra}")
        raise


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Which test modules were left out, wholly or in part, for want of an optional dependency."""
    skipped = [report.nodeid.partition("::") for report in terminalreporter.stats.get("skipped", ())]
    if not ABSENT or not skipped:
        return
    tests = Counter(module for module, _, test in skipped if test)
    whole = sorted({module for module, _, test in skipped if not test})
    terminalreporter.write_line(f"Not installed: {', '.join(sorted(ABSENT))}. For want of them are left out")
    terminalreporter.write_line(f"  whole modules: {', '.join(whole) or 'none'}")
    parts = ", ".join(f"{module} ({count})" for module, count in sorted(tests.items()))
    terminalreporter.write_line(f"  single tests: {parts or 'none'}")


@pytest.fixture(scope="session", autouse=True)
def _no_downloads() -> Iterator[None]:
    def refuse(*args: object, **kwargs: object) -> None:
        raise URLError("tests do not use the network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(urllib.request, "urlopen", refuse)
        yield


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """A name for what may differ from process to process: packed bytes hold the time of packing."""
    return argname if isinstance(val, bytes) and len(val) > LONG_NAME else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not _cuda():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


@pytest.fixture(scope="session")
def byzfl() -> types.ModuleType:
    """The byzfl library, as an oracle. Use this, not `import byzfl`.

    Its benchmark needs a torchvision built for the very torch installed, and a CPU torch beside the default
    torchvision is not that. No test runs the benchmark, so an empty module takes its name.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "byzfl.benchmark", types.ModuleType("byzfl.benchmark"))
        return pytest.importorskip("byzfl")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small models train faster on one thread than on two that wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
