"""Whatever holds rows, as the pipeline sees it: measured in one pass, combined in another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from randeigen.column_combiners import as_combiner
from randeigen.combine import RowSizes, combine, merge_columns
from randeigen.diagnostics import WithDistanceToMean
from randeigen.geometry import measure
from randeigen.geometry.partial import measure_partly
from randeigen.types import Decision, Geometry, GeometryKind, Mask, Progress, Rows, Statistic, Verdict


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
    """Rows that can be measured and then combined, wherever they are: arrays, files, one day other ranks."""

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


class StreamedRows:
    """Rows in arrays, records or files, read block by block in each of the two passes."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._unmeasured = False
        self.n = rows.n
        self.carries = rows.carries
        self.unusable: Mapping[int, str] = rows.unusable

    def measure(
        self,
        want: Statistic,
        kind: GeometryKind = "auto",
        seed: int = 0,
        trusted: int | None = None,
        progress: Progress | None = None,
    ) -> Geometry:
        """Pass 1. Rows that plain sums cannot measure get the whole measurement, whatever is wanted."""
        if want is not Statistic.GRAM and not self._rows.unusable:
            partial = measure_partly(self._rows, want, trusted)
            if partial is not None:
                self._unmeasured = want is Statistic.NONE
                return partial
        self._unmeasured = False
        geometry, self.unusable = measure(self._rows, kind, seed, progress)
        return geometry

    def combine(self, judgement: Judgement, usable: Mask, progress: Progress | None = None) -> Combined:
        """Pass 2."""
        verdict, plan = judgement.verdict, judgement.decision.combine
        weights = np.zeros(self.n)
        weights[usable] = verdict.weights
        size = _row_sizes(judgement)
        if plan is None:
            mean, away = combine(self._rows, weights, usable, verdict.scale, progress, self._unmeasured, size)
            return Combined(
                mean, away if judgement.certified else 0.0
            )  # without corrupt rows nothing was moved
        combiner = as_combiner(plan)
        watched = None if judgement.bias_bound is None else WithDistanceToMean(combiner)
        mean, away = merge_columns(
            self._rows, weights, usable, watched or combiner, verdict.scale, progress, self._unmeasured,
            size if judgement.certified else None,
        )  # fmt: skip
        return Combined(mean, away, None if watched is None else watched.distance)

    def changed(self) -> Sequence[int]:
        """Files that were rewritten since they were opened."""
        return self._rows.changed()


def _row_sizes(judgement: Judgement) -> RowSizes | None:
    """Root mean square norm and spread of the rows that have weight, where all was measured."""
    geometry, w = judgement.geometry, judgement.verdict.weights
    if geometry.partial:
        return None
    norm, spread = (
        float(w @ squares) for squares in (geometry.squared_norms(), geometry.squared_norms_from_pivot())
    )
    return RowSizes(math.sqrt(norm / (1 - geometry.distortion)), math.sqrt(spread), geometry.unit)
