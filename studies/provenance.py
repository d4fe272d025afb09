"""What the numbers of a record were made with, the commit among it: for studies, benchmarks and fuzzing."""

from __future__ import annotations

from randeigen import timing
from randeigen.provenance import commit

__all__ = ["commit", "made_with"]


def made_with() -> dict[str, str]:
    """Versions, machine and commit."""
    return {**timing.versions(), "commit": commit()}
