"""What the numbers of a record were made with."""

from __future__ import annotations

import platform
import sys

import numpy as np

import randeigen


def versions() -> dict[str, str]:
    """Versions of what decides a number; torch only if it is there already."""
    found = {"randeigen": randeigen.__version__, "numpy": np.__version__, "python": platform.python_version()}
    if "torch" in sys.modules:
        found["torch"] = str(sys.modules["torch"].__version__)
    return found
