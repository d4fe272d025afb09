"""What is the same of p clouds of n rows, whether their inner products are kept or the points."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.batched import (
    Flags,
    Indices,
    Numbers,
    SoftFilter,
    TopDirections,
    medians,
    namespace,
    where_true,
)
from randeigen.geometry.batched_eigen import Tops, tops_of_covariances
from randeigen.geometry.gram import CENTRING_ROUNDING, SMALLEST_MEAN_SQUARE, UNDERFLOW


class Centred(NamedTuple):
    """p clouds seen from their weighted means."""

    covariances: Numbers  # (p, k, k) of one spectrum with those of the columns
    row_variances: Numbers  # (p, n) wᵢ‖xᵢ − μ‖²
    projections: Callable[[Tops, Any], Numbers]  # of some clouds' rows along their top directions, by index


class CloudBatch:
    """A `GeometryBatch` but for what depends on what is kept of the clouds."""

    prior_weights: Numbers  # (p, n)
    start: Numbers  # secret directions from which the search for top directions starts
    precision: float  # rounding of an inner product, relative to the two rows' norms
    floor: float  # squared norms below this may have underflowed
    beyond: Flags | None  # (p, n) rows that were shortened, being too long to be squared

    @property
    def p(self) -> int:
        return int(self.prior_weights.shape[0])

    @property
    def n(self) -> int:
        return int(self.prior_weights.shape[1])

    def squared_norms_from_pivot(self) -> Numbers:
        raise NotImplementedError

    def centred(self, weights: Numbers) -> Centred:
        """The clouds under these weights."""
        raise NotImplementedError

    def take(self, index: Indices) -> CloudBatch:
        raise NotImplementedError

    def top_directions(self, weights: Numbers) -> TopDirections:
        squares, xp = self._mean_squares(weights), namespace(weights)
        if xp is np and len(index := np.flatnonzero(squares != 0)) < self.p:
            return self._directions_of_some(weights, index)
        centred = self.centred(weights)
        row_variances = centred.row_variances
        traces = row_variances.sum(1)
        index = where_true(traces > CENTRING_ROUNDING * squares)  # else rounding is all there is
        variances, projections = xp.clip(traces, 0, None), xp.zeros_like(weights)
        allowances = xp.zeros_like(traces)
        if len(index):
            some = slice(None) if len(index) == self.p else index
            tops = tops_of_covariances(centred.covariances[some], self.start)
            variances[some], projections[some] = tops.values, centred.projections(tops, some)
            allowances[some] = tops.allowances
        return TopDirections(variances, projections, medians(row_variances, weights > 0), allowances)

    def _directions_of_some(self, weights: Numbers, index: Indices) -> TopDirections:
        """All other clouds have no row with weight that is not the pivot: most words, most clients lack."""
        zeros = (np.zeros(self.p), np.zeros_like(weights), np.zeros(self.p), np.zeros(self.p))
        if len(index):
            tops = self.take(index).top_directions(weights[index])
            for values, of_some in zip(zeros, tops, strict=True):
                values[index] = of_some
        return TopDirections(*zeros)

    def has_kernel(self) -> bool:
        """Whether `filtered` has an answer."""
        return False

    def filtered(self, f: int, rule: SoftFilter) -> tuple[Numbers, Indices, TopDirections] | None:
        """By a kernel for all rounds, if there is one."""
        return None

    def variance_limits(self, weights: Numbers) -> Numbers:
        """(p,) what no direction has more variance than, without a look at any: the Frobenius norm."""
        covariances = self.centred(weights).covariances
        xp = namespace(covariances)
        traces = xp.einsum("pii->p", covariances)
        scaled = covariances / traces[:, None, None]
        return traces * xp.sqrt(xp.einsum("pij,pij->p", scaled, scaled))

    def rounding_errors(self, weights: Numbers) -> Numbers:
        squares = self._mean_squares(weights)
        errors = self.precision * squares + self.floor
        if bool((squares < SMALLEST_MEAN_SQUARE).any()):
            errors = errors + UNDERFLOW * ((weights > 0) & (self.squared_norms_from_pivot() > 0)).any(1)
        if self.beyond is not None:
            errors = errors + namespace(errors).where((self.beyond & (weights > 0)).any(1), math.inf, 0.0)
        return errors

    def _mean_squares(self, weights: Numbers) -> Numbers:
        return (weights * self.squared_norms_from_pivot()).sum(1) / weights.sum(1)
