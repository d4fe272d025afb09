"""A form, a structure or a format is the one that more than half of the rows share: no one sender sets it."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

Ballot = TypeVar("Ballot")


def winner_of(ballots: Counter[Ballot], voters: int) -> Ballot | None:
    """What more than half of the voters chose, or None."""
    for ballot, count in ballots.most_common(1):
        if 2 * count > voters:
            return ballot
    return None
