"""What the numbers of a record were made with, the commit among it: for studies, benchmarks and fuzzing."""

from __future__ import annotations

from randeigen import timing
from randeigen.provenance import command, commit

__all__ = ["commit", "made_with"]


def made_with() -> dict[str, str]:
    """Command, commit, versions and machine."""
    return {"command": command(), "commit": commit(), **timing.versions()}
