"""Versions of what decides a number, for records and audits."""

from __future__ import annotations

import platform
import sys

import numpy as np

import randeigen


def versions() -> dict[str, str]:
    """Versions of randeigen, numpy and Python; of torch too where it is loaded already."""
    used = {"randeigen": randeigen.__version__, "numpy": np.__version__, "python": platform.python_version()}
    if "torch" in sys.modules:
        used["torch"] = str(sys.modules["torch"].__version__)
    return used
