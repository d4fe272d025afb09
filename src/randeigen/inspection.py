"""Where eps is not known: rows measured once, then asked what each eps, or each rule, would make of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np

from randeigen import advice, pipeline
from randeigen.api import RuleLike, as_rule
from randeigen.backend.chunking import single_threaded_blas
from randeigen.backend.random_streams import Stream
from randeigen.certificate import KEPT, blur, cut_together, distance_to_mean, on_all_rows, outcomes_of
from randeigen.errors import BadFraction, BadParameter
from randeigen.rows import as_rows
from randeigen.rules import Rule
from randeigen.rules.base import assume
from randeigen.showing import InLines, Pairs, named
from randeigen.types import Array, Geometry, GeometryKind, Index, Mask, Progress, Statistic, Verdict

EPS_GRID = tuple(round(0.05 * i, 2) for i in range(10))  # 0 to 0.45
MIN_SPREAD_RATIO = 1.5  # some rows stand apart if the spread with all is this many times the narrowest
NARROW_ENOUGH_RATIO = 1.2  # of the narrowest spread: an eps that reaches it leaves no row that stands apart
MAX_ROWS_COMPARED = 2_000  # rows: of more no copies are looked for, and a picture shows so many


@dataclass(frozen=True, eq=False, repr=False)
class Opinion(InLines):
    """What a rule makes of the rows at one eps."""

    eps: float | None  # None where f, or a rule, was given
    f: int
    weights: Array  # (n,) they sum to 1
    bias_bound: float  # f corrupt rows can have moved the weighted mean by at most this at these weights
    distance_to_mean: float  # of the weighted mean from the plain mean of all usable rows
    spread: float  # the standard deviation along the top direction at these weights
    verdict: Verdict
    cut_together: tuple[tuple[int, ...], ...]  # groups of rows that lost their weight and agree

    @property
    def cut(self) -> Mask:
        """(n,) rows with less than half of an even share of the weight."""
        return np.asarray(outcomes_of(self.weights) != KEPT)

    @property
    def weight_kept(self) -> float:
        """The share of the plain mean that is still in the answer: 1 if every row has its even share."""
        return float(np.minimum(self.weights, 1 / self.weights.size).sum())

    def __repr__(self) -> str:
        return f"<Opinion on {self.weights.size} rows at f={self.f}: bias_bound {self.bias_bound:.4g}>"

    def _lines(self) -> Pairs:
        cut = np.flatnonzero(self.cut).tolist()
        return [
            ("f", f"{self.f} of {self.weights.size} rows may be corrupt"),
            ("bias_bound", f"{self.bias_bound:.4g}: they can have moved the mean by at most this"),
            ("weight_kept", f"{self.weight_kept:.1%} of the plain mean is still in the answer"),
            ("distance_to_mean", f"{self.distance_to_mean:.4g} from the plain mean of the usable rows"),
            ("spread", f"{self.spread:.4g}, the standard deviation along the top direction"),
            ("cut", f"{len(cut)}: {named(cut)}" if cut else "none"),
        ]


@dataclass(frozen=True, eq=False, repr=False)
class Inspection:
    """Rows that were measured once. `ask` costs no further reading of them."""

    n: int
    geometry: Geometry  # of the usable rows
    index: Index  # their numbers among all
    unusable: dict[int, str]  # row: why it could not be used
    seed: int
    names: tuple[str, ...] | None  # of the rows, for what is printed; None: they are counted from 0
    opinions: tuple[Opinion, ...]  # for every eps of the grid that covers the unusable rows
    copies: tuple[tuple[int, ...], ...]  # groups of rows that are equal, but for rounding

    def ask(self, eps: float | None = None, *, f: int | None = None, rule: RuleLike | None = None) -> Opinion:
        """What `RandEigen` with eps or f, a rule by name with either, or a rule would make of these rows.

        Raises:
            BadParameter: The rule works column by column, so that it has to read the rows: use `aggregate`.
            BadFraction: eps or f is outside what the rule tolerates, or neither it nor a rule is given.
            TooManyCorrupt: More rows are unusable than may be corrupt.
        """
        chosen = as_rule(rule, eps, f)
        if not chosen.weighs_rows():
            raise BadParameter(
                f"{type(chosen).__name__} works column by column and has to read the rows; "
                "use aggregate, which does."
            )
        count = chosen.assumed_corrupt(self.n)
        stated = max(count, chosen.stated_corrupt(self.n))
        assumed = assume(count, self.n, self.unusable, stated=stated)
        rng = np.random.default_rng([self.seed, Stream.RULE])
        judgement = pipeline.judge(self.geometry, chosen, self.index, assumed, rng)
        verdict = judgement.verdict
        with single_threaded_blas(self.geometry.n):
            groups = cut_together(self.geometry, verdict.weights, assumed.certified)
            spread = self.geometry.scale * math.sqrt(self.geometry.top_direction(verdict.weights).variance)
        assert judgement.bias_bound is not None
        whole = on_all_rows(verdict, self._usable(), judgement.notes, groups, assumed.certified)
        return Opinion(
            eps,
            stated,
            whole.weights,
            judgement.bias_bound,
            distance_to_mean(self.geometry, verdict.weights, verdict.scale),
            spread,
            whole,
            whole.cut_together,
        )

    @property
    def apart(self) -> tuple[int, ...]:
        """Rows without which the others are much narrower: corrupt or an honest minority, nobody can tell."""
        opinion = self.enough()
        return () if opinion is None else tuple(self.cut_by(opinion))

    @property
    def advice(self) -> str:
        """What these numbers say about eps, in plain sentences, and what they cannot say."""
        return advice.advice_on(self)

    def plane(self) -> tuple[Index, Array]:
        """Rows in the plane of the two directions of greatest variance: their numbers, (m, 2) coordinates.

        All usable rows or, if they are too many to compare, some drawn at random.
        """
        chosen = np.arange(self.geometry.n)
        if chosen.size > MAX_ROWS_COMPARED:
            chosen = np.sort(
                np.random.default_rng(self.seed).choice(chosen, MAX_ROWS_COMPARED, replace=False)
            )
        few = self.geometry.take(chosen)
        between = few.squared_distances()
        to_mean = between.mean(axis=0)
        centred = (to_mean[:, None] + to_mean - between - to_mean.mean()) / 2
        values, vectors = np.linalg.eigh(centred)
        scales = self.geometry.scale * np.sqrt(np.maximum(values[:-3:-1], 0.0))
        return self.index[chosen], np.pad(vectors[:, :-3:-1] * scales, ((0, 0), (0, 2 - min(2, few.n))))

    def __repr__(self) -> str:
        return f"<Inspection of {self.n} rows: {len(self.apart)} stand apart, {len(self.unusable)} unusable>"

    def __str__(self) -> str:
        return advice.as_text(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def cut_by(self, opinion: Opinion) -> list[int]:
        """The usable rows that have less than half of an even share of the weight there."""
        cut: list[int] = np.flatnonzero(opinion.cut & self._usable()).tolist()
        return cut

    def enough(self) -> Opinion | None:
        """The least eps of the grid after which the rows are hardly any narrower; None if they never were."""
        if not self.opinions:
            return None
        narrowest = min(each.spread for each in self.opinions)
        if self.opinions[0].spread <= MIN_SPREAD_RATIO * narrowest:
            return None
        narrow = (each for each in self.opinions if each.spread <= NARROW_ENOUGH_RATIO * narrowest)
        return next((each for each in narrow if self.cut_by(each)), None)

    def _usable(self) -> Mask:
        usable = np.zeros(self.n, dtype=bool)
        usable[self.index] = True
        return usable


def inspect(
    rows: Any,
    *,
    rule: str | None = None,
    grid: Sequence[float] = EPS_GRID,
    seed: int | None = None,
    geometry: GeometryKind = "auto",
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Measure rows once and see what every eps would make of them.

    Args:
        rows: As for `aggregate`.
        rule: The name of a rule, such as "krum" or "nnm+krum"; `RandEigen` unless given.
        grid: The values of eps to try, each in [0, 0.5).
        seed: As for `aggregate`.
        geometry: As for `aggregate`.
        names: What rows are called in the text; they are counted from 0 unless given.
        progress: Called as `progress(stage, columns_done, columns_in_all)` while columns are read.

    Returns:
        The measured rows, with one opinion for each eps; `print` it, or `ask` it more.

    Raises:
        BadParameter: The grid is empty, the rule is not known or works column by column, or there are more or
            fewer names than rows.
        BadFraction: An eps is outside [0, 0.5), or outside what the rule tolerates.
        BadRows: The rows have no form that most share, hold no floats, or changed while they were read.

    Examples:
        >>> import numpy as np, randeigen
        >>> rows = np.random.default_rng(0).standard_normal((20, 100))
        >>> rows[:3] += 50
        >>> randeigen.inspect(rows, seed=1).apart
        (0, 1, 2)
    """
    if not len(grid):
        raise BadParameter("grid is empty; give values of eps, each in [0, 0.5).")
    rules = {eps: as_rule(rule, eps, None) for eps in sorted(set(grid))}
    source = pipeline.StreamedRows(as_rows(rows))
    if names is not None and len(names) != source.n:
        raise BadParameter(f"{len(names)} names were given for {source.n} rows; give one for each.")
    seed = pipeline.seed_or_fresh(seed)
    whole = source.measure(Statistic.GRAM, geometry, seed, progress=progress)
    index = np.setdiff1d(np.arange(source.n), list(source.unusable))
    called = None if names is None else tuple(map(str, names))
    if not index.size:  # raises, with the reasons
        assume(0, source.n, source.unusable)
    inspection = Inspection(source.n, whole.take(index), index, dict(source.unusable), seed, called, (), ())
    tolerated = _tolerated(rules, source.n)
    covered = [eps for eps, f in tolerated.items() if f >= len(source.unusable)]
    opinions = tuple(inspection.ask(eps, rule=rule) for eps in covered)
    return replace(inspection, opinions=opinions, copies=_copies(inspection.geometry, index))


def _tolerated(rules: dict[float, Rule], n: int) -> dict[float, int]:
    """f for every eps that the rule tolerates among n rows; raises if there is none."""
    f_by_eps: dict[float, int] = {}
    for eps, rule in rules.items():
        try:
            f_by_eps[eps] = rule.assumed_corrupt(n)
        except BadFraction:
            if eps == max(rules) and not f_by_eps:
                raise
    return f_by_eps


def _copies(geometry: Geometry, index: Index) -> tuple[tuple[int, ...], ...]:
    """Groups of rows that are nearer to each other than rounding can tell."""
    if geometry.n > MAX_ROWS_COMPARED:
        return ()
    near = geometry.squared_distances() <= 2 * blur(geometry)
    groups: list[tuple[int, ...]] = []
    left = np.ones(geometry.n, dtype=bool)
    for row in range(geometry.n):
        members = np.flatnonzero(near[row] & left)
        if left[row] and members.size > 1:
            groups.append(tuple(index[members].tolist()))
        left[members] = False
    return tuple(groups)
