"""What the numbers of a record were made with, the commit among it: for studies, benchmarks and fuzzing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from randeigen import timing


def made_with() -> dict[str, str]:
    """Versions, machine and commit."""
    return {**timing.versions(), "commit": commit()}


def commit() -> str:
    """The commit of this checkout; RANDEIGEN_COMMIT names it where code was copied without its history."""
    if named := os.environ.get("RANDEIGEN_COMMIT"):
        return named
    ask = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return answer.stdout.strip() or "unknown"
