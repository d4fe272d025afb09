"""Many small problems of equal size at once, on numpy or torch by one set of names.

A batch of p clouds of n rows has p as its first axis. numpy and torch agree on most of what is needed; what
they do not agree on is here.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

Numbers: TypeAlias = Any  # a float64 array of numpy, or a float64 tensor of torch on any device
Flags: TypeAlias = Any  # bools of the same library and device
Indices: TypeAlias = Any  # whole numbers of the same library and device


class TopDirections(NamedTuple):
    """The direction of greatest variance of each of p weighted clouds."""

    variances: Numbers  # (p,)
    projections: Numbers  # (p, n) signed distances from the mean along it; 0 for rows of no weight
    typical_row_variances: Numbers  # (p,) median over i of wᵢ‖xᵢ − μ‖²
    allowances: Numbers  # (p,) no direction has more variance than `variances` plus this


class SoftFilter(NamedTuple):
    """The numbers of RandEigen's rounds: `rules.randeigen` says what each of them is."""

    patient: int
    hurried: int
    far_outlier_ratio: float
    isotropy_tolerance: float
    negligible_weight: float
    restored_factor: float
    min_relative_weight: float


class RoundsAhead(NamedTuple):
    """Rounds that a GPU may begin before the host has looked at the rows, in case they are all as usual."""

    f: int
    rule: SoftFilter


class FilterRounds(NamedTuple):
    """RandEigen's rounds on one cloud; last, where there are several, their average."""

    weights: Numbers  # (r, n) before each round
    projections: Numbers  # (r, n) on the top direction under them
    variances: Numbers  # (r,) along it
    allowances: Numbers  # (r,) no direction has more variance than `variances` plus this
    stop: int  # why there are no more, as a number


class GeometryBatch(Protocol):
    """What a rule may know of p clouds of the same n rows: parts of their columns, each on its own."""

    @property
    def p(self) -> int:
        """How many clouds there are."""

    @property
    def n(self) -> int:
        """Rows in each."""

    @property
    def prior_weights(self) -> Numbers:
        """(p, n) weight of each row before any judgement, not normalised."""

    def top_directions(self, weights: Numbers) -> TopDirections:
        """The direction of greatest variance in each cloud under its (p, n) weights."""

    def squared_distances(self) -> Numbers:
        """(p, n, n) squared distances, never negative."""

    def squared_distances_from_means(self, weights: Numbers) -> Numbers:
        """(p, n) squared distances from each cloud's mean under (p, n) weights, which sum to 1 in each."""

    def squared_norms_from_pivot(self) -> Numbers:
        """(p, n) squared distances from a point near the rows."""

    def rounding_errors(self, weights: Numbers) -> Numbers:
        """(p,) how much of the top variance rounding can hide."""

    def take(self, index: Indices) -> GeometryBatch:
        """Some of the clouds."""

    def filtered(self, f: int, rule: SoftFilter) -> tuple[Numbers, Indices, TopDirections] | None:
        """What RandEigen makes of each cloud: (p, n) weights, which stop, the top directions under them.

        None where there is no kernel that does all of it at once.
        """


class DeviceCloud(ABC):
    """A geometry that is on a GPU too, and what is done for a rule there, in one launch."""

    @abstractmethod
    def filtered_rounds(self, f: int, rule: SoftFilter) -> FilterRounds | None:
        """RandEigen's rounds under the prior weights; None where they are not gone through there."""

    @abstractmethod
    def pick_by_krum(self, apart: Numbers, f: int, count: int) -> Indices | None:
        """Bulyan's picks by the (n, n) distances between all rows; None where they are not found there."""


def namespace(values: Any) -> Any:
    """The library that holds these numbers: numpy or torch."""
    return np if isinstance(values, np.ndarray) else sys.modules["torch"]


def along(values: Any, index: Indices) -> Any:
    """values[i, index[i, j]]."""
    xp = namespace(values)
    return np.take_along_axis(values, index, 1) if xp is np else xp.take_along_dim(values, index, 1)


def in_order(values: Numbers) -> Indices:
    """(p, n) the order from the smallest to the largest in each line; equal ones as they come."""
    if isinstance(values, np.ndarray):
        return values.argsort(axis=1, kind="stable")
    return values.argsort(dim=1, stable=True)


def sorted_lines(values: Numbers) -> Numbers:
    """Every line from its smallest number to its largest."""
    return np.sort(values, axis=-1) if isinstance(values, np.ndarray) else values.sort(dim=-1).values


def medians(values: Numbers, counted: Flags | None = None) -> Numbers:
    """(p,) the median of each line, or of its counted numbers; 0 where none is counted."""
    xp, n = namespace(values), values.shape[1]
    if counted is None:
        ordered = sorted_lines(values)
        return (ordered[:, (n - 1) // 2] + ordered[:, n // 2]) / 2
    ordered = sorted_lines(xp.where(counted, values, xp.inf))
    count = counted.sum(1)
    low = along(ordered, xp.clip(count - 1, 0, None)[:, None] // 2)[:, 0]
    high = along(ordered, xp.clip(count // 2, None, n - 1)[:, None])[:, 0]
    return xp.where(count > 0, (low + high) / 2, 0.0)


def beside(values: Any, like: Any) -> Any:
    """A numpy array in the other's library and on its device, in its own dtype; nobody waits for it."""
    if isinstance(like, np.ndarray):
        return values
    if isinstance(values, np.ndarray):
        values = namespace(like).from_numpy(np.ascontiguousarray(values))
    return values.to(like.device, non_blocking=True)  # a copy of ordinary memory is taken before it begins


def stacked(batches: Sequence[Any]) -> Any:
    """Several batches as one, along their first axis; a single one as it is."""
    if len(batches) == 1:
        return batches[0]
    xp = namespace(batches[0])
    return np.concatenate(batches) if xp is np else xp.cat(batches)


def where_true(flags: Flags) -> Indices:
    """The indices at which a line of flags is true."""
    return np.flatnonzero(flags) if isinstance(flags, np.ndarray) else flags.nonzero()[:, 0]


def integer_zeros(line: Numbers) -> Indices:
    """As many zeros as these numbers, on their device, of the dtype of indices."""
    return np.zeros(line.shape, int) if isinstance(line, np.ndarray) else (line * 0).long()


def count(flags: Flags) -> int:
    """How many are true."""
    return int(flags.sum())


class BatchVerdict(NamedTuple):
    """What a rule made of p clouds."""

    weights: Numbers  # (p, n) each line sums to 1
    codes: Indices  # (p,) why it ended, by the number of the reason
    tops: TopDirections  # under these weights
    reasons: tuple[str, ...]

    @property
    def stops(self) -> tuple[str, ...]:
        """Why it ended, in words, p of them."""
        codes = self.codes if isinstance(self.codes, np.ndarray) else self.codes.cpu().numpy()
        return tuple(np.array(self.reasons, object)[codes].tolist())
