"""Many narrow parts of the same rows at once: of fewer columns than rows, points are less than products.

A part of w columns has a covariance of w×w, of one spectrum with the n×n one of its rows. All that a rule may
know of it comes from the (n, w) points themselves, and nothing of n×n is made but the sum over all parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from randeigen.backend.arrays import UNIT_ROUNDOFF, as_float64, as_host
from randeigen.backend.batched import Flags, Indices, Numbers, beside, namespace, sorted_lines, stacked
from randeigen.geometry.batched_eigen import Tops
from randeigen.geometry.cloud_batch import Centred, CloudBatch
from randeigen.geometry.gram import START_DIRECTIONS
from randeigen.geometry.gram_batch import GramBatch, measured_batch, slices_of, squares_fit
from randeigen.types import Array

MIN_COUNTED_COLUMNS = 4  # a rule makes as many lines of n numbers of a cloud, however narrow it is


@dataclass(frozen=True, eq=False)
class PointBatch(CloudBatch):
    """p clouds of n points in w dimensions, in one unit; a `GeometryBatch`."""

    points: Numbers  # (p, n, w) from a pivot near the rows
    prior_weights: Numbers  # (p, n)
    start: Numbers  # (k, w) secret directions from which the search for top directions starts
    precision: float  # rounding of a variance, relative to the rows' mean square
    floor: float = 0.0
    beyond: Flags | None = None  # (p, n) rows that were shortened, being too long to be squared

    def take(self, index: Indices) -> PointBatch:
        beyond = None if self.beyond is None else self.beyond[index]
        return replace(
            self, points=self.points[index], prior_weights=self.prior_weights[index], beyond=beyond
        )

    def squared_norms_from_pivot(self) -> Numbers:
        return (self.points * self.points).sum(2)

    def squared_distances(self) -> Numbers:
        between = 0.0
        for column in range(self.points.shape[2]):
            values = self.points[:, :, column]
            between = between + (values[:, :, None] - values[:, None, :]) ** 2
        return between

    def squared_distances_from_means(self, weights: Numbers) -> Numbers:
        """(p, n) from each cloud's weighted mean; the weights of each sum to 1."""
        apart = self._apart(weights)
        return (apart * apart).sum(2)

    def centred(self, weights: Numbers) -> Centred:
        w = weights / weights.sum(1)[:, None]
        apart = self._apart(w)
        weighted = apart * w[:, :, None]

        def projections(tops: Tops, some: Any) -> Numbers:
            along = (apart[some] @ tops.vectors[:, :, None])[:, :, 0]
            return namespace(along).where(w[some] > 0, along, 0.0)

        return Centred(weighted.swapaxes(1, 2) @ apart, (weighted * apart).sum(2), projections)

    def influence(self, weights: Numbers, factors: Numbers) -> Numbers:
        """(n, n) the Gram matrices of the rows wᵢ·(xᵢ − μ), added up over all clouds, times their factors."""
        w = weights / weights.sum(1)[:, None]
        return _products(self._apart(w) * (w * factors[:, None] ** 0.5)[:, :, None])

    def distances_between(self, weights_a: Numbers, weights_b: Numbers) -> Numbers:
        """(p,) length of Σ (aᵢ − bᵢ)·xᵢ; both sum to the same."""
        difference = ((weights_a - weights_b)[:, None] @ self.points)[:, 0]
        distances = (difference * difference).sum(1) ** 0.5
        if self.beyond is None:
            return distances
        moves = (self.beyond & (weights_a != weights_b)).any(1)
        return namespace(distances).where(moves, math.inf, distances)

    def summed_gram(self, index: list[int]) -> Array:
        """(n, n) the inner products of some clouds, added up."""
        return np.asarray(as_host(_products(self.points[index])))

    def on_host(self) -> PointBatch:
        """The same in main memory; none of its rows is `beyond`."""
        points, prior, start = (as_host(each) for each in (self.points, self.prior_weights, self.start))
        return replace(self, points=points, prior_weights=prior, start=start)

    def _apart(self, w: Numbers) -> Numbers:
        return self.points - w[:, None] @ self.points


def numbers_of_cloud(n: int, width: int) -> int:
    """How many numbers are kept of n rows of this width, and made of them on the way."""
    return n * min(n, max(width, MIN_COUNTED_COLUMNS))


def measured_pieces(
    pieces: Any, rng: np.random.Generator, in_float64: bool = False
) -> tuple[GramBatch | PointBatch, Flags]:
    """The geometries of (p, n, w) pieces of at least three rows, and which are sound: points where w < n."""
    if pieces.shape[2] >= pieces.shape[1]:
        return measured_batch(pieces, rng, in_float64)
    return measured_points(pieces, rng)


def measured_points(pieces: Any, rng: np.random.Generator) -> tuple[PointBatch, Flags]:
    """(p, n, w) pieces in float64, each from the median of every column; and which of them are sound."""
    _, n, width = pieces.shape
    measured = [_measured(some) for some in slices_of(pieces, in_float64=True)]
    points, sound = (stacked(each) for each in zip(*measured, strict=True))
    # A sum of n products of sums over w columns; the rest for the pivot and the mean, subtracted before.
    precision = (n + width + 6) * UNIT_ROUNDOFF[8]
    start = beside(rng.standard_normal((START_DIRECTIONS, width)), points)
    return PointBatch(points, namespace(points).ones_like(points[:, :, 0]), start, precision), sound


def _measured(pieces: Any) -> tuple[Numbers, Flags]:
    exact = as_float64(pieces)
    ordered = sorted_lines(exact.swapaxes(1, 2))
    points = exact - ordered[:, :, (exact.shape[1] - 1) // 2][:, None]
    return points, squares_fit((points * points).sum(2), points)


def _products(points: Numbers) -> Numbers:
    """(n, n) inner products over the columns of all clouds."""
    flat = points.swapaxes(0, 1).reshape(points.shape[1], -1)
    return flat @ flat.T
