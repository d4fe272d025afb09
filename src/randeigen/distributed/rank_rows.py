"""Rows that lie on ranks, one on each, as a source of the pipeline.

Each rank receives all n rows of its own columns, adds its share of the Gram matrix, and n² numbers are summed
over the ranks. All come to the same verdict; each sums its own columns, and these are spread to all.

    rows ──▶ each rank: all n rows of its columns ──▶ its share ──sum over ranks──▶ rule ──▶ n weights
                                         └─────────────── weighted sum of its columns ◀──────────┘
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from randeigen.backend.arrays import as_writable_array, store
from randeigen.backend.chunking import BLOCK_BYTES
from randeigen.distributed.over_ranks import distances_over, judgement_of_first, summed
from randeigen.distributed.peers import Peers, even_sizes, starts_of
from randeigen.errors import BadParameter
from randeigen.geometry.gram_accumulator import NOT_FINITE
from randeigen.geometry.gram_share import GramShare
from randeigen.pipeline import StreamedRows
from randeigen.rows.convert import ArrayRows
from randeigen.rules import Rule
from randeigen.source import Combined, Judgement
from randeigen.types import Answer, Block, Geometry, GeometryKind, Mask, Progress, Statistic, Weights


class Bucket(NamedTuple):
    """Some columns of every rank's row, while they are exchanged."""

    received: Tensor  # (n, own columns) all ranks' numbers of the columns that this rank owns
    mean: Tensor  # (own columns) where their mean goes
    flat: Tensor | None  # this rank's numbers, and the mean in the end; None: each rank keeps its own columns
    sizes: list[int]  # how many columns each rank owns
    counted: bool  # whether these columns are measured here, and not on another shard that holds them too
    sent: Any


class RankRows:
    """The source. `start` each bucket, then hand it to the pipeline; the mean lies in the buckets."""

    carries = False

    def __init__(self, peers: Peers, shards: Sequence[Peers]) -> None:
        self.peers, self.shards = peers, shards
        self.n = peers.size
        self.owners = [True] * self.n  # which ranks may own columns of the mean
        self.device = torch.device("cpu")  # where small vectors are summed: beside the rows
        self.unusable: Mapping[int, str] = {}
        self.buckets: list[Bucket] = []
        self.weights: Weights = np.zeros(self.n)  # those of the first rank, once rows are combined
        self._memory: dict[tuple[Any, ...], Tensor] = {}

    def start(self, flat: Tensor, counted: bool = True) -> None:
        """Begin to exchange a vector of which every rank holds its own."""
        sizes = even_sizes(flat.numel(), self.owners)
        start, own = sum(sizes[: self.peers.rank]), sizes[self.peers.rank]
        received = self._memory_for(own, flat)
        sent = self.peers.exchange(received, flat, sizes)
        self.buckets.append(Bucket(received, flat[start : start + own], flat, sizes, counted, sent))

    def start_sharded(self, flat: Tensor, mean: Tensor) -> None:
        """The same where each rank keeps the mean of its own columns, all of one number, in `mean`."""
        received = self._memory_for(mean.numel(), flat)
        sizes = [mean.numel()] * self.n
        self.peers.exchange(received, flat, sizes).wait()  # `flat` is the caller's, who may write to it next
        self.buckets.append(Bucket(received, mean, None, sizes, True, None))

    def _memory_for(self, own: int, like: Tensor) -> Tensor:
        """Memory of the step before, if a bucket of this form was in this position; else new."""
        key = len(self.buckets), own, like.dtype, like.device
        if key not in self._memory:
            self._memory[key] = torch.empty((self.n, own), dtype=like.dtype, device=like.device)
        return self._memory[key]

    def fill(self, value: float) -> None:
        """This number in place of the mean."""
        for bucket in self.buckets:
            (bucket.mean if bucket.flat is None else bucket.flat).fill_(value)

    def finish(self) -> None:
        """Forget the buckets, and memory that no bucket of this step was received into."""
        used = {id(bucket.received) for bucket in self.buckets}
        self._memory = {key: block for key, block in self._memory.items() if id(block) in used}
        self.buckets = []

    def measure(
        self,
        want: Statistic,
        kind: GeometryKind = "auto",
        seed: int = 0,
        trusted: int | None = None,
        progress: Progress | None = None,
    ) -> Geometry:
        """The exact Gram matrix, whatever is wanted: a sum over the ranks needs no rows."""
        for bucket in self.buckets:
            if bucket.sent is not None:
                bucket.sent.wait()
        rows = OwnColumns([(bucket.received, None) for bucket in self.buckets if bucket.counted], self.n)
        share = GramShare.measure(rows, seed) if rows.d else GramShare.of_nothing(self.n)
        share = summed(share, (self.peers, *self.shards), self.device)
        self.unusable = {int(i): NOT_FINITE for i in np.flatnonzero(share.unusable)}
        return share.geometry(seed)

    def combine(self, judgement: Judgement, usable: Mask, progress: Progress | None = None) -> Combined:
        """Each rank sums its own columns into their place, then all pieces are spread to all ranks."""
        everybody = (self.peers, *self.shards)
        judgement = judgement_of_first(judgement, everybody, self.device)
        self.weights = np.zeros(self.n)
        self.weights[usable] = judgement.verdict.weights
        rows = OwnColumns([(bucket.received, bucket.mean) for bucket in self.buckets], self.n)
        combined = StreamedRows(rows).combine(judgement, usable, progress)
        spreading = [
            work
            for bucket in self.buckets
            if bucket.flat is not None
            for work in self.peers.gather(bucket.flat, bucket.sizes)
        ]
        combined = distances_over(combined, everybody, self.device)
        for work in spreading:
            work.wait()
        return combined

    def changed(self) -> Sequence[int]:
        """None: what is judged is what was received."""
        return ()


class OwnColumns:
    """All n rows of the columns that this rank owns, block by block, and the place of their mean."""

    carries = False

    def __init__(self, blocks: Sequence[tuple[Tensor, Tensor | None]], n: int) -> None:
        some = [(block, mean) for block, mean in blocks if block.shape[1]]
        self._arrays = [ArrayRows(block, BLOCK_BYTES) for block, _ in some]
        self._means = [mean for _, mean in some]
        self._starts = starts_of(array.d for array in self._arrays)
        self.n, self.d = n, self._starts[-1]
        self.unusable: Mapping[int, str] = {}
        self.on_host = all(array.on_host for array in self._arrays)
        self.segment_columns: int | None = None
        self.leaves: Sequence[tuple[str, tuple[int, ...]]] = [("", (self.d,))]

    def blocks(self, multiple: int = 1) -> Iterator[tuple[slice, Block]]:
        """Each bucket's own blocks, one bucket after the other."""
        for array, start in zip(self._arrays, self._starts, strict=False):
            for columns, block in array.blocks(multiple):
                yield slice(start + columns.start, start + columns.stop), block

    def answer(self) -> Answer:
        """The buckets' own memory."""
        return _IntoPlace(self._starts, self._means)

    def changed(self) -> Sequence[int]:
        """None."""
        return ()


class _IntoPlace:
    """The mean of the own columns, written where the rank's own numbers were. No block spans two buckets."""

    def __init__(self, starts: Sequence[int], means: Sequence[Any]) -> None:
        self._starts, self._memory = starts, [as_writable_array(mean) for mean in means]

    def _at(self, columns: slice) -> Any:
        bucket = bisect_right(self._starts, columns.start) - 1
        start = self._starts[bucket]
        return self._memory[bucket][columns.start - start : columns.stop - start]

    def write(self, columns: slice, values: Any) -> float:
        return store(self._at(columns), values)

    def memory_for(self, columns: slice, like: Any) -> Any:
        memory = self._at(columns)
        return memory if memory.dtype == like.dtype else None

    def finish(self, weights: Weights) -> None:
        return None


def check_rule(rule: Rule, n: int) -> Rule:
    """The rule, if it can judge n ranks by inner products, and columns wherever they lie."""
    rule.assumed_corrupt(n)
    if rule.geometry not in ("auto", "gram"):
        raise BadParameter(
            f"{type(rule).__name__} is defined on a projection, and ranks measure rows exactly; give one "
            "that goes by inner products, such as randeigen.RandEigen(f=1)."
        )
    if rule.block_multiple() > 1:
        raise BadParameter(
            f"{type(rule).__name__} judges chunks of {rule.block_multiple()} columns, which ranks cut "
            "elsewhere; give one that judges whole rows, such as randeigen.RandEigen(f=1)."
        )
    return rule
