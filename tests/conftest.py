"""What every test runs under: no network, no display, the same examples on every run."""

from __future__ import annotations

import os
import sys
import types
import urllib.request
from collections.abc import Iterator
from urllib.error import URLError

import pytest
from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")

# A newcomer's first run must not fail on an example nobody has seen; HYPOTHESIS_PROFILE=explore seeks them.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.fixture(scope="session", autouse=True)
def _no_downloads() -> Iterator[None]:
    def refuse(*args: object, **kwargs: object) -> None:
        raise URLError("tests do not use the network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(urllib.request, "urlopen", refuse)
        yield


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
    torchvision is not that. No test runs the benchmark, so an empty module stands in for it.
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
