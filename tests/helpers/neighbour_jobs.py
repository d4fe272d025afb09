"""What training loops do besides the usual, on every rank of a `Ranks` at once; rank 1 is faulty."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from randeigen.distributed import Guard, all_reduce


def batch(width: int = 10) -> Tensor:
    return torch.randn(4, width, generator=torch.Generator().manual_seed(dist.get_rank()))


def with_fault(model: nn.Module) -> nn.Module:
    if dist.get_rank() == 1:
        for p in model.parameters():
            if p.requires_grad:
                p.register_hook(lambda grad: -5 * grad)
    return model


def weights_of(guard: Guard) -> list[float]:
    assert guard.last is not None
    weights: list[float] = guard.last.weights.tolist()
    return weights


class Mixed(nn.Module):
    """Layers of three dtypes, a frozen one, an empty parameter and one that is used on some ranks only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.wide = nn.Linear(10, 10), nn.Linear(10, 10).double()
        self.narrow = nn.Linear(10, 10).bfloat16()
        self.frozen, self.sometimes = nn.Linear(10, 10).requires_grad_(False), nn.Linear(10, 10)
        self.nothing = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x: Tensor, sometimes: bool) -> Tensor:
        x = self.frozen(self.first(x))
        x = self.narrow(self.wide(x.double()).bfloat16()).float() + self.nothing.sum()
        out: Tensor = x + 0.01 * self.sometimes(x) if sometimes else x
        return out


def mixed() -> tuple[list[float], list[str | None], bool]:
    """The weights of the third step, the dtype of each gradient, whether all are finite."""
    model = with_fault(Mixed())
    ddp = DistributedDataParallel(model, find_unused_parameters=True, bucket_cap_mb=0.0005)
    guard = Guard(f=1).attach(ddp)
    for step in range(3):
        model.zero_grad()
        ddp(batch(), dist.get_rank() != step).sum().backward()
    grads = [p.grad for p in model.parameters()]
    finite = all(bool(grad.isfinite().all()) for grad in grads if grad is not None)
    return weights_of(guard), [None if grad is None else str(grad.dtype) for grad in grads], finite


def scaled_loss(nan_ranks: list[int]) -> tuple[list[tuple[bool, float, bool]], list[float]]:
    """Two steps with a loss scaler, NaN in the first: skipped, the scale then, whether weights changed."""
    torch.manual_seed(0)
    model = nn.Linear(10, 3)
    ddp = DistributedDataParallel(model)
    guard = Guard(f=1).attach(ddp)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", 16.0)
    steps = []
    for step in range(2):
        before = model.weight.detach().clone()
        optimizer.zero_grad()
        loss = ddp(batch()).square().mean()
        scaler.scale(loss * torch.nan if step == 0 and dist.get_rank() in nan_ranks else loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        assert guard.last is not None
        assert bool(model.weight.isfinite().all())
        steps.append((guard.last.skipped, scaler.get_scale(), not torch.equal(before, model.weight)))
    return steps, guard.trust.tolist()


def two_groups() -> tuple[float, list[float]]:
    """Ranks 0, 1 and ranks 2, 3 train models of their own, at the same time."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = nn.Linear(10, 1, bias=False)
    ddp = DistributedDataParallel(model, process_group=groups[dist.get_rank() // 2])
    guard = Guard(f=0).attach(ddp)
    ddp(torch.full((1, 10), 1.0 + dist.get_rank())).sum().backward()
    assert model.weight.grad is not None
    return float(model.weight.grad[0, 0]), weights_of(guard)


def two_models() -> tuple[list[list[float]], int]:
    """One guard for two models, as of a generator and a critic; rank 1 is faulty in the second."""
    guard, weights = Guard(f=1), []
    models = [nn.Linear(10, 3), with_fault(nn.Linear(7, 5))]
    wrapped = [DistributedDataParallel(model) for model in models]
    for ddp in wrapped:
        guard.attach(ddp)
    for _ in range(2):
        for ddp, width in zip(wrapped, (10, 7), strict=True):
            ddp(batch(width)).sum().backward()
            weights.append(weights_of(guard))
    return weights, guard.steps


def refused(what: str) -> Any:
    """Mistakes that end in a sentence on every rank."""
    if what == "two guards":
        ddp = DistributedDataParallel(nn.Linear(10, 3))
        Guard(f=1).attach(ddp)
        return Guard(f=1).attach(ddp)
    if what == "sparse":
        return Guard(f=1).attach(DistributedDataParallel(nn.Embedding(10, 4, sparse=True)))
    if what == "expanded":
        return all_reduce(torch.ones(1).expand(5), f=1)
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 3))
    (model[0] if dist.get_rank() == 2 else model)(batch()).sum().backward()
    return all_reduce(model, f=1)
