"""The exact table of very many rows: what is asked of it needs no other n×n numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from randeigen.geometry import Gram, _spread, _spread_by_power
from randeigen.spectral import Operator, top_of_operator
from randeigen.types import Array, Mask, Spread


@dataclass(frozen=True, eq=False)
class WideGram(Gram):
    """The exact table, whose weighted covariance is applied to vectors but never formed."""

    beyond: Mask | None = None  # (n,) rows further out than the table says; None: there are none

    def widest(self, weights: Array) -> Spread:
        """The widest direction of the weighted cloud."""
        apply, project, alone = self._operators(weights)
        top = top_of_operator(apply, self.start)
        return _spread(top, project(top.vector), weights, alone)

    def widest_by_power(self, weights: Array, steps: int, rng: np.random.Generator) -> Spread:
        """The paper's power iteration."""
        apply, project, _ = self._operators(weights)
        return _spread_by_power(apply, project, apply(rng.standard_normal(self.n)), steps, weights)

    def pick(self, index: NDArray[np.intp]) -> WideGram:
        """The same cloud with only these rows."""
        if np.array_equal(index, np.arange(self.n)):  # the ordinary case: no copy
            return self
        beyond = None if self.beyond is None else self.beyond[index]
        found = super().pick(index)
        assert isinstance(found, WideGram)
        return replace(found, beyond=beyond)

    def mix(self, matrix: Array) -> WideGram:
        """The cloud of m combinations of the rows and, last, the origin."""
        beyond = None if self.beyond is None else np.asarray(matrix[:, :-1][:, self.beyond].any(axis=1))
        found = super().mix(matrix)
        assert isinstance(found, WideGram)
        return replace(found, beyond=beyond)

    def _operators(self, weights: Array) -> tuple[Operator, Operator, Array]:
        inner, w = self.table[:-1, :-1], weights / weights.sum()
        half, line = np.sqrt(w), inner @ w
        middle = float(w @ line)

        def project(vector: Array) -> Array:
            seen = half * vector
            places = inner @ seen - seen.sum() * line
            return np.asarray(places - w @ places)

        return lambda vector: half * project(vector), project, w * (inner.diagonal() - 2 * line + middle)
