"""The ranks that exchange rows: a process group, and the few collectives that are made on it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from randeigen.errors import BadParameter

FALSE_WORDS = ("", "0", "false", "n", "no", "off")


class Peers:
    """A process group; ranks are counted within it."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise BadParameter(
                "there is no process group; start the script with torchrun and call "
                "torch.distributed.init_process_group() first."
            )
        self.group: Any = dist.group.WORLD if group is None else group
        self.size: int = dist.get_world_size(self.group)
        self.rank: int = dist.get_rank(self.group)
        if self.rank < 0:
            raise BadParameter("this rank is not in the group; pass a group that it belongs to.")
        self.ranks: tuple[int, ...] = tuple(dist.get_process_group_ranks(self.group))
        backend = str(dist.get_backend(self.group))
        self._by_lists = "nccl" in backend  # an all_gather of uneven lists becomes grouped broadcasts
        if "nccl" in backend and os.environ.get("TORCH_NCCL_NAN_CHECK", "0").lower() not in FALSE_WORDS:
            raise BadParameter(
                "TORCH_NCCL_NAN_CHECK is set: NCCL would end the process at the first NaN, before the rank "
                "that sent it can be left out; unset it."
            )

    def exchange(self, received: Tensor, flat: Tensor, sizes: Sequence[int]) -> Any:
        """Begin to send each rank its columns of `flat`; `received` is (n, own columns)."""
        own = [received.shape[1]] * self.size
        return dist.all_to_all_single(
            received.view(-1), flat, own, list(sizes), group=self.group, async_op=True
        )

    def gather(self, flat: Tensor, sizes: Sequence[int]) -> list[Any]:
        """Begin to spread every rank's own columns of `flat` to all.

        On gloo broadcasts into place take a third of the time of an all_gather.
        """
        pieces = list(flat.split(list(sizes)))
        if self._by_lists:
            return [dist.all_gather(pieces, pieces[self.rank], group=self.group, async_op=True)]
        return [
            dist.broadcast(piece, source, group=self.group, async_op=True)
            for piece, source in zip(pieces, self.ranks, strict=True)
            if piece.numel()
        ]

    def sum(self, vector: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        dist.all_reduce(vector, group=self.group)
        return vector

    def slots(self, numbers: Sequence[float], device: torch.device) -> list[list[float]]:
        """Of each number what every rank gives, by one sum in which each rank fills a slot of its own."""
        vector = torch.zeros((len(numbers), self.size), dtype=torch.float64, device=device)
        vector[:, self.rank] = torch.tensor(numbers, dtype=torch.float64)
        slots: list[list[float]] = self.sum(vector).tolist()
        return slots

    def from_first(self, vector: Tensor) -> Tensor:
        """The first rank's numbers, in place."""
        dist.broadcast(vector, self.ranks[0], group=self.group)
        return vector

    def of_each(self, vector: Tensor) -> list[Tensor]:
        """What each rank gives, all of one length."""
        out = [torch.empty_like(vector) for _ in range(self.size)]
        dist.all_gather(out, vector, group=self.group)
        return out


def even_sizes(length: int, owners: Sequence[bool]) -> list[int]:
    """How many of `length` columns each rank owns: as even as can be, none where it may own none."""
    count = sum(owners)
    ends = [length * i // count for i in range(count + 1)]
    sizes = iter(b - a for a, b in pairwise(ends))
    return [next(sizes) if owns else 0 for owns in owners]


def starts_of(sizes: Iterable[int]) -> list[int]:
    """Where each piece begins, and where the last one ends."""
    return list(accumulate(sizes, initial=0))


def as_peers(shards: Any, peers: Peers) -> list[Peers]:
    """The groups over which each row is sharded: of a mesh all its dimensions but that of `peers` itself."""
    if shards is None:
        return []
    if isinstance(shards, dist.ProcessGroup):
        return [Peers(shards)]
    if isinstance(shards, dist.device_mesh.DeviceMesh):
        others = [Peers(group) for group in shards.get_all_groups()]
        return [other for other in others if set(other.ranks) != set(peers.ranks)]
    raise BadParameter(
        f"shards is a {type(shards).__name__}; pass the DeviceMesh or the process group over which each row "
        "is sharded."
    )
