"""What a caller passes as a rank's row, as a few long vectors that can be exchanged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from randeigen.backend.arrays import unfit
from randeigen.distributed.agreement import DTYPES
from randeigen.distributed.peers import Peers
from randeigen.errors import BadRows

MIN_OWN_BUCKET_BYTES = 2**20  # bytes of a tensor that is exchanged where it lies; smaller ones are packed


class Local(NamedTuple):
    """The part of a tensor that this rank holds."""

    tensor: Tensor
    counted: bool  # whether its columns are measured here: no other shard holds them, or this is the first


def local_tensors(
    tensors: nn.Module | Tensor | Iterable[Tensor], peers: Peers, shards: Sequence[Peers]
) -> list[Local]:
    """The tensors, checked; of a module its gradients."""
    if isinstance(tensors, nn.Module):
        given = [p.grad for p in tensors.parameters() if p.grad is not None]
        if not given:
            raise BadRows("no parameter of the module has a gradient; call backward() first.")
    else:
        given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    locals_ = [_local(tensor, index, peers, shards) for index, tensor in enumerate(given)]
    if not shards and not any(local.tensor.numel() for local in locals_):  # a shard may well be empty
        raise BadRows("there is no number to average; pass tensors that hold some.")
    return locals_


def _local(tensor: Any, index: int, peers: Peers, shards: Sequence[Peers]) -> Local:
    if not isinstance(tensor, Tensor):
        raise BadRows(f"tensor {index} is a {type(tensor).__name__}; pass tensors, or a module.")
    counted = all(others.rank == 0 for others in shards)
    if isinstance(tensor, DTensor):
        counted = _counted(tensor, index, peers, shards)
        tensor = tensor.to_local()
    tensor = tensor.detach()
    if type(tensor) is nn.Parameter:
        tensor = tensor.data
    if reason := unfit(tensor):
        raise BadRows(f"tensor {index} {reason}.")
    if any(stride == 0 < size - 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        raise BadRows(f"tensor {index} is expanded: many of its numbers are one in memory; pass a .clone().")
    if tensor.dtype not in DTYPES:
        raise BadRows(f"tensor {index} has dtype {tensor.dtype}; pass floating-point tensors.")
    return Local(tensor, counted)


def _counted(tensor: DTensor, index: int, peers: Peers, shards: Sequence[Peers]) -> bool:
    """Whether this rank measures the local part: where it is replicated, the first shard does."""
    mesh = tensor.device_mesh
    sharded = {
        frozenset(torch.distributed.get_process_group_ranks(mesh.get_group(dim))): placement
        for dim, placement in enumerate(tensor.placements)
    }
    if any(placement.is_partial() for placement in sharded.values()):
        raise BadRows(f"tensor {index} is a DTensor that is not summed up yet (Partial); redistribute it.")
    known = {frozenset(others.ranks) for others in shards}
    for ranks, placement in sharded.items():
        if isinstance(placement, Shard) and len(ranks) > 1 and ranks not in known:
            if ranks == frozenset(peers.ranks):
                raise BadRows(
                    f"tensor {index} is sharded over the group whose ranks are the rows, so no rank holds a "
                    "row; pass the group of replicas, or attach a Guard to the model."
                )
            raise BadRows(f"tensor {index} is sharded over ranks that shards= does not name; pass its mesh.")
    return all(
        isinstance(sharded.get(frozenset(others.ranks)), Shard) or others.rank == 0 for others in shards
    )


class Packed(NamedTuple):
    """A vector to be exchanged, and the tensors it was packed from; none if it is the tensor's own memory."""

    flat: Tensor
    counted: bool
    sources: list[Tensor]

    def unpack(self) -> None:
        """Write the vector back into the tensors it was packed from."""
        at = 0
        for tensor in self.sources:
            tensor.copy_(self.flat[at : at + tensor.numel()].view(tensor.shape))
            at += tensor.numel()


def packed(locals_: Sequence[Local]) -> list[Packed]:
    """Large tensors where they lie, small ones and those with gaps packed by dtype and device."""
    out: list[Packed] = []
    small: dict[tuple[Any, ...], list[Tensor]] = {}
    for tensor, counted in locals_:
        bytes_ = tensor.numel() * tensor.element_size()
        if bytes_ >= MIN_OWN_BUCKET_BYTES and tensor.is_contiguous() and not tensor.is_neg():
            out.append(Packed(tensor.view(-1), counted, []))
        elif bytes_:
            small.setdefault((tensor.dtype, tensor.device, counted), []).append(tensor)
    for (_, _, counted), tensors in small.items():
        out.append(Packed(torch.cat([tensor.reshape(-1) for tensor in tensors]), counted, tensors))
    return out
