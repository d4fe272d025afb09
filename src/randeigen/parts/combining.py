"""Pass 2 over rows in parts: rows of a tensor are measured, judged and averaged as they pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from randeigen.backend.arrays import as_float64, as_host, as_host_array, joined
from randeigen.backend.batched import beside, namespace, stacked
from randeigen.backend.chunking import (
    DEVICE_GRAM_NUMBERS,
    HOST_GRAM_NUMBERS,
    MAX_JUDGED_NUMBERS,
    parallel_map,
)
from randeigen.backend.device_blocks import as_matrices, in_kernels
from randeigen.combine import RowSizes, WeightedSum
from randeigen.geometry.gram_batch import slices_of
from randeigen.geometry.point_batch import numbers_of_cloud
from randeigen.part_certificate import Union
from randeigen.partition import Partition, Run
from randeigen.parts.judging import Judged
from randeigen.parts.sums import in_float32, length, weighted, weighted_by_kernel
from randeigen.types import Array, Block, Index, Mask, Progress, Rows

KEPT = -1  # the key of the sum of columns that keep the weights of the whole rows


class PartsJudge(Protocol):
    """Judges parts as they pass; those that it does not return keep the weights of the whole rows."""

    def pieces(self, pieces: Any, numbers: Index, run: int) -> list[tuple[Index, Judged]]:
        """(p, n, w) pieces of the usable rows, each a part, with their (p,) numbers; `run`: its first."""


class _Group(NamedTuple):
    """Parts of one width side by side, averaged."""

    first: int  # the number of the first part
    judged: list[tuple[Index, Judged]]
    answer: Any  # (p·w,) or, where some keep the weights of the whole rows, (own, w) of the others
    error: float  # how far rounding may have moved it


class Combining:
    """What the parts come to, and what is known of each. `weights` are those of the usable rows."""

    def __init__(
        self, partition: Partition, usable: Mask, corrupt: int, default: Array, scale: float, unit: float
    ) -> None:
        n = int(np.count_nonzero(usable))
        self.partition, self.usable = partition, usable
        self.union = Union(n, corrupt)
        self.weights = np.empty((partition.count, n))
        if partition.hybrid:
            self.weights[:] = default
        self.scales = np.full(partition.count, scale)
        self.bounds = np.full(partition.count, math.nan)  # of parts that keep the weights of the whole rows
        self.ends: list[tuple[Index, Any]] = []  # parts, and why the rule ended in each
        # Inner products over the parts of a hybrid that have weights of their own.
        self.gram = np.zeros((n, n))
        self._default, self._scale, self._unit = default, scale, unit
        self._rounding: list[float] = []
        self._to_mean: list[float] = []

    def add(self, parts: Index, judged: Judged) -> None:
        """Parts that have weights of their own."""
        side_by_side = parts[-1] - parts[0] == len(parts) - 1 and bool((np.diff(parts) == 1).all())
        lines = slice(int(parts[0]), int(parts[-1]) + 1) if side_by_side else parts
        self.weights[lines], self.scales[lines] = as_host(judged.weights), judged.scales
        widths = self.partition.widths[parts].astype(float)
        self.bounds[parts] = self.union.add(
            judged.weights,
            judged.variances,
            judged.influence,
            judged.rounding,
            widths,
            judged.scales,
            judged.held,
        )
        self.ends.append((parts, judged.stops))
        self._to_mean.append(length(judged.to_mean))
        if judged.gram is not None:
            self.gram += judged.gram

    def add_distance(self, distance: float) -> None:
        """How far the parts that keep the weights of the whole rows are, together, from the plain mean."""
        self._to_mean.append(distance)

    @property
    def own(self) -> Mask:
        """(parts,) which have weights of their own."""
        return np.asarray(~np.isnan(self.bounds))

    @property
    def rounding(self) -> float:
        """How far rounding may have moved the answer."""
        return math.hypot(*self._rounding)

    @property
    def to_mean(self) -> float:
        """How far the answer is from the plain mean."""
        return math.hypot(*self._to_mean)

    def average(
        self,
        rows: Rows,
        judge: PartsJudge,
        sizes: Mapping[int, RowSizes | None],
        progress: Progress | None,
    ) -> Any:
        """One reading; the answer in the caller's form, for the mean weights `finish` gives integers.

        `sizes` are those of the rows in each part whose Gram matrix pass 1 has made and, under KEPT, of whole
        rows. Other parts that are no run of many are narrow.
        """
        answer, pending = rows.answer(), _Pending()
        sums: dict[int, WeightedSum] = {}
        kept = None
        if self.partition.hybrid:
            kept = sums[KEPT] = self._weighted_sum(self._scale * self._default, sizes[KEPT])
        rounding = 0.0
        with np.errstate(all="ignore"):
            for columns, block in as_matrices(rows.blocks()):
                block, filled = as_host_array(block), False
                if kept is not None:  # most columns keep the weights of the whole rows: all are written first
                    cast = kept.into(answer.memory_for(columns, block), block)
                    filled = cast is not None
                    rounding = math.hypot(rounding, cast or 0.0)
                for run in self.partition.within(columns):
                    start, stop = max(run.start, columns.start), min(run.stop, columns.stop)
                    piece = block[:, start - columns.start : stop - columns.start]
                    if run.times > 1:
                        for at, whole in pending.parts(run, start, piece):
                            here = slice(at, at + whole.shape[1])
                            out = answer.memory_for(here, whole) if filled and at >= columns.start else None
                            written = self._run(run, at, whole, judge, kept, out)
                            if out is None:
                                rounding = math.hypot(rounding, answer.write(here, written))
                        continue
                    if filled and math.isnan(self.bounds[run.part]):  # it has no weights of its own
                        continue
                    weights = self.scales[run.part] * self.weights[run.part]
                    if run.part not in sizes:
                        usable = piece[np.flatnonzero(self.usable).tolist()]
                        (written,), error = weighted(as_float64(usable)[None], weights[None])
                        rounding = math.hypot(rounding, error, answer.write(slice(start, stop), written))
                        continue
                    if run.part not in sums:
                        sums[run.part] = self._weighted_sum(weights, sizes[run.part])
                    here, weighted_sum = slice(start, stop), sums[run.part]
                    cast = weighted_sum.into(answer.memory_for(here, piece), piece)
                    cast = answer.write(here, weighted_sum(piece)) if cast is None else cast
                    rounding = math.hypot(rounding, cast)
                if progress:
                    progress("averaging", columns.stop, rows.d)
        self._rounding += [rounding, *(each.rounding_error(0.0) for each in sums.values())]
        return answer

    def _weighted_sum(self, usable_weights: Array, size: RowSizes | None) -> WeightedSum:
        weights = np.zeros(self.usable.size)
        weights[self.usable] = usable_weights
        return WeightedSum(weights, self.usable, size)

    def _run(
        self, run: Run, start: int, block: Block, judge: PartsJudge, kept: WeightedSum | None, out: Any
    ) -> Any:
        """The answer for whole parts of a run from a column on; `kept` sums those without own weights.

        `out`: memory that holds these sums already, if there is.
        """
        (n, width), w = block.shape, run.width
        on_host = isinstance(block, np.ndarray)
        each = numbers_of_cloud(n, w)
        most = min(MAX_JUDGED_NUMBERS // (n * w), HOST_GRAM_NUMBERS // each)
        if not on_host:  # every cut costs launches; a hybrid measures few of its parts
            most = DEVICE_GRAM_NUMBERS // each if kept is None else width // w
        step = max(most, 1) * w
        first = run.part + (start - run.start) // w
        cuts = [(first + at // w, block[:, at : at + step]) for at in range(0, width, step)]

        def settle(cut: tuple[int, Block]) -> _Group:
            pieces = cut[1].reshape(n, -1, w).swapaxes(0, 1)
            if not self.usable.all():
                pieces = pieces[:, np.flatnonzero(self.usable).tolist()]
            judged = judge.pieces(pieces, np.arange(cut[0], cut[0] + len(pieces)), run.part)
            if kept is not None and not judged:
                return _Group(cut[0], judged, None, 0.0)
            if kept is not None:
                pieces = pieces[beside(np.concatenate([index for index, _ in judged]), pieces)]
            return self._group(cut[0], pieces, judged, kept is None)

        groups = parallel_map(settle, cuts) if on_host else list(map(settle, cuts))
        for group in groups:
            for index, judged in group.judged:
                self.add(group.first + index, judged)
            self._rounding.append(group.error)
        if kept is None:
            return joined([group.answer for group in groups]) if len(groups) > 1 else groups[0].answer
        answer = kept(block) if out is None else out
        for group in (group for group in groups if group.judged):
            own = group.first - first + np.concatenate([index for index, _ in group.judged])
            lines = group.answer.reshape(-1, w)
            lines = lines.astype(answer.dtype) if on_host else lines.to(answer.dtype)
            answer.reshape(-1, w)[beside(own, answer)] = lines
        return answer

    def _group(self, first: int, pieces: Any, judged: list[tuple[Index, Judged]], in_place: bool) -> _Group:
        """The answer of parts that have weights of their own: in order, or as they are listed."""
        scales = np.concatenate([each.scales for _, each in judged])
        weights = stacked([each.weights_beside(pieces) for _, each in judged])
        if (scales != 1).any():
            weights = beside(scales[:, None], pieces) * weights
        variances = np.concatenate([each.variances for _, each in judged]) * self._unit * self._unit
        if in_place and len(judged) > 1:
            order = np.argsort(np.concatenate([index for index, _ in judged]))
            weights, variances, scales = weights[beside(order, weights)], variances[order], scales[order]
        if quick := in_float32(pieces, weights, variances):
            return _Group(first, judged, quick[0].reshape(-1), quick[1])
        if in_kernels(pieces) and (by_kernel := weighted_by_kernel(pieces, weights, scales)):
            return _Group(first, judged, by_kernel[0].reshape(-1), by_kernel[1])
        sums, errors, done = [], [], 0
        for numbers in slices_of(pieces, in_float64=True):
            own = weights[done : done + len(numbers)]
            done += len(numbers)
            answer, error = weighted(numbers, own)
            sums.append(answer)
            errors.append(error)
        return _Group(first, judged, stacked(sums).reshape(-1), math.hypot(*errors))


class _Pending:
    """Parts that a block cuts wait for the rest of their columns."""

    def __init__(self) -> None:
        self._kept: Any = None  # (n, b) the columns of such a part that have passed

    def parts(self, run: Run, start: int, piece: Block) -> Iterator[tuple[int, Block]]:
        """Whole parts, as (n, k·width) columns, with the column where they begin."""
        inside = (start - run.start) % run.width
        if inside:
            need = run.width - inside
            self._kept = _side_by_side(self._kept, piece[:, :need])
            if piece.shape[1] < need:
                return
            yield start - inside, self._kept
            start, piece = start + need, piece[:, need:]
        whole = piece.shape[1] // run.width * run.width
        if whole:
            yield start, piece[:, :whole]
        if whole < piece.shape[1]:
            self._kept = _copied(piece[:, whole:])


def _copied(block: Block) -> Block:
    return block.copy() if isinstance(block, np.ndarray) else block.clone()


def _side_by_side(left: Block, right: Block) -> Block:
    return np.hstack((left, right)) if isinstance(left, np.ndarray) else namespace(left).cat((left, right), 1)
