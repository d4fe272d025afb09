"""Measure, judge part by part, certify the union, combine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from randeigen.backend.chunking import single_threaded_blas
from randeigen.backend.random_streams import Stream
from randeigen.combine import RowSizes
from randeigen.errors import BadParameter
from randeigen.geometry.choice import MAX_EXACT_ROWS
from randeigen.geometry.gram import GramGeometry
from randeigen.part_certificate import SMALLEST_SQUARE, held_by_heaviest
from randeigen.partition import Partition
from randeigen.parts.combining import KEPT, Combining
from randeigen.parts.hybrid import HybridJudge
from randeigen.parts.judging import Judge, influence_of, less_mean
from randeigen.parts.measuring import NARROW, MeasuredParts, exponent_of
from randeigen.pipeline import Options, judge, refuse_changes
from randeigen.prior_weights import prior_weights_of
from randeigen.rules.base import MAX_ROWS_NAMED, Rule, assume
from randeigen.showing import first_of
from randeigen.source import Judgement
from randeigen.types import Aggregate, Array, Index, Mask, Rows, Stop, Verdict

MAX_PARTS_NAMED = 8  # in a note
MAX_WIDENING = 2  # narrow parts are judged together with those of up to this many times their width


@dataclass(frozen=True, eq=False)
class Parts:
    """What was made of each part of the columns.

    Attributes:
        partition: Which columns and which name each part has.
        weights: (parts, n) the weights of the rows in each part; each line sums to 1.
        scales: (parts,) the answer in a part is the weighted mean times this: 1 unless rows were clipped.
        bounds: (parts,) `bias_bound` of each part on its own; inf or NaN where it is not known, which is
            so of the parts of a hybrid that keep the weights of the whole rows.
        own: (parts,) whether a part has weights of its own; all have, but in a hybrid.
        ends: Numbers of parts that have weights of their own, and why the rule ended in each; `stops` has the
            same by number.
    """

    partition: Partition
    weights: Array
    scales: Array
    bounds: Array
    own: Mask
    ends: tuple[tuple[Index, tuple[str, ...]], ...]

    @cached_property
    def stops(self) -> dict[int, str]:
        """Why the rule ended, by the number of the part, of those that have weights of their own."""
        return {
            part: stop for parts, stops in self.ends for part, stop in zip(parts.tolist(), stops, strict=True)
        }

    def __len__(self) -> int:
        return self.partition.count

    def name(self, part: int) -> str:
        """What the part is called: `embedding.weight[7]`."""
        return self.partition.name(part)


def run(rows: Rows, rule: Rule, partition: Partition, options: Options) -> Aggregate:
    """Aggregate `rows` by `rule` in each part, and certify the whole. Reads them twice."""
    _check(rows, rule)
    f, stated, claims, seed = options.checked(rule, rows.n)
    partition = partition.without_short_runs()
    measured = MeasuredParts(rows, partition, seed, options.progress)
    unusable = dict(sorted(measured.unusable.items()))
    assumed = assume(f, rows.n, unusable, options.on_excess, stated)
    usable = np.ones(rows.n, dtype=bool)
    usable[list(unusable)] = False
    index = np.flatnonzero(usable)
    prior, notes = np.ones(index.size), assumed.notes
    if claims is not None:
        prior, on_claims = prior_weights_of(claims[index], options.cap, assumed.f)
        notes = (*notes, *on_claims)
    unit = measured.whole.scale
    cloud = measured.whole.take(index).with_prior_weights(prior)
    one = Judge(rule, index, assumed, seed, prior, exponent_of(measured.whole))
    parts = measured.geometries(index, batched=False)
    with single_threaded_blas(index.size), np.errstate(all="ignore"):
        whole = None
        if partition.hybrid:
            rng = np.random.default_rng([seed, Stream.RULE])
            whole = judge(cloud, rule, index, assumed, rng)
            runs = measured.geometries(index, batched=True)
            hybrid = HybridJudge.of(one, whole, partition, runs)
            judged = hybrid.geometries(parts, partition.widths)
        else:
            judged = one.geometries(parts)
        # A hybrid looks at the variance of a column, and columns of zeros have none.
        for numbers, pieces in measured.narrow_groups(index, 1 if whole else MAX_WIDENING):
            each_judged = (hybrid if whole else one).pieces(pieces, numbers, NARROW)
            judged += [(numbers[some], each) for some, each in each_judged]
    default = prior / prior.sum() if whole is None else whole.verdict.weights
    combining = Combining(
        partition, usable, assumed.certified, default, 1.0 if whole is None else whole.verdict.scale, unit
    )
    for part, each in judged:
        combining.add(part, each)
    sizes = {part: RowSizes.of(each, combining.weights[part]) for part, each in parts.items()}
    sizes[KEPT] = RowSizes.of(cloud, default)
    answer = combining.average(rows, hybrid if whole else one, sizes, options.progress)
    if whole is not None:
        with np.errstate(all="ignore"):
            _add_the_rest(combining, cloud, whole)
    mean_weights = np.zeros(rows.n)
    mean_weights[usable] = combining.union.weights
    mean = answer.finish(mean_weights)
    refuse_changes(rows)
    own = combining.own
    notes = (*notes, *_notes(partition, combining, index, default))
    verdict = (
        Verdict(mean_weights, Stop.PARTS, notes=notes) if whole is None else _of_whole(whole, usable, notes)
    )
    half = assumed.certified > 0 and 2 * assumed.certified >= index.size
    bound = math.inf if half else combining.union.bound()
    with np.errstate(over="ignore"):  # a bound beyond the largest number is infinite
        bounds = combining.bounds * unit
    return Aggregate(
        mean,
        mean_weights,
        bound * unit + combining.rounding if assumed.certified else 0.0,
        replace(verdict, weights=mean_weights),
        seed,
        stated,
        unusable,
        math.hypot(combining.to_mean * unit, combining.rounding),
        is_weighted_mean=False,
        parts=Parts(
            partition,
            _on_all(combining.weights, usable),
            combining.scales,
            bounds,
            own,
            tuple(combining.ends),
        ),
    )


def check_rule(rule: Rule) -> None:
    """Raise BadParameter for a rule that gives rows no weights, by which parts are combined."""
    if not rule.weighs_rows():
        raise BadParameter(
            f"{type(rule).__name__} makes its answer column by column and gives rows no weights, by which "
            "parts are combined; leave partition out, or give a rule that weighs rows, such as RandEigen."
        )


def _check(rows: Rows, rule: Rule) -> None:
    check_rule(rule)
    if rows.n > MAX_EXACT_ROWS:
        raise BadParameter(
            f"partition needs an exact Gram matrix of each part, which is made up to {MAX_EXACT_ROWS:,} "
            f"rows, found {rows.n:,}; aggregate whole rows, or groups of them."
        )


def _add_the_rest(combining: Combining, cloud: GramGeometry, whole: Judgement) -> None:
    """The columns that keep the weights of the whole rows are one part: what the others left."""
    w, scale, own = whole.verdict.weights, whole.verdict.scale, combining.own
    columns = float(combining.partition.widths[~own].sum())
    if not columns:
        return
    rounding = 2 * cloud.rounding_error(w)  # that of the whole, and of what is subtracted
    inner, roots = less_mean(cloud.gram[:-1, :-1] - combining.gram, w), np.sqrt(w)
    covariance = inner * (roots[:, None] * roots)
    top, known = math.inf, bool(np.isfinite(covariance).all()) and cloud.beyond is None
    if known:
        top = max(float(np.linalg.eigvalsh(covariance)[-1]), 0.0) + rounding
    # What a scale adds is seen from the origin, which is known for all columns together alone.
    moved_by = w - 1 / cloud.n
    distance = (
        math.sqrt(max(float(moved_by @ inner @ moved_by), 0.0))
        if scale == 1
        else cloud.distance_between(scale * w, np.full(cloud.n, 1 / cloud.n))
    )
    combining.add_distance(distance if known else math.inf)
    held, others = (float(share[0]) for share in held_by_heaviest(w[None], whole.certified))
    if held > 0 and others > 0 and scale and whole.bias_bound is not None:  # no part varies more than all
        bound = whole.bias_bound / scale / cloud.scale
        top = min(top, max(bound * bound * others / held, SMALLEST_SQUARE if bound > 0 else 0.0))
    combining.union.add(
        w[None],
        np.array([top]),
        lambda factors: influence_of(inner, w, factors, known),
        np.array([rounding]),
        np.array([columns]),
        np.array([scale]),
    )


def _notes(partition: Partition, combining: Combining, index: Index, default: Array) -> tuple[str, ...]:
    """What a reader should know of the parts: how many, which stood out, which rows were left out of few."""
    own = np.flatnonzero(combining.own)
    if partition.hybrid:
        if not own.size:
            return (f"none of {partition.count:,} parts stood out: all have the weights of the whole rows",)
        ordered = own[np.argsort(-combining.bounds[own], kind="stable")]
        named = [
            f"{partition.name(part)} (without rows {_named(index[_cut(combining.weights[part], default)])})"
            for part in ordered[:MAX_PARTS_NAMED].tolist()  # of thousands, that many are put into words
        ]
        more = f" and {own.size - MAX_PARTS_NAMED:,} more" if own.size > MAX_PARTS_NAMED else ""
        have = "has weights of its own" if own.size == 1 else "have weights of their own"
        count = f"{own.size:,} of {partition.count:,} parts stood out and {have}"
        return (f"{count}: {', '.join(named)}{more}",)
    parts = f"{partition.count:,} parts" if partition.count > 1 else "1 part"
    return (
        f"judged in {parts}, each with weights of its own; the weights here are their mean over all columns",
    )


def _cut(weights: Array, default: Array) -> Any:
    return (weights < 0.01 * default) & (default > 0)


def _named(rows: Index) -> str:
    return first_of(rows.tolist(), MAX_ROWS_NAMED) or "none"


def _on_all(weights: Array, usable: Mask) -> Array:
    if usable.all():
        return weights
    out = np.zeros((weights.shape[0], usable.size))
    out[:, usable] = weights
    return out


def _of_whole(whole: Judgement, usable: Mask, notes: tuple[str, ...]) -> Verdict:
    """The verdict on whole rows, without what it says of single rows."""
    verdict = whole.verdict
    return Verdict(
        _on_all(verdict.weights[None], usable)[0],
        verdict.stop,
        scale=verdict.scale,
        spreads=verdict.spreads,
        bounds=verdict.bounds,
        answer_round=verdict.answer_round,
        notes=(*notes, *whole.notes, *verdict.notes),
    )
