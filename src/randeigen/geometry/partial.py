"""Pass 1 for those who ask for the answer alone: no more is measured than the rule's `Statistic`.

What is measured here is measured by plain sums. Rows for which these will not do, hostile ones or ones far
from the origin, are left to the whole measurement.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import as_host_array, to_host_float64
from randeigen.backend.chunking import is_host_block, parallel_map, parts
from randeigen.errors import RandEigenError
from randeigen.geometry.products import is_offset
from randeigen.types import Array, Block, Rows, Statistic, TopDirection

# Squared norms below this, by item size of the rows, may be sums of squares that vanished.
MIN_SQUARED_NORM = {4: 1e-20, 8: 1e-260}


@dataclass(frozen=True, eq=False)
class PartialGeometry:
    """Squared norms, or squared distances to one row: enough for `rule(rows)`, not for a certificate."""

    prior_weights: Array  # (n,)
    norms: Array | None = None  # (n,) squared
    distances_to_trusted: Array | None = None  # (n,) squared
    partial: ClassVar[bool] = True
    scale: ClassVar[float] = 1.0
    distortion: ClassVar[float] = 0.0
    columns: ClassVar[None] = None
    coordinates: ClassVar[None] = None
    origin: ClassVar[None] = None
    beyond: ClassVar[None] = None
    check: ClassVar[None] = None

    @property
    def n(self) -> int:
        return self.prior_weights.size

    def squared_norms(self) -> Array:
        return _measured(self.norms, Statistic.NORMS)

    def squared_distances_from(self, row: int) -> Array:
        return _measured(self.distances_to_trusted, Statistic.DISTANCES_TO_TRUSTED)

    def take(self, index: NDArray[np.intp]) -> PartialGeometry:
        """All rows: none was found unusable."""
        return self

    def combine_rows(self, matrix: Array) -> PartialGeometry:
        """m combinations of the rows, of which nothing is known."""
        return PartialGeometry(np.ones(matrix.shape[0]))

    def with_prior_weights(self, prior: Array) -> PartialGeometry:
        return replace(self, prior_weights=prior)

    def top_direction(self, weights: Array, settled: float = 0.0) -> TopDirection:
        raise _unmeasured(Statistic.GRAM)

    def top_variance(self, weights: Array) -> TopDirection:
        raise _unmeasured(Statistic.GRAM)

    def top_direction_by_power_iteration(
        self, weights: Array, steps: int, rng: np.random.Generator
    ) -> TopDirection:
        raise _unmeasured(Statistic.GRAM)

    def squared_distances(self) -> Array:
        raise _unmeasured(Statistic.GRAM)

    def squared_distances_from_mean(self, weights: Array) -> Array:
        raise _unmeasured(Statistic.GRAM)

    def squared_norms_from_pivot(self) -> Array:
        raise _unmeasured(Statistic.GRAM)

    def distance_between(self, weights_a: Array, weights_b: Array) -> float:
        raise _unmeasured(Statistic.GRAM)

    def rounding_error(self, weights: Array) -> float:
        raise _unmeasured(Statistic.GRAM)


def measure_partly(rows: Rows, want: Statistic, trusted: int | None = None) -> PartialGeometry | None:
    """As much of the geometry as is wanted; None where the whole measurement must be made."""
    if want in (Statistic.GRAM, Statistic.DIRECTIONS):
        return None
    even = np.ones(rows.n)
    if want is Statistic.NONE:
        return PartialGeometry(even)
    norms, inner, vanishing = np.zeros(rows.n), np.zeros(rows.n), 0.0
    for _, block in rows.blocks():
        block = block if is_host_block(block) else as_host_array(block)
        if not is_host_block(block):
            return None  # on a GPU the Gram matrix costs no more than another reading
        for part_norms, part_inner in parallel_map(lambda part: _sums(part, trusted), parts(block)):
            norms += part_norms
            inner += part_inner
        vanishing = MIN_SQUARED_NORM[block.dtype.itemsize]
    if not (np.isfinite(norms).all() and norms.min() > vanishing):
        return None
    if want is Statistic.NORMS:
        return PartialGeometry(even, norms)
    apart = np.maximum(norms + norms[trusted] - 2 * inner, 0.0)
    apart[trusted] = 0.0
    return None if is_offset(norms, apart) else PartialGeometry(even, norms, apart)


def _sums(part: Block, trusted: int | None) -> tuple[Array, Any]:
    """Squared norms, and inner products with the trusted row, over some columns."""
    part = as_host_array(part)
    norms = np.einsum("ij,ij->i", part, part)  # vecdot is faster, but keeps other threads waiting
    return to_host_float64(norms), 0.0 if trusted is None else to_host_float64(part @ part[trusted])


def _measured(values: Array | None, statistic: Statistic) -> Array:
    if values is None:
        raise _unmeasured(statistic)
    return values


def _unmeasured(statistic: Statistic) -> RandEigenError:
    return RandEigenError(
        f"a rule asked for {statistic.value}, which was not measured: let its statistic() return "
        f"Statistic.{statistic.name}."
    )
