"""What ranks are asked to do with sharded models and state_dicts; on every rank of a `Ranks` at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from randeigen import distributed
from randeigen.distributed import Guard
from rank_jobs import shown

PLACEMENTS: dict[str, tuple[Any, ...]] = {
    "shard": (Shard(0),),
    "replicate": (Replicate(),),
    "shard, shard": (Shard(0), Shard(1)),
    "replicate, shard": (Replicate(), Shard(0)),
    "shard, replicate": (Shard(0), Replicate()),
    "replicate, replicate": (Replicate(), Replicate()),
}


def whole_state(row: NDArray[Any], count: int) -> dict[str, Tensor]:
    """A state_dict of the numbers of one row: a matrix, a vector in uneven shards, a scalar, a counter."""
    numbers = torch.from_numpy(row)
    return {
        "matrix": numbers[:60].reshape(10, 6),
        "vector": numbers[60:67],
        "one": numbers[67:68],
        "counter": torch.tensor(count),
    }


def aggregate_sharded(
    rows: NDArray[Any], placements: list[str], shape: list[int], options: dict[str, Any]
) -> Any:
    """`distributed.aggregate` of sharded state_dicts; the whole mean, its placements and the verdict."""
    size = int(np.prod(shape))
    mesh = DeviceMesh("cpu", torch.arange(size).reshape(shape))
    if dist.get_rank() >= size:
        return None
    leaves = dict(zip(["matrix", "vector", "one"], placements, strict=True))
    sharded = []
    for number, row in enumerate(rows):
        whole = whole_state(row, number % 2)
        sharded.append(
            {
                name: leaf
                if name == "counter"
                else distribute_tensor(leaf, mesh, PLACEMENTS[leaves[name]], src_data_rank=None)
                for name, leaf in whole.items()
            }
        )
    found = distributed.aggregate(sharded, **options)
    mean = found.mean
    like = all(
        isinstance(mean[name], DTensor) and mean[name].placements == sharded[0][name].placements
        for name in leaves
    )
    flat = torch.cat([mean[name].full_tensor().reshape(-1) for name in leaves])
    return {
        "mean": flat.numpy(),
        "counter": int(mean["counter"]),
        "like": like,
        "weights": found.weights.tolist(),
        "bias_bound": found.bias_bound,
        "distance_to_mean": found.distance_to_mean,
        "unusable": dict(found.unusable),
        "seed": found.seed,
    }


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(13, 17), nn.Tanh(), nn.Linear(17, 11), nn.Tanh(), nn.Linear(11, 3))


def batch(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(8, 13, generator=generator), torch.randn(8, 3, generator=generator)


def own_gradient(number: int, factor: float) -> Tensor:
    """The gradient of one row's batch on an unsharded model."""
    model = net()
    x, y = batch(number)
    (factor * (model(x) - y).square().mean()).backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


def whole_gradient(model: nn.Module) -> NDArray[Any]:
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([grad.full_tensor().reshape(-1) for grad in grads if isinstance(grad, DTensor)]).numpy()


def fsdp_rows(factors: list[float], steps: int = 1, **policy: Any) -> dict[str, Any]:
    """FSDP2 with every rank a row: the mean gradient of the last step and the exchanges."""
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (dist.get_world_size(),))
    model = net()
    options = {"mp_policy": MixedPrecisionPolicy(**policy)} if policy else {}
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    guard = Guard(f=1).attach(model)
    x, y = batch(rank)
    exchanges = []
    for _ in range(steps):
        model.zero_grad()
        (factors[rank] * (model(x) - y).square().mean()).backward()
        exchanges.append(shown(guard.finish()))
    return {
        "mean": whole_gradient(model),
        "own": own_gradient(rank, factors[rank]).numpy(),
        "exchanges": exchanges,
    }


def fsdp_without_finish() -> bool:
    """Whether gradients are NaN where nobody called finish."""
    model = net()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    Guard(f=1).attach(model)
    x, y = batch(dist.get_rank())
    (model(x) - y).square().mean().backward()
    return bool(np.isnan(whole_gradient(model)).all())


def fsdp_accumulated(backwards: int, synced: bool = True) -> NDArray[Any]:
    """Some backwards before finish, of which all or the last alone exchange gradients."""
    model = net()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh)
    guard = Guard(f=1).attach(model)
    x, y = batch(dist.get_rank())
    for left in reversed(range(backwards)):
        model.set_requires_gradient_sync(synced or left == 0)
        (model(x) - y).square().mean().backward()
    guard.finish()
    return whole_gradient(model)


def hsdp(factors: list[float]) -> dict[str, Any]:
    """Three replicas of two shards each, robust across replicas."""
    mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("replicate", "shard"))
    replica = mesh.get_local_rank("replicate")
    model = net()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    x, y = batch(replica)  # both shards of a replica see its batch, so their mean is the replica's gradient
    (factors[replica] * (model(x) - y).square().mean()).backward()
    exchange = distributed.all_reduce(model, f=1, group=mesh["replicate"].get_group(), shards=mesh)
    own = own_gradient(replica, factors[replica]).numpy()
    return {"mean": whole_gradient(model), "own": own, "replica": replica, "exchange": shown(exchange)}


def hsdp_without_shards() -> None:
    """The mistake of not naming the mesh over which each row is sharded."""
    mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("replicate", "shard"))
    model = net()
    fully_shard(model, mesh=mesh["shard"])
    x, y = batch(0)
    (model(x) - y).square().mean().backward()
    distributed.all_reduce(model, f=1, group=mesh["replicate"].get_group())
