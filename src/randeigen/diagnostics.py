"""Beside the certificate: what the answer costs if every row is honest, and which rows were cut together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import to_host_float64
from randeigen.types import Array, Block, Combiner, Geometry, Weights

CUT_SHARE = 0.5  # of its prior share: a row with less weight counts as cut
MIN_GROUP_SIZE = 3  # rows
# m rows agree up to 1.5 + 10/m times the kept rows' mean squared distance.
AGREEMENT_RATIO, AGREEMENT_RATIO_OF_ONE = 1.5, 10.0
NEIGHBOUR_RATIO = 4.0  # of the same distance: rows nearer to one row than this are candidates for its group
SQUARED_SEPARATION = 9.0  # of the kept rows' top variance: a group is three standard deviations or more away
EQUAL_WEIGHT_TOLERANCE = 1e-13  # of an even share: weights this close to it are it, but for rounding
MAX_ROWS_COMPARED = 1_000  # kept and cut rows, each: more are not compared
MAX_ROWS_NAMED = 20  # rows in a note


def distance_to_mean(geometry: Geometry, weights: Weights, scale: float) -> float:
    """From scale · Σ wᵢ xᵢ to the plain mean of all rows here, in the caller's units."""
    even, weights = np.full(geometry.n, 1 / geometry.n), scale * weights
    weights = np.where(abs(weights - even) < EQUAL_WEIGHT_TOLERANCE * even, even, weights)
    return geometry.unit * geometry.distance_between(weights, even)


class WithDistanceToMean:
    """A combiner that sums up, as blocks pass, how far its answer is from the plain mean of the same rows."""

    def __init__(self, combiner: Combiner) -> None:
        self._combiner = combiner
        self.block_multiple = combiner.block_multiple
        self.distance = 0.0

    def __call__(self, columns: slice, block: Block) -> Any:
        answer = self._combiner(columns, block)
        apart = to_host_float64(answer) - _plain_mean(block)
        largest = float(np.abs(apart).max(initial=0.0))
        if largest > 0:
            self.distance = math.hypot(self.distance, largest * float(np.linalg.norm(apart / largest)))
        return answer


def _plain_mean(block: Block) -> Array:
    if isinstance(block, np.ndarray):
        return np.asarray(block.mean(axis=0, dtype=np.float64))
    return to_host_float64(block.mean(0, dtype=block[:1, :1].double().dtype))


def cut_together(geometry: Geometry, weights: Weights, f: int) -> list[NDArray[np.intp]]:
    """Groups of rows that lost most of their weight and agree with each other as closely as the kept ones do.

    A group has at least 3 rows, and a tenth of all or more than f/2; its mean squared distance within is that
    of the kept rows or less, and its mean is three of their spreads away from theirs. Scattered outliers are
    no group. Corrupt rows that agree with each other are one: nothing in the rows tells them from a minority.
    """
    fair = geometry.prior_weights / geometry.prior_weights.sum()
    cut = np.flatnonzero(weights < CUT_SHARE * fair)
    kept = np.flatnonzero((weights >= CUT_SHARE * fair) & (weights > 0))
    least = max(MIN_GROUP_SIZE, math.ceil(min(geometry.n / 10, math.floor(f / 2) + 1)))
    if cut.size < least or kept.size < 2:
        return []
    cut, kept = cut[:MAX_ROWS_COMPARED], kept[:: -(-kept.size // MAX_ROWS_COMPARED)]
    among_kept, among_cut = geometry.take(kept), geometry.take(cut)
    usual = _within(among_kept.squared_distances())
    between = among_cut.squared_distances() - _blur(among_cut)
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
    shown = ", ".join(map(str, group[:MAX_ROWS_NAMED]))
    more = f" and {len(group) - MAX_ROWS_NAMED} more" if len(group) > MAX_ROWS_NAMED else ""
    note = (
        f"rows {shown}{more} were cut together and agree with each other as closely as the kept rows do: "
        "they may be an honest minority"
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


def _blur(geometry: Geometry) -> Array:
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
