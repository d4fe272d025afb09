"""The exact geometry: the (n+1, n+1) Gram matrix of the rows and the origin, filled block by block."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import largest_magnitudes, to_host_float64
from randeigen.backend.chunking import parts, pieces
from randeigen.backend.parallel import parallel_map
from randeigen.backend.scaling import Scaled, added, in_one_unit, nothing, without
from randeigen.geometry.base import (
    START_DIRECTIONS,
    is_offset,
    project_rows,
    random_pairs,
    squared_distances_of,
    top_direction_by_power,
    top_direction_of,
)
from randeigen.geometry.eigen import top_of_covariance
from randeigen.geometry.products import (
    Pivot,
    measured,
    rounding,
    scale_exponent,
    scaled_products,
    unlike_pivot,
)
from randeigen.types import Array, Block, Mask, Spread

CENTRING_ROUNDING = (
    2.0**-48
)  # of their squared lengths: what is left of equal rows when the mean is subtracted
USUAL_ROUNDING = 2.0**-21  # rounding of a float32 entry whose numbers nobody arranged


@dataclass(frozen=True, eq=False)
class GramGeometry:
    """The exact table. The caller's origin is its last line, so lengths survive a shift of all rows."""

    table: Array  # (n+1, n+1) inner products, measured from a pivot near the rows
    prior_weights: Array  # (n,)
    start: Array  # (n, p) where the search for the widest direction begins; nobody can foresee it
    unit: float = 1.0
    precision: float = 0.0  # rounding of an entry, relative to the two rows' lengths
    distortion: float = 0.0
    floor: float = 0.0  # squared lengths below this may have vanished
    beyond: Mask | None = None  # (n,) rows further out than the table says; None: there are none
    partial: ClassVar[bool] = False

    @property
    def n(self) -> int:
        """How many rows."""
        return self.prior_weights.size

    def top_direction(self, weights: Array) -> Spread:
        """The widest direction of the weighted cloud, to working precision."""
        scaled, half = self._covariance(weights)
        whole = float(scaled.trace())
        if whole <= CENTRING_ROUNDING * self._mean_square(weights):  # rounding is all there is
            return Spread(max(whole, 0.0), np.zeros(self.n))
        top = top_of_covariance(scaled, half, self.start)
        return top_direction_of(top, project_rows(scaled, half, top.vector), weights, scaled.diagonal())

    def top_direction_by_power_iteration(
        self, weights: Array, steps: int, rng: np.random.Generator
    ) -> Spread:
        """The paper's power iteration, run where it has the same iterates: among the rows."""
        scaled, half = self._covariance(weights)
        # A Gaussian start g in d dimensions is seen by the rows as X·g, whose covariance is X·Xᵀ.
        start = scaled @ rng.standard_normal(self.n)
        project = partial(project_rows, scaled, half)
        return top_direction_by_power(scaled.__matmul__, project, start, steps, weights)

    def squared_distances(self) -> Array:
        """(n, n) squared distances."""
        return squared_distances_of(self.squared_norms_from_pivot(), self.table[:-1, :-1])

    def squared_distances_from(self, row: int) -> Array:
        """(n,) squared distances from one row."""
        return np.asarray(self.squared_distances()[row])

    def squared_norms(self) -> Array:
        """(n,) squared distances from the caller's origin."""
        squares = self.table.diagonal()
        return np.asarray(np.maximum(squares[:-1] + squares[-1] - 2 * self.table[:-1, -1], 0.0))

    def squared_norms_from_pivot(self) -> Array:
        """(n,) squared distances from the pivot: how far out each row is, to a factor."""
        return np.array(self.table.diagonal()[:-1])

    def distance_between(self, weights_a: Array, weights_b: Array) -> float:
        """Length of Σ (aᵢ − bᵢ)·xᵢ, the rows measured from the caller's origin; no sum need be 1."""
        apart = weights_a - weights_b
        apart = np.append(apart, -apart.sum())
        return math.sqrt(max(float(apart @ self.table @ apart), 0.0))

    def rounding_error(self, weights: Array) -> float:
        """How much of the widest variance the table's own rounding can hide.

        An entry is off by at most `precision` of its two rows' lengths, so the weighted matrix of errors is
        no larger than `precision` times the weighted mean of the squared lengths.
        """
        return self.precision * self._mean_square(weights) + self.floor

    def _mean_square(self, weights: Array) -> float:
        return float(weights @ self.squared_norms_from_pivot()) / float(weights.sum())

    def take(self, index: NDArray[np.intp]) -> GramGeometry:
        """The same cloud with only these rows."""
        lines = np.append(index, self.n)
        table = self.table[np.ix_(lines, lines)]
        beyond = None if self.beyond is None else self.beyond[index]
        return replace(
            self, table=table, prior_weights=self.prior_weights[index], start=self.start[index], beyond=beyond
        )

    def combine_rows(self, matrix: Array) -> GramGeometry:
        """The cloud of m combinations of the rows and, last, the origin.

        Rounding averages out among rows that are averaged, so no more of it is assumed than is usual.
        Certificates are made of the rows' own table.
        """
        lines = np.vstack((matrix, np.append(np.zeros(self.n), 1.0)))
        m, table = matrix.shape[0], lines @ self.table @ lines.T
        precision = min(self.precision, USUAL_ROUNDING)
        beyond = None if self.beyond is None else np.asarray(matrix[:, :-1][:, self.beyond].any(axis=1))
        return replace(
            self,
            table=table,
            prior_weights=np.ones(m),
            start=self.start[:m],
            precision=precision,
            beyond=beyond,
        )

    def with_prior_weights(self, prior: Array) -> GramGeometry:
        """The same cloud with other masses."""
        return replace(self, prior_weights=prior)

    def _covariance(self, weights: Array) -> tuple[Array, Array]:
        """The weighted covariance seen by the rows, and the roots of the weights."""
        inner = self.table[:-1, :-1]
        w = weights / weights.sum()
        half, pair = np.sqrt(w), np.ones((2, self.n))
        np.matmul(inner, w, out=pair[0])
        pair[0] -= w @ pair[0] / 2
        scaled = pair.T @ pair[::-1]  # all sums of two: BLAS is faster at them than numpy line by line
        np.subtract(inner, scaled, out=scaled)
        scaled *= np.dot(half[:, None], half[None])
        return scaled, half


SMALLEST_EXACT_SQUARE = {4: 1e-30, 8: 1e-280}  # squares are exact well above this, by item size
LARGEST_EXACT_SQUARE = {4: math.inf, 8: 1e280}  # and below this their sum over all blocks fits a float64
LOST_BY_UNDERFLOW = {4: 2.0**-126, 8: 2.0**-1022}  # at most, of each product: a GPU flushes them to 0
GLIMPSED_COLUMNS = 16  # columns
MAX_PIVOTS = 3  # tries: each is set by corrupt rows only if two of three are


class GramAccumulator:
    """Fills the exact table.

    A block is measured plainly or, if its rows are far from the origin, from a pivot. The few rows whose
    squares overflow or vanish are brought to a length near 1 first, at a cost that grows with their number;
    all rows are only if most of them are such.
    """

    def __init__(self, n: int, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 3])
        self.n, self.dead = n, np.zeros(n, dtype=bool)
        self.measured = nothing(n)
        self.precision = self.vanished = 0.0  # what rounding, and underflow, may take from an entry
        self.far = False
        self.pairs = random_pairs(n, self.rng)

    def add(self, columns: slice, block: Block) -> None:
        """One block of columns, from the first pivot that is near its rows: none, chance ones, the median."""
        if not (self.far or self._looks_far(block)) and self._take(block, None):
            return
        self.far = True
        for _ in range(MAX_PIVOTS):
            alive = np.flatnonzero(~self.dead)
            if alive.size >= 3:
                three = self.rng.choice(alive, 3, replace=False)
                if self._take(block, (int(three[0]), int(three[1]), int(three[2]))):
                    return
        self._look_for_dead(block, self._alive())
        if everyone := self._alive():
            self._add(*self._scaled(block, everyone, "median", alone=True))

    def geometry(self) -> GramGeometry:
        """The finished table. Lines of dead rows are zero."""
        start = self.rng.standard_normal((self.n, START_DIRECTIONS))
        found = in_one_unit(self.measured, self.dead)
        return GramGeometry(
            found.table,
            np.ones(self.n),
            start,
            2.0**found.exponent,
            self.precision,
            floor=found.floor + float(np.ldexp(self.vanished, -2 * found.exponent)),
            beyond=found.beyond if found.beyond.any() else None,
        )

    def _looks_far(self, block: Block) -> bool:
        """Whether a few columns show an offset that most share: it saves the product that would show it."""
        if not isinstance(block, np.ndarray):
            return False
        few = to_host_float64(block[:, :: -(-block.shape[1] // GLIMPSED_COLUMNS)])
        few = few * 2.0 ** -scale_exponent(largest_magnitudes(few))
        i, j = self.pairs
        squares, apart = (few**2).sum(1), ((few[i] - few[j]) ** 2).sum(1)
        return is_offset(np.where(self.dead, math.nan, squares), apart)

    def _take(self, block: Block, pivot_rows: Pivot | None) -> bool:
        """Add the block as measured from this pivot, unless that is far from the rows."""
        found, precision = measured(block, pivot_rows)
        squares = found.table.diagonal()[:-1]
        odd = self._odd(block, squares, pivot_rows)
        if not np.isfinite(squares).any() and pivot_rows and self.dead[list(pivot_rows)].any():
            return False  # the pivot itself is not finite
        if 2 * len(odd) > len(self._alive()):
            found, precision = self._scaled(block, self._alive(), pivot_rows, alone=True)
            if self._is_far(in_one_unit(found, self.dead).table, []):
                return False
        else:
            found = without(found, odd)
            if self._is_far(found.table, odd):
                return False
            if odd:
                lines, theirs = self._scaled(block, odd, pivot_rows, alone=False)
                found, precision = added(found, lines), max(precision, theirs)
        self._add(found, precision)
        return True

    def _add(self, found: Scaled, precision: float) -> None:
        found = without(found, np.flatnonzero(self.dead).tolist())
        self.measured = added(self.measured, found)
        self.precision = max(self.precision, precision)

    def _scaled(
        self, block: Block, index: list[int], pivot: Pivot | str | None, alone: bool
    ) -> tuple[Scaled, float]:
        cut = parts(block) if isinstance(block, np.ndarray) else pieces(block)
        found = parallel_map(lambda part: scaled_products(part, index, pivot, alone), cut)
        return reduce(added, found), rounding(self.n, cut[0].shape[1], block.dtype.itemsize)

    def _odd(self, block: Block, squares: Array, pivot_rows: Pivot | None) -> list[int]:
        """Rows whose squares overflowed or, where those of the typical row are too small, vanished."""
        size = block.dtype.itemsize
        wild: list[int] = np.flatnonzero(~(squares < LARGEST_EXACT_SQUARE[size]) & ~self.dead).tolist()
        if wild:
            self._look_for_dead(block, wild)
            wild = [i for i in wild if not self.dead[i]]
        alive = squares[~self.dead]
        faint: list[int] = np.flatnonzero((squares < SMALLEST_EXACT_SQUARE[size]) & ~self.dead).tolist()
        if not faint:
            return wild
        faint = unlike_pivot(block, faint, pivot_rows)
        if alive.size == 0 or np.median(alive) >= SMALLEST_EXACT_SQUARE[size]:
            self.vanished += block.shape[1] * LOST_BY_UNDERFLOW[size] if faint else 0.0
            return wild
        return sorted({*wild, *faint})

    def _look_for_dead(self, block: Block, index: list[int]) -> None:
        """Rows that hold NaN or infinity."""
        for i in index:
            self.dead[i] |= not np.isfinite(largest_magnitudes(block[i : i + 1])[0])

    def _alive(self) -> list[int]:
        alive: list[int] = np.flatnonzero(~self.dead).tolist()
        return alive

    def _is_far(self, table: Array, odd: list[int]) -> bool:
        squares = np.where(self.dead, math.nan, table.diagonal()[:-1])
        squares[odd] = math.nan
        i, j = self.pairs
        return is_offset(squares, squares[i] + squares[j] - 2 * table[i, j])
