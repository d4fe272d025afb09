"""Versions of what decides a number, the command and the commit of the code, for records and audits."""

from __future__ import annotations

import os
import platform
import shlex
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


def processor() -> str:
    """The name of this machine's processor: another one may round otherwise."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def command(program: str | None = None) -> str:
    """What was typed: the program, which is found out for `python -m benchmarks.departures`, and the rest."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    start = [program] if program else ["python", sys.argv[0]] if spec is None else ["python", "-m", spec.name]
    return shlex.join([*start, *sys.argv[1:]])


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
