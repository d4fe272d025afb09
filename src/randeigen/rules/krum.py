"""Krum, multi-Krum and Bulyan: rows are selected by their distances to their nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.batched import DeviceCloud
from randeigen.errors import BadFraction, BadParameter
from randeigen.rules._sorted_columns import SortedColumns, mean_of_nearest, median
from randeigen.rules.base import Facts, Rule, mean_of, single_row, smallest
from randeigen.types import Array, Decision, Geometry, Index, Mask, Stop, Verdict

MAX_ONE_BY_ONE = 16  # rows: for so few Python's own loop is quicker than numpy's


@dataclass(frozen=True)
class Bulyan(Rule):
    """Krum θ = n−2f times, each time on the rows not yet picked; then MeaMed of the picked with β = θ−2f.

    El Mhamdi, Guerraoui, Rouault 2018. Krum's score of a row is the sum of its squared distances to the
    r−f−2 nearest of the r rows left. The weights are even over the picked rows, and the certificate leans on
    their mean. Cost: n²·d for the Gram matrix, θ·n² for the picks, then a sort of each column. Needs
    n ≥ 4f+3. Breaks down at a quarter of the rows. Blind to a shift of every column within the honest spread
    of the picked rows.
    """

    name: ClassVar[str] = "bulyan"
    family: ClassVar[str] = "Distances"
    by_column: ClassVar[bool] = True
    facts: ClassVar[Facts] = Facts(
        paper="El Mhamdi, Guerraoui, Rouault 2018, arXiv:1802.07927",
        cost="n²·d + n³",
        breakdown="1/4 (n ≥ 4f+3)",
        blind_to="a shift of every column within the spread of the picked rows",
    )

    def assumed_corrupt(self, n: int) -> int:
        f = super().assumed_corrupt(n)
        _check_bulyan_rows(n, f)
        return f

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        """Even weights on the rows that Krum picks; of each column the β numbers nearest their median."""
        _check_bulyan_rows(geometry.n, f)
        live = np.flatnonzero(geometry.prior_weights)  # a row without prior weight is never picked
        picked = live[_picked(geometry, live, f, min(geometry.n - 2 * f, live.size))]
        weights = np.zeros(geometry.n)
        weights[picked] = 1 / picked.size
        verdict = Verdict(weights, Stop.DIRECT, notes=(f"Krum picked {picked.size} of {geometry.n} rows",))
        beta = max(picked.size - 2 * f, 1)
        nearest = SortedColumns(
            lambda lines: mean_of_nearest(lines, median(lines), beta),
            picked.tolist(),
            kind="mean around the median",
            f=picked.size - beta,
        )
        return Decision(verdict, nearest)


def _picked(geometry: Geometry, live: Index, f: int, count: int) -> Index:
    """Which of the live rows Krum picks; by a GPU, where it has all of them."""
    apart, picked = geometry.squared_distances(), None
    if live.size < geometry.n:
        apart = apart[np.ix_(live, live)]
    elif isinstance(geometry, DeviceCloud):
        picked = geometry.pick_by_krum(apart, f, count)
    return _bulyan_selection(apart, f, count) if picked is None else np.sort(picked)


def _check_bulyan_rows(n: int, f: int) -> None:
    if f and n < 4 * f + 3:
        raise BadFraction(
            f"Bulyan with f={f} needs at least {4 * f + 3} rows, found {n}; "
            f"give f of at most {max((n - 3) // 4, 0)}, more rows, or use RandEigen, which takes up to half."
        )


def _bulyan_selection(apart: Array, f: int, count: int) -> NDArray[np.intp]:
    """The rows Krum picks, one at a time from those left.

    Each row's others are sorted once. A pick takes one distance from every score: the distance to the row
    picked where that is among the nearest, else that of the last of these. Scores that rounding does not
    tell apart are summed up afresh.
    """
    r = apart.shape[0]
    left, lines, picked = np.ones(r, dtype=bool), np.arange(r), list[int]()
    order = apart.argsort(axis=1)
    rank = np.empty_like(order)  # rank[j, i]: of row j in the order of row i
    rank[order, lines[:, None]] = lines
    # The row itself, at distance 0, is among the nearest and adds nothing.
    scores = _sums_of_nearest(apart, lines, left, f)
    rounding = 1e-15 * r * scores
    least, width = scores - rounding, 2 * rounding  # what a score is at least, and how much more it may be
    far = np.full(r, min(max(r - f - 2, 1), r - 1) + 1)  # where those too far to count begin in a row's order
    for gone in range(count):
        near = max(r - gone - f - 2, 1)
        best = int(least.argmin())
        if near == 1:  # from here on a score is that of two rows
            level = left.nonzero()[0]
            best = int(level[_sums_of_nearest(apart, level, left, f).argmin()])
        elif np.count_nonzero(least <= least[best] + width[best]) > 1:
            level = (least <= (least + width).min()).nonzero()[0]
            best = int(level[_sums_of_nearest(apart, level, left, f).argmin()])
        picked.append(best)
        left[best] = False
        if near > 1:
            beyond = (rank[best] >= far) & left
            least -= np.where(beyond, 0.0, apart[best])
            least[best] = np.inf
            _count_one_more_as_far(least, far, apart, order, left, beyond.nonzero()[0])
    return np.sort(np.array(picked, dtype=np.intp))


def _count_one_more_as_far(
    least: Array, far: NDArray[np.intp], apart: Array, order: NDArray[np.intp], left: Mask, rows: Index
) -> None:
    """Where a row among those too far has gone, the last of the nearest that is left takes its place."""
    if rows.size <= MAX_ONE_BY_ONE:
        for i in rows.tolist():
            line, at = order[i], far[i] - 1
            while not left[line[at]]:
                at -= 1
            far[i] = at
            least[i] -= apart[i, line[at]]
        return
    far[rows] -= 1
    while (passed := ~left[order[rows, far[rows]]]).any():
        far[rows[passed]] -= 1
    least[rows] -= apart[rows, order[rows, far[rows]]]


def _sums_of_nearest(apart: Array, rows: NDArray[np.intp], left: Mask, f: int) -> Array:
    """Of some rows, the sum of the distances to the r−f−2 nearest of the r rows left."""
    r = int(np.count_nonzero(left))
    near = max(r - f - 2, 1)
    among = apart[np.ix_(rows, np.flatnonzero(left))]
    return np.asarray(np.partition(among, min(near, r - 1), axis=1)[:, : near + 1].sum(axis=1))


@dataclass(frozen=True)
class Krum(Rule):
    """The row whose nearest others are nearest (Blanchard, El Mhamdi, Guerraoui and Stainer 2017).

    Row i scores the sum of its squared distances to its n − f − 2 nearest others; the least score wins, and
    of equal scores the first. `spare=1` counts n − f − 1 others, as byzfl does. Needs n ≥ 2f + 3 (2f + 2
    with `spare=1`): more than f others are counted, so Byzantine rows alone cannot make a low score.

    Cost: n²·d for the Gram matrix, then n²·log n. Breaks down just below half the rows. Blind to anything
    within the honest distances, which grow like sqrt(d): a Byzantine row at sqrt(d) from the mean is as near
    as any honest row, and the answer is one row, with all of its own noise.
    """

    spare: int = 2
    name: ClassVar[str] = "krum"
    family: ClassVar[str] = "Distances"
    facts: ClassVar[Facts] = Facts(
        "Blanchard, El Mhamdi, Guerraoui, Stainer 2017",
        "n²·d, then n²·log n",
        "f < (n − 2)/2",
        "a Byzantine row no further from the others than honest rows are; the noise of a single row",
    )

    def assumed_corrupt(self, n: int) -> int:
        return check_neighbour_count(self, n, super().assumed_corrupt(n), self.spare)

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        check_neighbour_count(self, geometry.n, f, self.spare)
        scores = krum_scores_by_prior(geometry, geometry.n - f - self.spare)
        return Decision(Verdict(single_row(geometry, int(np.argmin(scores))), Stop.DIRECT))


@dataclass(frozen=True)
class MultiKrum(Rule):
    """The mean of the rows with the best Krum scores (Blanchard et al. 2017; Shejwalkar, Houmansadr 2021).

    Averages the `selected` best (n − f unless given; byzfl's are `spare=1`). With `iterative=True` as in
    the code of Shejwalkar and Houmansadr: the best row moves to the selected set, scores are computed
    afresh on those that remain with one neighbour fewer each time, until 2f + 2 remain.

    Cost: n²·d for the Gram matrix, then n²·log n (n³·log n iterative). Breaks down just below half the rows.
    Blind to a common shift of all Byzantine rows by up to sqrt(d) honest deviations, like Krum.
    """

    spare: int = 2
    selected: int | None = None
    iterative: bool = False
    name: ClassVar[str] = "multi-krum"
    family: ClassVar[str] = "Distances"
    facts: ClassVar[Facts] = Facts(
        "Blanchard, El Mhamdi, Guerraoui, Stainer 2017; iterative: Shejwalkar, Houmansadr 2021",
        "n²·d, then n²·log n",
        "f < (n − 2)/2",
        "Byzantine rows no further from the others than honest rows are: a shift that grows like sqrt(d)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.selected is not None and self.selected < 1:
            raise BadParameter(f"selected={self.selected}; give how many rows to average, at least 1.")

    def assumed_corrupt(self, n: int) -> int:
        return check_neighbour_count(self, n, super().assumed_corrupt(n), self.spare)

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        n = geometry.n
        check_neighbour_count(self, n, f, self.spare)
        usual = n - 2 * f - 2 if self.iterative else n - f
        count = max(1, min(self.selected or usual, n))
        if self.iterative:
            kept = iterative_selection(geometry, f, count)
            return Decision(Verdict(mean_of(geometry, kept), Stop.DIRECT))
        scores = krum_scores_by_prior(geometry, n - f - self.spare)
        return Decision(Verdict(mean_of(geometry, smallest(scores, count)), Stop.DIRECT))


def krum_scores(between: Array, counted: int) -> Array:
    """(n,) the sum of each row's `counted` least entries, itself not counted; of at least one if there is."""
    n = between.shape[0]
    others = between[~np.eye(n, dtype=bool)].reshape(n, n - 1)
    return np.asarray(np.sort(others, axis=1)[:, : max(counted, 1)].sum(axis=1))


def krum_scores_by_prior(geometry: Geometry, counted: int) -> Array:
    """Krum's scores; a row without prior weight is never chosen."""
    return np.where(geometry.prior_weights > 0, krum_scores(geometry.squared_distances(), counted), np.inf)


def iterative_selection(geometry: Geometry, f: int, count: int) -> Mask:
    """The iterative selection: the best of those that remain, `count` times."""
    between = geometry.squared_distances()
    remaining = np.arange(geometry.n)
    for _ in range(count):
        scores = krum_scores(between[np.ix_(remaining, remaining)], remaining.size - f - 3)
        remaining = np.delete(remaining, np.argmin(scores))
    return ~np.isin(np.arange(geometry.n), remaining)


def check_neighbour_count(rule: Rule, n: int, f: int, spare: int) -> int:
    """f, if more than f others are counted in a score. Where f is 0 any number of rows will do."""
    if f and n - f - spare <= f:
        need = 2 * f + 1 + spare
        raise BadFraction(
            f"{type(rule).__name__} with f={f} needs at least {need} rows, found n={n}: corrupt rows could "
            f"vouch for one another; give f at most {max((n - 1 - spare) // 2, 0)}, or {need} rows."
        )
    return f
