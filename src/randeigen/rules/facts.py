"""What a reader wants to know of a rule before choosing it, one line each."""

from __future__ import annotations

from typing import NamedTuple


class Facts(NamedTuple):
    """Shown by `randeigen rules`."""

    paper: str  # who, when
    cost: str  # in n and d, the table included
    breakdown: str  # the largest fraction of liars it survives
    blind_to: str  # what a liar can do unseen
