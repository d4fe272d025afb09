"""Versions of what decides a number, and the commit of the code, for records and audits."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np

import randeigen


def versions() -> dict[str, str]:
    """Versions of randeigen, numpy and Python; of torch too where it is loaded already."""
    used = {"randeigen": randeigen.__version__, "numpy": np.__version__, "python": platform.python_version()}
    if "torch" in sys.modules:
        used["torch"] = str(sys.modules["torch"].__version__)
    return used


def commit() -> str:
    """The commit of the checkout that this code is in, "+changes" behind it if files differ from it.

    RANDEIGEN_COMMIT names it where the code was copied without its history; "unknown" where nothing does.
    """
    if named := os.environ.get("RANDEIGEN_COMMIT"):
        return named
    here = Path(__file__)
    # An installed package may lie in somebody else's repository, which does not know this file.
    if not _git(here.parent, "ls-files", here.name):
        return "unknown"
    changed = _git(here.parent, "status", "--porcelain", "--untracked-files=no", ":/src")
    return _git(here.parent, "rev-parse", "--short", "HEAD") + ("+changes" if changed else "")


def _git(folder: Path, *words: str) -> str:
    try:
        answer = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
