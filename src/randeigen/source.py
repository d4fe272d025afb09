"""Whatever holds rows, as the pipeline sees it: measured in one pass, combined in another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from randeigen.types import Decision, Geometry, GeometryKind, Mask, Progress, Statistic, Verdict


class Judgement(NamedTuple):
    """A decision about the usable rows, and what it takes to combine them by it."""

    decision: Decision
    verdict: Verdict  # the decision's own, or the reference where it has none
    geometry: Geometry  # of the usable rows
    f: int  # how many of them the rule assumed corrupt
    certified: int  # how many the certificate assumes: all that the caller stated
    bias_bound: float | None  # of the verdict's weighted mean; None where no certificate was asked for
    notes: tuple[str, ...]


class Combined(NamedTuple):
    """The answer of the second pass."""

    mean: Any  # in the caller's own form
    away: float  # how far it may be from the verdict's weighted mean
    distance_to_mean: float | None = None  # from the plain mean, where that was summed up on the way


class Source(Protocol):
    """Rows that can be measured and then combined, wherever they are: arrays, files, the ranks of a job."""

    n: int
    carries: bool  # whether the rows hold integers or bools, which weights settle by vote
    unusable: Mapping[int, str]  # rows that cannot be used, and why; complete once they are measured

    def measure(
        self,
        want: Statistic,
        kind: GeometryKind = "auto",
        seed: int = 0,
        trusted: int | None = None,
        progress: Progress | None = None,
    ) -> Geometry:
        """The geometry of all rows, or a partial one that holds at least what is wanted."""

    def combine(self, judgement: Judgement, usable: Mask, progress: Progress | None = None) -> Combined:
        """The answer that a judgement on the usable rows comes to.

        Raises NeedsFullPass where rows of which nothing was measured turn out to be hostile.
        """

    def changed(self) -> Sequence[int]:
        """Rows that are no longer what was measured."""
