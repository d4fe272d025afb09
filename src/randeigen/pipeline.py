"""Measure, decide, certify, combine: the four steps that every aggregate goes through.

`judge` is the only place where a rule is run and certified: for `aggregate`, `rule(rows)`, files shared among
workers, the ranks of a job, and `randeigen.torch.backward`.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.batched import RoundsAhead
from randeigen.backend.chunking import single_threaded_blas
from randeigen.certificate import certify, cut_together, distance_to_mean, on_all_rows
from randeigen.column_combiners import DistanceToMean, Merging, as_combiner
from randeigen.combine import NeedsFullPass, RowSizes, combine
from randeigen.errors import BadFraction, BadParameter, BadRows
from randeigen.geometry import measure
from randeigen.geometry.partial import measure_partly
from randeigen.prior_weights import MAX_CLAIM_RATIO, prior_weights_of, read_claims
from randeigen.rows import as_rows
from randeigen.rules.base import MAX_ROWS_NAMED, Assumed, Rule, assume, check_on_excess
from randeigen.rules.randeigen import coins_for, reference_verdict
from randeigen.source import Combined, Judgement, Source
from randeigen.types import (
    Aggregate,
    Array,
    Decision,
    Geometry,
    GeometryKind,
    Index,
    Mask,
    OnExcess,
    Progress,
    Rows,
    Statistic,
)


class Settings(NamedTuple):
    """The checked options of one call."""

    f: int  # how many of the rows the rule assumes corrupt
    stated: int  # how many the caller says may be
    claims: Array | None
    seed: int


@dataclass(frozen=True)
class Options:
    """How rows are aggregated, beside the rule. `aggregate` says what each option means."""

    seed: int | None = None
    geometry: GeometryKind = "auto"
    on_excess: OnExcess = "raise"
    row_weights: Any = None
    cap: float = MAX_CLAIM_RATIO
    progress: Progress | None = None

    def checked(self, rule: Rule, n: int) -> Settings:
        """What the options come to for n rows; raises where one of them is wrong."""
        check_on_excess(self.on_excess)
        f = rule.assumed_corrupt(n)
        claims = None if self.row_weights is None else read_claims(self.row_weights, self.cap, n)
        return Settings(f, max(f, rule.stated_corrupt(n)), claims, seed_or_fresh(self.seed))


def run(source: Source, rule: Rule, options: Options) -> Aggregate:
    """Aggregate rows by `rule`, and certify: in this process, or spread over the ranks of a job."""
    f, stated, claims, seed = options.checked(rule, source.n)
    kind = rule.geometry if options.geometry == "auto" else options.geometry
    # A certificate needs more than a rule may; only one that goes by directions is content with these.
    by_directions = rule.statistic() is Statistic.DIRECTIONS
    want = Statistic.DIRECTIONS if by_directions else Statistic.GRAM
    with single_threaded_blas(source.n):  # for small products its threads would wait for one another
        whole = source.measure(want, kind, seed, progress=options.progress)
        assumed = assume(f, source.n, source.unusable, options.on_excess, stated)
        usable = _usable(source)
        index = usable.nonzero()[0]
        cloud, notes = whole.take(index) if source.unusable else whole, assumed.notes
        if claims is not None:
            prior, on_claims = prior_weights_of(claims[index], options.cap, assumed.f)
            cloud, notes = cloud.with_prior_weights(prior), (*notes, *on_claims)
        judgement = judge(cloud, rule, index, assumed, coins_for(rule, seed), certificate=False)
        if isinstance(source, StreamedRows):
            source.begin(judgement, usable, options.progress)
        judgement = _certified(judgement)
        verdict, by_column = judgement.verdict, judgement.decision.combine is not None
        groups = [] if by_column else cut_together(cloud, verdict.weights, assumed.certified)
        between = distance_to_mean(cloud, verdict.weights, verdict.scale)
        mean, away, to_mean = source.combine(judgement, usable, options.progress)
    refuse_changes(source)
    assert judgement.bias_bound is not None
    if to_mean is None:
        # Rounding of the answer has no particular direction, so it adds to the distance as a right angle.
        to_mean = math.hypot(between, away)
    verdict = on_all_rows(verdict, usable, (*notes, *judgement.notes), groups, assumed.certified)
    return Aggregate(
        mean,
        verdict.weights,
        # An answer made column by column is as far off as its distance to the mean that is certified.
        judgement.bias_bound + away,
        verdict,
        seed,
        stated,
        source.unusable,
        to_mean,
        is_weighted_mean=not by_column,
    )


def answer(rows: Any, rule: Rule, seed: int | None = None) -> Any:
    """The mean that `run` finds, alone: without a certificate no more is measured than the rule needs."""
    source = streamed(rows, rule)
    f, seed = rule.assumed_corrupt(source.n), seed_or_fresh(seed)
    # Integers are settled by weights, which a rule that works column by column has only by the reference.
    everything = source.carries and not rule.weighs_rows()
    with suppress(NeedsFullPass), np.errstate(all="ignore"):  # hostile numbers overflow; then all is measured
        return _answer(source, rule, f, seed, Statistic.GRAM if everything else rule.statistic())
    return _answer(source, rule, f, seed, Statistic.GRAM)


def _answer(source: Source, rule: Rule, f: int, seed: int, want: Statistic) -> Any:
    whole = source.measure(want, rule.geometry, seed, rule.trusted)
    assumed, usable = assume(f, source.n, source.unusable), _usable(source)
    index, rng = np.flatnonzero(usable), coins_for(rule, seed)
    judgement = judge(whole.take(index), rule, index, assumed, rng, certificate=False)
    mean = source.combine(judgement, usable).mean
    refuse_changes(source)
    return mean


def judge(
    geometry: Geometry,
    rule: Rule,
    index: Index,
    assumed: Assumed,
    rng: np.random.Generator,
    *,
    certificate: bool = True,
) -> Judgement:
    """Run a rule on the usable rows, and certify its weights.

    `geometry` shows the usable rows alone, with their prior weights; `index` holds their numbers among all.
    """
    rule = rule.reindex(index)
    with single_threaded_blas(geometry.n):
        decision, f = _decide(rule, geometry, assumed, rng)
        if not isinstance(decision, Decision):
            name, kind = type(rule).__name__, type(decision).__name__
            raise BadParameter(f"{name} is not a rule: decide returned {kind}; return a Decision.")
        verdict = decision.verdict
        if verdict is None:
            verdict = reference_verdict(decision, geometry, f, rng)
        notes = _on_tolerance(assumed, f, geometry.n)
        judgement = Judgement(decision, verdict, geometry, f, assumed.certified, None, notes)
        return _certified(judgement) if certificate else judgement


def _decide(
    rule: Rule, geometry: Geometry, assumed: Assumed, rng: np.random.Generator
) -> tuple[Decision, int]:
    """The rule's decision, and its f: where the caller's is disproved, as many as the rule tolerates."""
    for f in range(assumed.f, 0, -1):
        try:
            return rule.decide(geometry, f, rng), f
        except BadFraction:
            if not assumed.broken:
                raise
    return rule.decide(geometry, 0, rng), 0


def _certified(judgement: Judgement) -> Judgement:
    """With the bound for all rows that may be corrupt on what a rule came to with f; inf for half or more."""
    geometry, verdict, corrupt = judgement.geometry, judgement.verdict, judgement.certified
    if corrupt > 0 and 2 * corrupt >= geometry.n:
        return judgement._replace(bias_bound=math.inf)
    # The bounds of rounds are estimates where another measurement is there for the certificate.
    known = verdict.bounds and corrupt == judgement.f and not (geometry.distortion or geometry.check)
    bound = verdict.bounds[verdict.answer_round] if known else certify(geometry, verdict.weights, corrupt)
    return judgement._replace(bias_bound=bound * verdict.scale if math.isfinite(bound) else math.inf)


def _on_tolerance(assumed: Assumed, f: int, n: int) -> tuple[str, ...]:
    """A note where the rule could not assume as many corrupt rows as the certificate must."""
    if f >= assumed.certified:
        return ()
    note = f"{assumed.certified} of {n} usable rows were assumed corrupt, of which the rule tolerates {f}"
    return (f"{note}; half or more: bias_bound is inf" if 2 * assumed.certified >= n else note,)


def streamed(rows: Any, rule: Rule) -> StreamedRows:
    """Rows in any form, as this rule reads them."""
    rows = as_rows(rows, multiple=rule.block_multiple())
    if rows.on_host:
        return StreamedRows(rows)
    from randeigen.rules.randeigen_on_device import rounds_ahead

    return StreamedRows(rows, rounds_ahead(rule, rows.n))


class StreamedRows:
    """Rows in arrays, records or files, read block by block in each of the two passes."""

    def __init__(self, rows: Rows, ahead: RoundsAhead | None = None) -> None:
        """`ahead`: rounds that will be asked for, if it is known."""
        self._rows, self._ahead = rows, ahead
        self._unmeasured = False
        self._begun: Merging | None = None
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
        if want not in (Statistic.GRAM, Statistic.DIRECTIONS) and not self._rows.unusable:
            partial = measure_partly(self._rows, want, trusted)
            if partial is not None:
                self._unmeasured = want is Statistic.NONE
                return partial
        self._unmeasured = False
        geometry, self.unusable = measure(self._rows, kind, seed, progress, want, self._ahead)
        return geometry

    def begin(self, judgement: Judgement, usable: Mask, progress: Progress | None) -> None:
        """Where a GPU combines columns let it begin, before the certificate: it needs nothing of that."""
        if judgement.decision.combine is not None and not self._rows.on_host:
            self._begun = self._merge(judgement, usable, progress, True)
            self._begun.begin()

    def combine(self, judgement: Judgement, usable: Mask, progress: Progress | None = None) -> Combined:
        """Pass 2: the weighted mean, or what the decision's combiner makes of the columns."""
        if judgement.decision.combine is None:
            (weights, size), scale = self._weighted(judgement, usable), judgement.verdict.scale
            mean, away = combine(self._rows, weights, usable, scale, progress, self._unmeasured, size)
            # Without corrupt rows nothing was moved; but what is stretched may end at the largest number.
            return Combined(mean, away if judgement.certified or scale > 1 else 0.0)
        merging = self._begun or self._merge(judgement, usable, progress, judgement.bias_bound is not None)
        return Combined(*merging.finish())

    def _merge(self, judgement: Judgement, usable: Mask, progress: Progress | None, to_mean: bool) -> Merging:
        (weights, size), plan = self._weighted(judgement, usable), judgement.decision.combine
        assert plan is not None
        return Merging(
            self._rows, weights, usable, as_combiner(plan), judgement.verdict.scale, progress,
            self._unmeasured, size if judgement.certified else None, DistanceToMean() if to_mean else None,
        )  # fmt: skip

    def _weighted(self, judgement: Judgement, usable: Mask) -> tuple[Array, RowSizes | None]:
        """(n,) the weights of all rows, and how large those are that have some."""
        weights = of_usable = judgement.verdict.weights
        if weights.size < self.n:
            weights = np.zeros(self.n)
            weights[usable] = of_usable
        return weights, RowSizes.of(judgement.geometry, of_usable)

    def changed(self) -> Sequence[int]:
        """Files that were rewritten since they were opened."""
        return self._rows.changed()


def _usable(source: Source) -> Mask:
    usable = np.ones(source.n, dtype=bool)
    if source.unusable:
        usable[list(source.unusable)] = False
    return usable


def seed_or_fresh(seed: int | None) -> int:
    """The seed, checked; None draws one, after the last row arrived: an adversary may know all but this."""
    return secrets.randbits(64) if seed is None else checked_seed(seed)


def checked_seed(seed: int) -> int:
    """The seed, if it is a whole number from 0, of any size: Python's or numpy's, no bool and no float."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise BadParameter(f"seed={seed!r}; give a non-negative integer, or None for a fresh random one.")
    return int(seed)


def refuse_changes(source: Source | Rows) -> None:
    """A file rewritten between the two readings would be averaged without having been judged."""
    changed = list(source.changed())
    if changed:
        raise BadRows(
            f"rows {changed[:MAX_ROWS_NAMED]} changed on disk while they were read; aggregate them again."
        )
