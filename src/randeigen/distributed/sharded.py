"""Rows of DTensors: n sharded state_dicts, of which each rank holds its part and touches nothing else."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from randeigen.api import RuleLike, as_rule
from randeigen.distributed.agreement import COIN_BITS, step_seed
from randeigen.distributed.over_ranks import distances_over, judgement_of_first, summed
from randeigen.distributed.peers import Peers
from randeigen.distributed.rank_rows import check_rule
from randeigen.errors import BadRows, RandEigenError
from randeigen.geometry.gram_accumulator import NOT_FINITE
from randeigen.geometry.gram_share import GramShare
from randeigen.pipeline import Options, StreamedRows, checked_seed, run
from randeigen.rows import as_rows
from randeigen.rules import RandEigen
from randeigen.source import Combined, Judgement
from randeigen.types import Aggregate, Geometry, GeometryKind, Mask, OnExcess, Progress, Rows, Statistic

UNLIKE = "unlike most rows: its part on some rank has another form than theirs"


def aggregate(
    rows: Sequence[Any],
    eps: float | None = None,
    *,
    f: int | None = None,
    rule: RuleLike | None = None,
    mesh: DeviceMesh | None = None,
    seed: int | None = None,
    on_excess: OnExcess = "raise",
) -> Aggregate[Any]:
    """`randeigen.aggregate` of rows that are sharded over the ranks of a mesh; all ranks call it together.

    A leaf that is replicated over a dimension of the mesh is measured once. What travels are n² numbers.

    Parameters:
        rows: State_dicts, lists of tensors or tensors, one for each sender. DTensors of a leaf have the same
            placements in all rows; plain tensors are taken to be the same on every rank.
        eps: The fraction of rows that may be corrupt, below 1/2.
        f: Their number.
        rule: Another rule, as in `randeigen.aggregate`.
        mesh: The mesh of the DTensors; None is that of the first one.
        seed: The same on every rank; None lets the ranks draw one together.
        on_excess: With "raise", more unusable rows than f fail closed, on every rank; with "drop" they are
            left out.

    Returns:
        The mean, with the placements of the rows, and its verdict and certificate, the same on every rank.

    Raises:
        BadRows: There is no DTensor, placements differ, or some rank cannot read its part; on every rank.
        BadFraction: `eps` or `f` is outside what the rule tolerates.
        TooManyCorrupt: More rows are unusable than may be corrupt; on every rank.

    Examples:
        >>> import torch, torch.distributed as dist, randeigen
        >>> from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> mesh = init_device_mesh("cpu", (1,))
        >>> whole = [torch.full((4,), each) for each in (1.0, 2.0, 99.0)]
        >>> rows = [{"w": distribute_tensor(each, mesh, [Shard(0)])} for each in whole]
        >>> randeigen.distributed.aggregate(rows, f=1).kept.tolist()
        [True, True, False]
        >>> dist.destroy_process_group()
    """
    given = rule is None and (eps is None) != (f is None)
    chosen = RandEigen(eps, f) if given else as_rule(rule, eps, f)
    source = ShardedRows(list(rows), mesh)
    check_rule(chosen, source.n)
    coin = source.agree()
    seed = step_seed(coin, 0) if seed is None else checked_seed(seed)
    return run(source, chosen, Options(seed, "gram", on_excess))


class ShardedRows:
    """The source: rows of which this rank holds some columns."""

    def __init__(self, rows: Sequence[Any], mesh: DeviceMesh | None) -> None:
        self._mesh = _mesh_of(rows) if mesh is None else mesh
        self._groups = [Peers(group) for group in self._mesh.get_all_groups()]
        placements = _placements(rows[0])
        _check_placements(rows, self._mesh, placements)
        self._first = rows[0]
        self.device = next(leaf.device for leaf in leaves_of(rows[0]))
        self.n = len(rows)
        coordinate = self._mesh.get_coordinate()
        if coordinate is None:
            raise BadRows("this rank is not part of the mesh of the rows; call it on the ranks that are.")
        counted = [_is_counted(each, coordinate) for each in placements]
        self._problem: RandEigenError | None = None
        self.carries = False
        self.unusable: Mapping[int, str] = {}
        try:
            self._counted = _local_rows(rows, counted)
            self._all = StreamedRows(_local_rows(rows, [True] * len(counted)))
            self.carries, self.unusable = self._all.carries, dict(self._all.unusable)
        except RandEigenError as error:  # the others must hear of it: they are about to wait for this rank
            self._problem = error

    def agree(self) -> int:
        """A number that no rank chose alone, if every rank can read its part; else BadRows on all."""
        unlike = [int(row in self.unusable) for row in range(self.n)]
        mine = [int(self._problem is not None), secrets.randbits(COIN_BITS), *unlike]
        total = torch.tensor(mine, dtype=torch.int64, device=self.device)
        for peers in self._groups:
            peers.sum(total)
        problems, coin, *unlike = (int(number) for number in total.tolist())
        self.unusable = {row: UNLIKE for row, ranks in enumerate(unlike) if ranks}
        if self._problem is not None:
            raise self._problem
        if problems:
            raise BadRows(f"{problems} ranks cannot read their parts of the rows; their own errors say why.")
        return coin

    def measure(
        self,
        want: Statistic,
        kind: GeometryKind = "auto",
        seed: int = 0,
        trusted: int | None = None,
        progress: Progress | None = None,
    ) -> Geometry:
        """The exact Gram matrix, whatever is wanted: a sum over the ranks needs no rows."""
        share = GramShare.measure(self._counted, seed)
        share.unusable[list(self.unusable)] = True
        whole = summed(share, self._groups, self.device)
        unusable = np.flatnonzero(whole.unusable).tolist()
        self.unusable = {row: self.unusable.get(row, NOT_FINITE) for row in unusable}
        return whole.geometry(seed)

    def combine(self, judgement: Judgement, usable: Mask, progress: Progress | None = None) -> Combined:
        """Each rank combines its part."""
        judgement = judgement_of_first(judgement, self._groups, self.device)
        local = self._all.combine(judgement, usable, progress)
        combined = distances_over(local, self._groups, self.device)
        means = iter(local.mean)
        return combined._replace(mean=mapped(self._first, lambda leaf: self._as_sharded(leaf, means)))

    def changed(self) -> Sequence[int]:
        """None: nobody but the caller can write to them."""
        return ()

    def _as_sharded(self, leaf: Tensor, means: Iterator[Tensor]) -> Tensor:
        local = leaf.to_local() if isinstance(leaf, DTensor) else leaf
        mean = next(means) if local.numel() else local.detach().clone()
        if not isinstance(leaf, DTensor):
            return mean
        # Without shape and stride a leaf in uneven shards would lose its size.
        return DTensor.from_local(
            mean, leaf.device_mesh, leaf.placements, run_check=False, shape=leaf.shape, stride=leaf.stride()
        )


def leaves_of(row: Any) -> Iterator[Tensor]:
    """The tensors of a row, in order."""
    if isinstance(row, Tensor):
        yield row
    elif isinstance(row, Mapping):
        for value in row.values():
            yield from leaves_of(value)
    elif isinstance(row, Sequence) and not isinstance(row, (str, bytes)):
        for value in row:
            yield from leaves_of(value)
    else:
        raise BadRows(f"a row holds a {type(row).__name__}; pass state_dicts, lists of tensors or tensors.")


def mapped(row: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with other tensors."""
    if isinstance(row, Tensor):
        return change(row)
    if isinstance(row, Mapping):
        return type(row)((key, mapped(value, change)) for key, value in row.items())  # type: ignore[call-arg]
    return [mapped(value, change) for value in row]


def _local_rows(rows: Sequence[Any], chosen: Sequence[bool]) -> Rows:
    """What this rank holds of the chosen leaves, as rows; a column of zeros if there are no floats."""
    local = []
    for row in rows:
        parts = [leaf.to_local() if isinstance(leaf, DTensor) else leaf for leaf in leaves_of(row)]
        kept = [part.detach() for part, take in zip(parts, chosen, strict=True) if take and part.numel()]
        if not any(part.is_floating_point() for part in kept):
            kept.append(torch.zeros(1, device=parts[0].device))
        local.append(kept)
    return as_rows(local)


def _placements(row: Any) -> list[tuple[Any, ...] | None]:
    """Of each leaf how it lies on the mesh; None for a plain tensor, which is the same on every rank."""
    return [leaf.placements if isinstance(leaf, DTensor) else None for leaf in leaves_of(row)]


def _is_counted(placements: tuple[Any, ...] | None, coordinate: Sequence[int]) -> bool:
    """Whether the rank at this coordinate measures a leaf: of those that hold the same part, the first."""
    sharded = [isinstance(each, Shard) for each in placements or [None] * len(coordinate)]
    return all(shard or at == 0 for shard, at in zip(sharded, coordinate, strict=True))


def _mesh_of(rows: Sequence[Any]) -> DeviceMesh:
    for row in rows:
        for leaf in leaves_of(row):
            if isinstance(leaf, DTensor):
                return leaf.device_mesh
    raise BadRows("no row holds a DTensor; rows that lie whole on one rank are for randeigen.aggregate.")


def _check_placements(rows: Sequence[Any], mesh: DeviceMesh, placements: Sequence[Any]) -> None:
    for number, row in enumerate(rows):
        if _placements(row) != list(placements):
            raise BadRows(f"row {number} has other leaves or placements than row 0; shard all rows alike.")
        for leaf in leaves_of(row):
            if isinstance(leaf, DTensor) and leaf.device_mesh != mesh:
                raise BadRows(f"row {number} lies on another mesh than the first; pass rows of one mesh.")
    for each in (placement for leaf in placements for placement in leaf or ()):
        if not isinstance(each, (Shard, Replicate)):
            raise BadRows(f"a leaf is placed as {each}, not summed up or not shardable; redistribute it.")
