"""The certificate, how far f corrupt rows can have moved an answer at its weights, whichever rows they are.

Beside it: what the answer costs if every row is honest, what became of each row, and which were cut together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.errors import BadFraction, BadRows
from randeigen.types import Array, Geometry, Index, Mask, Verdict, Weights

# In even shares of the weight: 1 is what every row has in a plain mean.
LEFT_OUT_BELOW = 0.01
DOWN_WEIGHTED_BELOW = 0.5
KEPT, DOWN_WEIGHTED, LEFT_OUT = "kept", "down-weighted", "left out"
# A row that has less than DOWN_WEIGHTED_BELOW of its prior share counts as cut.
MIN_GROUP_SIZE = 3  # rows
# m rows agree up to 1.5 + 10/m times the kept rows' mean squared distance.
AGREEMENT_RATIO, AGREEMENT_RATIO_OF_ONE = 1.5, 10.0
NEIGHBOUR_RATIO = 4.0  # of the same distance: rows nearer to one row than this are candidates for its group
SQUARED_SEPARATION = 9.0  # of the kept rows' top variance: a group is three standard deviations or more away
VISIBLE_ROUNDING = 0.1  # of a distance: less adds half a percent to it at most
EQUAL_WEIGHT_TOLERANCE = 1e-13  # of an even share: weights this close to it are it, but for rounding
MAX_ROWS_COMPARED = 1_000  # kept and cut rows, each: more are not compared
MAX_ROWS_IN_NOTE = 20
MAX_LISTED_ROWS = 32  # rows up to which Python sorts and adds as soon as numpy has begun to


def meaning(corrupt: str = "f corrupt rows", most: str = "this", rows: str = "rows") -> str:
    """What the certificate means, in the one sentence that is shown wherever the number is."""
    return (
        f"{corrupt} can have moved the answer by at most {most} at these weights: it is that close to the "
        f"mean of the honest {rows} alone at the same weights, and may be further from their plain mean."
    )


def certify(geometry: Geometry, weights: Array, f: int) -> float:
    """The certificate of any weights on n rows, f of which may be corrupt; in the rows' units.

    f corrupt rows can have moved the answer by at most this at these weights: it is that close to the mean of
    the honest rows alone at the same weights, and may be further from their plain mean. Weights are finite,
    not negative and not all 0; only their ratios count. f is a whole number from 0 to n.

    With w the weights, λ the top eigenvalue of the w-weighted covariance and a the sum of the f largest
    weights, that distance is at most sqrt(a/(1−a)·λ): corrupt weight m ≤ a that moves the mean by t along a
    direction puts variance t²(1−m)/m there. Nothing is assumed of the honest rows. Infinite when the f
    heaviest rows hold all the weight; 0 when f is 0.

    On a sketch it is measured on another geometry of the same rows, `geometry.check`, that had no part in
    choosing the weights: the direction in which the mean was moved does not depend on its random numbers,
    and this one direction is all that it has to keep. It is the exact Gram matrix or a second sketch; then
    the claim fails with a probability estimated below 1e-6 (`projection.distortion`, `folds.distortion`).

    Parameters:
        geometry: The geometry of the rows, from `randeigen.geometry.measure`.
        weights: (n,) the weights of any mean of these rows, however they were chosen.
        f: How many of the n rows may be corrupt.

    Returns:
        The bound, 0 or more; inf where there is none.

    Raises:
        BadFraction: `f` is no whole number from 0 to n.
        BadRows: The weights are not n finite numbers from 0, or this is no geometry.

    Examples:
        >>> import numpy as np, randeigen
        >>> from randeigen.geometry import measure
        >>> from randeigen.rows import as_rows
        >>> geometry, unusable = measure(as_rows(np.eye(4)))
        >>> round(randeigen.certify(geometry, np.ones(4), f=1), 3)  # sqrt(1/3 · 1/4)
        0.289
    """
    weights = _checked(geometry, weights, f)
    measured = geometry.check or geometry
    top = measured.top_variance(weights)
    variance = math.inf if _beyond(geometry, weights) else top.variance + top.allowance
    return bound(measured, weights, f, variance)


def _checked(geometry: Geometry, weights: Any, f: int) -> Array:
    """The weights as float64; refuses what is no geometry, no weights or no f."""
    if not isinstance(geometry, Geometry):
        kind = type(geometry).__name__
        raise BadRows(
            f"certify needs the geometry of the rows, found {kind}; randeigen.geometry.measure makes one."
        )
    n = geometry.n
    if isinstance(f, bool) or not isinstance(f, (int, np.integer)) or not 0 <= f <= n:
        raise BadFraction(f"f={f!r} of {n} rows; give how many may be corrupt, a whole number from 0 to {n}.")
    try:
        checked = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadRows(f"weights are {type(weights).__name__}, not numbers; give one for each row.") from None
    if checked.shape != (n,):
        raise BadRows(f"weights have shape {checked.shape}, but there are {n} rows; give one for each row.")
    wrong = np.flatnonzero(~(np.isfinite(checked) & (checked >= 0)))
    if wrong.size:
        problem = f"weight {wrong[0]} is {checked[wrong[0]]}"
        raise BadRows(f"weights must be finite and not negative, but {problem}; give 0 to leave a row out.")
    largest = float(checked.max())
    if largest == 0:
        raise BadRows("weights are all 0, so there is no mean to certify; give at least one row some weight.")
    return checked if 1e-100 < largest < 1e100 else np.asarray(checked / largest)


def bound(
    geometry: Geometry, weights: Array, f: int, variance: float, rounding: float | None = None
) -> float:
    """The certificate where the top variance under these weights, or a bound on it, is already known.

    `rounding` is the geometry's rounding error, where that is. On a sketch that was used to choose the
    weights this is an estimate; see `certify`.
    """
    held, rest = corruptible(weights, f)
    if held <= 0:
        return 0.0
    if rest <= 0:
        return math.inf
    if geometry.distortion >= 1 or _beyond(geometry, weights):
        return math.inf
    # A Gram matrix gives λ to its own rounding, a sketch to 1 ± distortion: claim no more than that.
    rounding = geometry.rounding_error(weights) if rounding is None else rounding
    variance = (variance + rounding) / (1 - geometry.distortion)
    # Of rows that were mixed the Gram matrix may hold rounding alone, and that may be negative.
    return geometry.scale * math.sqrt(held / rest * max(variance, 0.0))


def _beyond(geometry: Geometry, weights: Array) -> bool:
    """Whether a row has weight that is further out than was measured."""
    return geometry.beyond is not None and bool((weights[geometry.beyond] > 0).any())


def corruptible(weights: Array, f: int) -> tuple[float, float]:
    """The weight that the f heaviest rows hold, and that of all others."""
    if f <= 0:
        return 0.0, float(weights.sum())
    if f >= weights.size:
        return float(weights.sum()), 0.0
    cut = weights.size - f
    if weights.size <= MAX_LISTED_ROWS:
        listed = sorted(weights.tolist())
        return math.fsum(listed[cut:]), math.fsum(listed[:cut])
    ordered = weights.copy()
    ordered.sort()
    return float(ordered[cut:].sum()), float(ordered[:cut].sum())


def distance_to_mean(geometry: Geometry, weights: Weights, scale: float) -> float:
    """From scale · Σ wᵢ xᵢ to the plain mean of all rows here, in the caller's units.

    Where rounding of the Gram matrix may hide a visible part of it, as beside huge rows that cancel, what it
    may hide is added.
    """
    if geometry.beyond is not None:
        return math.inf  # the plain mean holds a row that is further out than can be measured
    even, weights = 1 / geometry.n, weights if scale == 1 else scale * weights
    change = abs(weights - even)
    if equal := np.count_nonzero(near := change < EQUAL_WEIGHT_TOLERANCE / geometry.n):
        if equal == near.size:
            return 0.0
        weights, change = np.where(near, even, weights), np.where(near, 0.0, change)
    distance = geometry.distance_between(weights, np.full(geometry.n, even))
    hidden = float(change.sum()) * math.sqrt(geometry.rounding_error(change))
    if hidden > VISIBLE_ROUNDING * distance:
        distance = math.hypot(distance, hidden)
    return geometry.scale * distance


def outcome_of(share: float) -> str:
    """The outcome of a row that has this many even shares of the weight."""
    if share < LEFT_OUT_BELOW:
        return LEFT_OUT
    return DOWN_WEIGHTED if share < DOWN_WEIGHTED_BELOW else KEPT


def outcomes_of(weights: Weights) -> NDArray[np.str_]:
    """The outcome of each row."""
    shares = np.asarray(weights, dtype=np.float64) * len(weights)
    return np.array([outcome_of(share) for share in shares.tolist()])


def cut_together(geometry: Geometry, weights: Weights, f: int) -> list[NDArray[np.intp]]:
    """Groups of rows that lost most of their weight and agree with each other as closely as the kept ones do.

    A group has at least 3 rows, and a tenth of all or more than f/2; its mean squared distance within is that
    of the kept rows or less, and its mean is three of their spreads away from theirs. Scattered outliers are
    no group. Corrupt rows that agree with each other are one: nothing in the rows tells them from a minority.
    """
    fair = geometry.prior_weights / geometry.prior_weights.sum()
    cut = (weights < DOWN_WEIGHTED_BELOW * fair).nonzero()[0]
    least = max(MIN_GROUP_SIZE, math.ceil(min(geometry.n / 10, math.floor(f / 2) + 1)))
    if cut.size < least:
        return []
    kept = np.flatnonzero((weights >= DOWN_WEIGHTED_BELOW * fair) & (weights > 0))
    if kept.size < 2:
        return []
    cut, kept = cut[:MAX_ROWS_COMPARED], kept[:: -(-kept.size // MAX_ROWS_COMPARED)]
    among_kept, among_cut = geometry.take(kept), geometry.take(cut)
    # Of two kept rows: twice their mean squared distance from their mean, for which n numbers will do.
    usual = 2 * float(among_kept.squared_distances_from_mean(np.ones(kept.size)).sum()) / (kept.size - 1)
    between = among_cut.squared_distances() - blur(among_cut)
    near, left = between <= NEIGHBOUR_RATIO * usual, np.ones(cut.size, dtype=bool)
    groups, variance = [], None
    while (members := _largest(near, left)).size >= least:
        left[members] = False
        inside = max(_within(between[np.ix_(members, members)]), 0.0)
        if inside > (AGREEMENT_RATIO + AGREEMENT_RATIO_OF_ONE / members.size) * usual:
            continue
        if variance is None:
            variance = among_kept.top_direction(np.ones(kept.size)).variance
        group, others = _even(geometry.n, cut[members]), _even(geometry.n, kept)
        # Means of few rows are apart by chance, too: by the variance of each over its number.
        chance = (inside / members.size + usual / kept.size) / 2
        chance += sum(part.rounding_error(np.ones(part.n)) for part in (among_kept, among_cut.take(members)))
        if geometry.distance_between(group, others) ** 2 - chance > SQUARED_SEPARATION * variance:
            groups.append(cut[members])
    return groups


def note_on(group: Sequence[int], f: int) -> str:
    """A note on rows that were cut together, in the caller's numbering."""
    # `showing.first_of`, written out: who follows a call through the source opens one module less.
    more = f" and {len(group) - MAX_ROWS_IN_NOTE:,} more" if len(group) > MAX_ROWS_IN_NOTE else ""
    note = (
        f"rows {', '.join(map(str, group[:MAX_ROWS_IN_NOTE]))}{more} were cut together and agree with each "
        "other as closely as the kept rows do: they may be an honest minority"
    )
    if len(group) > f:
        few = f"{f} usable row{'' if f == 1 else 's'}"
        return f"{note}, for they are {len(group)} and only {few} may be corrupt; see docs/threat-model.md"
    return (
        f"{note} or, as they are no more than f = {f}, corrupt rows that act as one: nothing in the rows "
        "tells which; see docs/threat-model.md"
    )


def _within(between: Array) -> float:
    """Mean squared distance of two different rows."""
    m = between.shape[0]
    return float(between.sum() - between.trace()) / (m * (m - 1)) if m > 1 else 0.0


def blur(geometry: Geometry) -> Array:
    """(n, n) what rounding can add to a squared distance."""
    squares = geometry.squared_norms_from_pivot()
    total = float(squares.sum())
    rounding = geometry.rounding_error(np.ones(geometry.n)) * geometry.n / total if total > 0 else 0.0
    return np.asarray(2 * rounding * (squares[:, None] + squares))


def _largest(near: NDArray[np.bool_], left: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The rows left that are near to the one with the most of them."""
    if not left.any():
        return np.empty(0, dtype=np.intp)
    counts = np.where(left, (near & left).sum(axis=1), 0)
    return np.flatnonzero(near[int(counts.argmax())] & left)


def _even(n: int, rows: NDArray[np.intp]) -> Array:
    weights = np.zeros(n)
    weights[rows] = 1 / rows.size
    return weights


def on_all_rows(
    verdict: Verdict, usable: Mask, notes: tuple[str, ...], groups: Sequence[Index], corrupt: int
) -> Verdict:
    """The verdict on the usable rows, in the caller's numbering."""
    if not (notes or groups) and np.count_nonzero(usable) == usable.size:
        return verdict
    rows = np.flatnonzero(usable)
    together = tuple(tuple(rows[group].tolist()) for group in groups)

    def spread(values: Any, dtype: Any) -> Any:
        if values is None:
            return None
        out: Any = np.zeros(usable.size, dtype=dtype)
        out[usable] = values
        return out

    return replace(
        verdict,
        weights=spread(verdict.weights, np.float64),
        dropped_in_round=spread(verdict.dropped_in_round, np.intp),
        scores=spread(verdict.scores, np.float64),
        far_outliers=spread(verdict.far_outliers, np.bool_),
        notes=(*notes, *verdict.notes, *(note_on(group, corrupt) for group in together)),
        cut_together=together,
    )
