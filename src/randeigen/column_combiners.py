"""Answers made column by column, where a rule only declares how: chunks are measured, rows are mixed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from randeigen.backend.arrays import apart, as_float64, as_host, joined, like, to_host_float64
from randeigen.backend.batched import beside, namespace, where_true
from randeigen.backend.chunking import (
    CHUNK_GROUP_NUMBERS,
    DEVICE_GRAM_NUMBERS,
    MAX_BLOCK_COLUMNS,
    MAX_COPY_BYTES,
    MIXED_NUMBERS,
    narrower,
    parallel_map,
)
from randeigen.backend.device_blocks import BegunColumns, InRegisters, as_matrix, is_matrix, takes
from randeigen.combine import (
    RowSizes,
    WeightedSum,
    host_blocks,
    largest_magnitude,
    largest_number_like,
    need_full_pass_if_hostile,
)
from randeigen.geometry.gram_accumulator import GramAccumulator
from randeigen.geometry.gram_batch import measured_batch, slices_of
from randeigen.types import (
    AfterMixing,
    Array,
    Block,
    ChunkedWeights,
    ColumnPlan,
    Combiner,
    Geometry,
    Mask,
    Progress,
    Rows,
    Weights,
)

MIN_BATCHED_ROWS = 3  # rows: fewer have no pivot between them
CHUNK_PIVOT_KEY = 2**63  # no chunk begins at this column, so no other random numbers have this key


class Merging:
    """What `combiner` makes of every block of usable rows, and how far the whole is from scale · Σ wᵢ xᵢ.

    That distance is 0 where the rows are `unmeasured`: then there is no such mean to be far from. `to_mean`
    is told of every block. Once it has begun, a GPU works while the host does something else.
    """

    def __init__(
        self,
        rows: Rows,
        weights: Weights,
        usable: Mask,
        combiner: Combiner,
        scale: float = 1.0,
        progress: Progress | None = None,
        unmeasured: bool = False,
        size: RowSizes | None = None,
        to_mean: DistanceToMean | None = None,
    ) -> None:
        self._rows, self._weights, self._usable, self._combiner = rows, weights, usable, combiner
        self._sum = WeightedSum(weights * scale, usable, size)
        self._progress, self._unmeasured, self._to_mean = progress, unmeasured, to_mean
        self._answer: tuple[Any, float] | None = None
        self._steps = self._merge()

    def begin(self) -> None:
        """Go on to where the host would wait for a GPU, or to the end."""
        with np.errstate(all="ignore"):
            next(self._steps, None)

    def finish(self) -> tuple[Any, float, float | None]:
        """The answer, that distance, and the distance to the plain mean if it was asked for."""
        while self._answer is None:
            self.begin()
        return (*self._answer, self._to_mean.distance if self._to_mean else None)

    def _merge(self) -> Iterator[None]:
        """Yields wherever a GPU has begun with a block."""
        rows, usable, combiner, to_mean = self._rows, self._usable, self._combiner, self._to_mean
        answer, alive, distance, cast_error = rows.answer(), np.flatnonzero(usable).tolist(), 0.0, 0.0
        # Where rows are left out, the others are copied, and no copy may be large.
        multiple = combiner.block_multiple
        copied = max(MAX_COPY_BYTES // (8 * rows.n) // multiple, 1) * multiple
        for columns, block in host_blocks(rows):
            on_gpu = _is_on_gpu(combiner, block)
            as_it_lies = on_gpu or (usable.all() and is_matrix(block))
            for part, narrow in narrower(columns, block, MAX_BLOCK_COLUMNS if as_it_lies else copied):
                out = answer.memory_for(part, narrow) if on_gpu else None
                begun = _in_registers(combiner, narrow, alive, self._sum, self._unmeasured, out)
                if begun:
                    yield
                if begun and (fused := begun()):
                    cast = fused.cast_error if fused.answer is None else answer.write(part, fused.answer)
                    cast_error = math.hypot(cast_error, cast)
                    distance = math.hypot(distance, fused.from_sum)
                    if to_mean:
                        to_mean.add_known(fused.from_mean)
                    continue
                total = self._sum(narrow)
                if self._unmeasured:
                    need_full_pass_if_hostile(total, narrow)
                narrow = as_matrix(narrow)
                narrow = narrow if usable.all() else narrow[alive]
                merged = combiner(part, narrow)
                if not math.isfinite(largest_magnitude(merged)):
                    merged = _merged_small(combiner, part, narrow)
                if to_mean:
                    to_mean.add(merged, narrow)
                cast_error = math.hypot(cast_error, answer.write(part, merged))
                if not self._unmeasured:
                    distance = math.hypot(distance, apart(merged, total))
            if self._progress:
                self._progress("merging", columns.stop, rows.d)
        away = 0.0 if self._unmeasured else distance + self._sum.rounding_error(cast_error)
        self._answer = answer.finish(self._weights), away


def _is_on_gpu(combiner: Combiner, block: Block) -> bool:
    return not isinstance(block, np.ndarray) and takes(block) and _has_kernel(type(combiner))


@cache
def _has_kernel(kind: type) -> bool:
    return issubclass(kind, InRegisters)  # which looks through all of a class, every time


def _in_registers(
    combiner: Combiner, block: Block, alive: list[int], weighted_sum: WeightedSum, unmeasured: bool, out: Any
) -> BegunColumns | None:
    """What a GPU's kernel has begun, which sums up in float32 on the way; None if that will not do."""
    if not _is_on_gpu(combiner, block) or weighted_sum.in_float64(block):
        return None
    if unmeasured and block.dtype.itemsize == 8:  # all of its numbers must be seen
        return None
    kernel: Any = combiner
    begun: BegunColumns | None = kernel.in_registers(block, alive, weighted_sum.weights, out)
    return begun


def _merged_small(combiner: Combiner, columns: slice, block: Block) -> Any:
    """The answer made of numbers scaled down, where sums of large ones overflowed, and scaled up again."""
    down, multiple = 2.0 ** (len(block).bit_length() + 1), combiner.block_multiple
    wide, merged = max(MAX_COPY_BYTES // (8 * len(block)) // multiple, 1) * multiple, []
    for part, narrow in narrower(columns, block, wide):
        small = combiner(part, narrow * (1 / down))
        top = largest_number_like(small) / down
        merged.append(small.clip(-top, top) * down)
    return joined(merged)


def as_combiner(plan: ColumnPlan) -> Combiner:
    """What a rule declared, ready to be run on blocks."""
    if isinstance(plan, ChunkedWeights):
        return _Chunks(plan)
    return _Mixing(plan.matrix, as_combiner(plan.inner)) if isinstance(plan, AfterMixing) else plan


@dataclass(frozen=True)
class _Chunks:
    """Σ wᵢ xᵢ of each chunk of columns, the weights made from the chunk's own geometry.

    Many chunks at once; those whose numbers over- or underflow when squared, or that lie far from a pivot
    of three secret rows, one by one with more care.
    """

    plan: ChunkedWeights

    @property
    def block_multiple(self) -> int:
        return self.plan.chunk

    def __call__(self, columns: slice, block: Block) -> Any:
        """Chunks are counted from column 0; a block that cuts one has two shorter ones."""
        n, chunk, on_host = block.shape[0], self.plan.chunk, isinstance(block, np.ndarray)
        together = CHUNK_GROUP_NUMBERS // 8 if on_host else DEVICE_GRAM_NUMBERS
        step = max(together // (n * n), 1) * chunk
        cuts = [
            columns.start,
            *range(columns.start // chunk * chunk + step, columns.stop, step),
            columns.stop,
        ]
        groups = [
            (start, block[:, start - columns.start : stop - columns.start]) for start, stop in pairwise(cuts)
        ]
        answer = joined(parallel_map(self._group, groups) if on_host else list(map(self._group, groups)))
        return answer.astype(block.dtype) if on_host else answer.to(block.dtype)

    def _group(self, group: tuple[int, Block]) -> Any:
        """(b,) the answer for the chunks from this column on."""
        start, block = group
        (n, width), chunk = block.shape, self.plan.chunk
        answer, head = as_float64(block[0]), min(-start % chunk, width)
        whole = (width - head) // chunk
        body = slice(head, head + whole * chunk)
        batched = np.zeros(whole, dtype=bool)
        if whole and n >= MIN_BATCHED_ROWS:
            pieces = block[:, body].reshape(n, whole, chunk).swapaxes(0, 1)
            weights, batched = self._weights(pieces, (start + head) // chunk)
            at = 0
            for some in slices_of(pieces, in_float64=True):
                means = (weights[at : at + len(some), None] @ some).reshape(-1)
                answer[head + at * chunk : head + at * chunk + len(means)] = means
                at += len(some)
        alone = [slice(head + k * chunk, head + (k + 1) * chunk) for k in np.flatnonzero(~batched).tolist()]
        for cut in (slice(0, head), *alone, slice(body.stop, width)):
            if cut.start < cut.stop:
                answer[cut] = beside(self._alone(to_host_float64(block[:, cut]), start + cut.start), answer)
        return answer

    def _weights(self, pieces: Any, first: int) -> tuple[Any, Mask]:
        """(p, n) the weights in chunks from number `first` on, and which of these could be measured so."""
        rng = np.random.default_rng([self.plan.seed, CHUNK_PIVOT_KEY])
        with np.errstate(all="ignore"):
            batch, measured = measured_batch(pieces, rng, in_float64=True)
            weights, index = namespace(pieces).zeros_like(batch.prior_weights), where_true(measured)
            if len(index):
                weights[index] = self.plan.weights_of_many(batch.take(index), first + as_host(index))
        return weights, as_host(measured)

    def _alone(self, piece: Array, start: int) -> Array:
        weights = self.plan.weights_of(_measured(piece, [self.plan.seed, start]), start // self.plan.chunk)
        live = np.flatnonzero(weights)
        return np.asarray(weights[live] @ piece[live])


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


class DistanceToMean:
    """How far an answer is from the plain mean of the same rows, summed up as blocks pass."""

    def __init__(self) -> None:
        self.distance = 0.0

    def add(self, answer: Any, block: Block) -> None:
        """The columns of one block, where they lie."""
        half = as_float64(answer) / 2 - _half_mean(block)  # no difference of halves overflows
        largest = float(abs(half).max())
        if largest > 0:
            self.add_known(2 * largest * math.sqrt(float(((half / largest) ** 2).sum())))

    def add_known(self, distance: float) -> None:
        """Columns whose distance was summed up elsewhere."""
        self.distance = math.hypot(self.distance, distance)


def _half_mean(block: Block) -> Any:
    """(w,) half of the plain mean, in float64; where numbers overflow in a sum, each is divided first."""
    half, n = _mean_of(block) / 2, len(block)
    return half if bool(abs(half).max() < math.inf) else _mean_of(block * (0.5 / n)) * n


def _mean_of(block: Block) -> Any:
    if isinstance(block, np.ndarray):
        return block.mean(axis=0, dtype=np.float64)
    return block.mean(0, dtype=as_float64(block[:1, :1]).dtype)
