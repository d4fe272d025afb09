"""Answers made column by column, where a rule only declares how: chunks are measured, rows are mixed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from randeigen.backend.arrays import like, to_host_float64
from randeigen.backend.chunking import MIXED_NUMBERS
from randeigen.geometry.measurement import GramAccumulator
from randeigen.types import AfterMixing, Array, Block, ChunkedWeights, ColumnPlan, Combiner, Geometry


def as_combiner(plan: ColumnPlan) -> Combiner:
    """What a rule declared, ready to be run on blocks."""
    if isinstance(plan, ChunkedWeights):
        return _Chunks(plan)
    return _Mixing(plan.matrix, as_combiner(plan.inner)) if isinstance(plan, AfterMixing) else plan


@dataclass(frozen=True)
class _Chunks:
    """Σ wᵢ xᵢ of each chunk of columns, the weights made from the chunk's own geometry."""

    plan: ChunkedWeights

    @property
    def block_multiple(self) -> int:
        return self.plan.chunk

    def __call__(self, columns: slice, block: Block) -> Any:
        """Chunks are counted from column 0, so blocks must not cut them."""
        answer, chunk = np.empty(block.shape[1]), self.plan.chunk
        for start in range(columns.start - columns.start % chunk, columns.stop, chunk):
            at = slice(max(start - columns.start, 0), start - columns.start + chunk)
            piece = to_host_float64(block[:, at])
            weights = self.plan.weights_of(_measured(piece, [self.plan.seed, start]))
            live = np.flatnonzero(weights)  # the others are left out, not multiplied: 0 · NaN is NaN
            answer[at] = weights[live] @ piece[live]
        return like(answer, block)


@dataclass(frozen=True, eq=False)
class _Mixing:
    """Blocks of rows are mixed as they pass, and `inner` makes the answer of the mixed ones."""

    matrix: Array  # (m, n+1); the origin's column adds nothing
    inner: Combiner

    @property
    def block_multiple(self) -> int:
        return self.inner.block_multiple

    def __call__(self, columns: slice, block: Block) -> Any:
        mixing, answer = like(self.matrix[:, :-1], block), like(np.zeros(block.shape[1]), block)
        step = max(MIXED_NUMBERS // block.shape[0] // self.block_multiple, 1) * self.block_multiple
        for at in range(0, block.shape[1], step):
            piece = mixing @ block[:, at : at + step]
            here = slice(columns.start + at, columns.start + at + piece.shape[1])
            answer[at : at + step] = self.inner(here, piece)
        return answer


def _measured(piece: Array, key: list[int]) -> Geometry:
    """The chunk's own geometry, measured with the care that hostile numbers need."""
    accumulator = GramAccumulator(piece.shape[0], int(np.random.default_rng(key).integers(2**63)))
    with np.errstate(all="ignore"):
        accumulator.add(slice(0, piece.shape[1]), piece)
        return accumulator.geometry()


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
