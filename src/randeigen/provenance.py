"""What the numbers of a record were made with."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np

import randeigen


def versions() -> dict[str, str]:
    """Versions of what decides a number; torch only if it is there already."""
    found = {"randeigen": randeigen.__version__, "numpy": np.__version__, "python": platform.python_version()}
    if "torch" in sys.modules:
        found["torch"] = str(sys.modules["torch"].__version__)
    return found


def commit() -> str:
    """The commit this code is of, where that can be known."""
    if named := os.environ.get("RANDEIGEN_COMMIT"):  # where the code was copied without its history
        return named
    here = Path(__file__).parent
    try:
        asked = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return asked.stdout.strip() or "unknown"
