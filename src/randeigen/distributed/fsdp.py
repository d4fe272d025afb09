"""FSDP2 with every rank a row: reduce-scatters that keep the rows apart until there is a verdict on all.

FSDP hands each unit's gradients to a reduce-scatter, and makes `.grad` views of what that puts out. This one
keeps the n rows of the rank's own columns instead; `Guard.finish` writes their robust mean where the views
look. So until then the whole unsharded gradient lies on every rank, as (n, d/n).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from randeigen.distributed.rank_rows import RankRows
from randeigen.errors import BadModel


class KeptRows:
    """A reduce-scatter for FSDP that reduces nothing yet."""

    def __init__(self, rows: RankRows) -> None:
        self._rows = rows
        self.outputs: list[Tensor] = []

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for what goes in or comes out."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Send every rank its columns. The output is NaN until there is a verdict: nobody trains on it."""
        self._rows.device = input_tensor.device
        self._rows.start_sharded(input_tensor, output_tensor)
        output_tensor.fill_(torch.nan)
        self.outputs.append(output_tensor)


def units_of(model: nn.Module) -> list[FSDPModule]:
    """The units of a model that was given to `fully_shard`."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def group_of(model: nn.Module) -> dist.ProcessGroup:
    """The group over which all parameters are sharded."""
    meshes = {p.device_mesh for p in model.parameters() if isinstance(p, DTensor)}
    if len(meshes) != 1 or (mesh := next(iter(meshes))).ndim != 1:
        raise BadModel(
            "the model is sharded over more than one mesh dimension; to judge replicas, shard it with "
            'fully_shard(model, mesh=mesh["shard"]) and call all_reduce(model, f=1, '
            'group=mesh["replicate"].get_group(), shards=mesh) after backward().'
        )
    return mesh.get_group()


def attach(rows: RankRows, model: nn.Module) -> KeptRows:
    """Replace the reduce-scatter of every unit."""
    if not hasattr(FSDPModule, "set_custom_reduce_scatter"):
        raise BadModel("torch is too old to guard a fully sharded model; install a newer one, 2.11 say.")
    kept = KeptRows(rows)
    rows.device = next(model.parameters()).device  # FSDP leaves a lone rank's gradients to itself
    for unit in units_of(model):
        unit.set_gradient_divide_factor(1.0)  # else rows arrive divided by their number
        unit.set_custom_reduce_scatter(kept)  # type: ignore[arg-type]  # its base class has no public name
    return kept


def check_views(kept: KeptRows, model: nn.Module) -> None:
    """Refuse gradients that are copies of what the reduce-scatter put out: the mean would not reach them."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    memory = {grad.to_local().untyped_storage().data_ptr() for grad in grads if isinstance(grad, DTensor)}
    pointers = [output.untyped_storage().data_ptr() for output in kept.outputs]
    kept.outputs = []
    if len(pointers) != len(set(pointers)) or not memory.issuperset(pointers):
        raise BadModel(
            "FSDP copied gradients before they were judged: they were accumulated over several backwards "
            "without guard.finish(), reduce_dtype differs from the parameters' dtype, or they are offloaded "
            "to the CPU; none of these can be guarded."
        )
