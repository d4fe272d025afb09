"""The exact Gram matrix of thousands of rows: in place, without copies of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import to_host_float64
from randeigen.geometry.base import START_DIRECTIONS, top_direction_by_power, top_direction_of
from randeigen.geometry.gram import GramGeometry
from randeigen.geometry.lanczos import Operator, top_of_operator
from randeigen.geometry.pivot import magnitudes
from randeigen.geometry.products import scale_exponent
from randeigen.geometry.sketch import LARGEST_POINT, SketchAccumulator
from randeigen.types import Array, Block, Spread

LINES_AT_ONCE = 512  # of the table that are added to at a time


class WideGramAccumulator(SketchAccumulator):
    """Fills the exact table, in float64 and in place: beside the table itself no n×n numbers are held."""

    def __init__(self, n: int, seed: int) -> None:
        super().__init__(n, 0, seed, None)
        self.table = np.zeros((n + 1, n + 1))
        self.begun = False

    def room(self) -> tuple[float, float, int]:
        """As for points, but they are squared."""
        return 2.0**400, LARGEST_POINT, 600

    def _enlarge(self, step: int) -> None:
        np.ldexp(self.table, -2 * step, out=self.table)
        self.exponent += step

    def _add(self, columns: slice, block: Block) -> None:
        if not self.begun:  # of faint rows nothing would be left when squared
            reach = magnitudes(block)
            self.exponent = scale_exponent(reach[np.isfinite(reach)])
            self.begun = bool(reach.any())
        super()._add(columns, block)

    def _store(self, columns: slice, apart: Block, origin: Block) -> None:
        exact = np.vstack((to_host_float64(apart), to_host_float64(origin)))
        exact[:-1][self.dead] = 0.0
        for i in range(0, exact.shape[0], LINES_AT_ONCE):
            lines = slice(i, min(i + LINES_AT_ONCE, exact.shape[0]))
            self.table[lines, : lines.stop] += exact[lines] @ exact[: lines.stop].T

    def geometry(self) -> WideGramGeometry:  # type: ignore[override]
        """The finished table. Lines of dead rows are zero."""
        n = self.dead.size
        for i in range(0, n + 1, LINES_AT_ONCE):  # only its lower half was filled
            lines = slice(i, min(i + LINES_AT_ONCE, n + 1))
            self.table[: lines.start, lines] = self.table[lines, : lines.start].T
        gone = np.flatnonzero(self.dead)
        self.table[gone] = self.table[:, gone] = 0.0
        start, beyond = self.rng.standard_normal((n, START_DIRECTIONS)), self.beyond & ~self.dead
        return WideGramGeometry(
            self.table,
            np.ones(n),
            start,
            2.0**self.exponent,
            self.precision,
            beyond=beyond if beyond.any() else None,
        )


@dataclass(frozen=True, eq=False)
class WideGramGeometry(GramGeometry):
    """The exact table, whose weighted covariance is applied to vectors but never formed."""

    def top_direction(self, weights: Array) -> Spread:
        """The widest direction of the weighted cloud."""
        apply, project, alone = self._operators(weights)
        top = top_of_operator(apply, self.start)
        return top_direction_of(top, project(top.vector), weights, alone)

    def top_direction_by_power_iteration(
        self, weights: Array, steps: int, rng: np.random.Generator
    ) -> Spread:
        """The paper's power iteration."""
        apply, project, _ = self._operators(weights)
        return top_direction_by_power(apply, project, apply(rng.standard_normal(self.n)), steps, weights)

    def take(self, index: NDArray[np.intp]) -> WideGramGeometry:
        """The same cloud with only these rows."""
        if np.array_equal(index, np.arange(self.n)):  # the ordinary case: no copy
            return self
        found = super().take(index)
        assert isinstance(found, WideGramGeometry)
        return found

    def _operators(self, weights: Array) -> tuple[Operator, Operator, Array]:
        inner, w = self.table[:-1, :-1], weights / weights.sum()
        half, line = np.sqrt(w), inner @ w
        middle = float(w @ line)

        def project(vector: Array) -> Array:
            seen = half * vector
            places = inner @ seen - seen.sum() * line
            return np.asarray(places - w @ places)

        return lambda vector: half * project(vector), project, w * (inner.diagonal() - 2 * line + middle)
