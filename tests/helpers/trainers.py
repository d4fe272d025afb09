"""Libraries that train models, where they are installed and fit the torch that is."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

import pytest

from randeigen.lab.encoders import hidden_torchvision


def import_or_skip(module: str, *names: str) -> ModuleType:
    """The module with these names loaded, or a skip of the tests that need it.

    A torchvision built for another torch, which such libraries import for images, is hidden from them.
    """
    package = module.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {package}", allow_module_level=True)
    try:
        with hidden_torchvision():
            found = importlib.import_module(module)
            for name in names:  # some load what they hold when it is first asked for
                getattr(found, name)
    except ImportError as error:
        pytest.skip(f"{package} cannot be imported beside this torchvision: {error}", allow_module_level=True)
    return found
