"""What ranks are asked to do in tests; each function runs on every rank of a `Ranks` at once."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from randeigen.distributed import Exchange, Guard, OuterStep, all_reduce
from randeigen.distributed.peers import Peers


def shown(exchange: Exchange) -> dict[str, Any]:
    """An exchange as plain values, to compare between ranks to the bit."""
    return {
        "weights": exchange.weights.tolist(),
        "bias_bound": exchange.bias_bound,
        "distance_to_mean": exchange.distance_to_mean,
        "unusable": dict(exchange.unusable),
        "seed": exchange.seed,
        "f": exchange.f,
        "skipped": exchange.skipped,
        "broken": exchange.broken,
    }


def reduce_rows(
    rows: NDArray[Any], cuts: list[int], options: dict[str, Any], size: int | None = None
) -> tuple[Any, dict[str, Any]] | None:
    """`all_reduce` of row number `rank`, cut into tensors; the mean in one piece, and the exchange."""
    group = None
    if size is not None:
        group = dist.new_group(list(range(size)))
        if dist.get_rank() >= size:
            return None
    row = torch.from_numpy(rows)[dist.get_rank()]
    tensors = [piece.clone() for piece in row.tensor_split(cuts)]
    exchange = all_reduce(tensors, group=group, **options)
    return torch.cat([tensor.reshape(-1) for tensor in tensors]).numpy(), shown(exchange)


def reduce_unlike(kind: str, options: dict[str, Any]) -> Any:
    """`all_reduce` in which rank 2 holds something else than the others."""
    odd = dist.get_rank() == 2
    tensors: Any = [torch.ones(10), torch.ones(5, 2)]
    if odd and kind == "length":
        tensors[0] = torch.ones(11)
    elif odd and kind == "shape":
        tensors[1] = torch.ones(2, 5)
    elif odd and kind == "dtype":
        tensors = [tensor.to(torch.bfloat16) for tensor in tensors]
    elif odd and kind == "integers":
        tensors[1] = torch.ones(5, 2, dtype=torch.int64)
    elif odd and kind == "nothing":
        tensors = []
    elif odd and kind == "f":
        options = {"f": 0}
    elif kind == "seed":
        options = {**options, "seed": 7 if odd else 8}
    return shown(all_reduce(tensors, **options))


class Net(nn.Module):
    """Three layers of unlike sizes; one parameter is used only where it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 30), nn.ReLU(), nn.Linear(30, 3)
        )
        self.spare = nn.Linear(20, 3)

    def forward(self, x: Tensor, spare: bool = True) -> Tensor:
        out: Tensor = self.layers(x)
        return out + self.spare(x) if spare else out


def corrupt(tensors: list[Tensor], fault: str) -> None:
    """What a faulty rank does to its gradients."""
    for tensor in tensors:
        if fault == "sign":
            tensor.mul_(-3)
        elif fault not in ("none", "NaN", "one layer"):
            tensor.mul_(float(fault))
    if fault == "NaN":
        tensors[-1].view(-1)[0] = torch.nan
    if fault == "one layer":
        tensors[0].mul_(-100)


def plain_gradients(faults: list[str], dtype: torch.dtype, spare: bool) -> list[Tensor]:
    """This rank's gradients without DDP, faults included."""
    net, x, y = _problem(dtype)
    _loss(net, x, y, spare).backward()
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    corrupt(grads, faults[dist.get_rank()])
    return grads


def _problem(dtype: torch.dtype) -> tuple[Net, Tensor, Tensor]:
    torch.manual_seed(0)
    net = Net().to(dtype)
    torch.manual_seed(100 + dist.get_rank())
    return net, torch.randn(16, 20, dtype=dtype), torch.randn(16, 3, dtype=dtype)


def _loss(net: Any, x: Tensor, y: Tensor, spare: bool) -> Tensor:
    return (net(x, spare) - y).square().mean()


def with_faults(net: nn.Module, fault: str) -> None:
    """Corrupt gradients as autograd hands them on: DDP's buckets hold what the fault made of them."""
    if fault == "none":
        return
    last = list(net.parameters())[-1]
    first = next(net.parameters())

    def spoil(p: nn.Parameter) -> None:
        def change(grad: Tensor) -> Tensor:
            grad = grad.clone()
            if fault == "sign":
                return grad.mul_(-3)
            if fault == "NaN":
                if p is last:
                    grad.view(-1)[0] = torch.nan
                return grad
            if fault == "one layer":
                return grad.mul_(-100) if p is first else grad
            return grad.mul_(float(fault))

        p.register_hook(change)

    for p in net.parameters():
        spoil(p)


def ddp_gradients(
    faults: list[str],
    guard_options: dict[str, Any],
    ddp_options: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    spare: bool = True,
    steps: int = 1,
    accumulate: int = 1,
) -> dict[str, Any]:
    """Backward under DDP with a Guard: the gradients, the exchanges, and this rank's own gradients."""
    net, x, y = _problem(dtype)
    with_faults(net, faults[dist.get_rank()])
    ddp = DistributedDataParallel(net, **(ddp_options or {}))
    guard = Guard(**guard_options).attach(ddp)
    exchanges = []
    for _ in range(steps):
        net.zero_grad()
        for _ in range(accumulate - 1):
            with ddp.no_sync():
                _loss(ddp, x, y, spare).backward()
        _loss(ddp, x, y, spare).backward()
        assert guard.last is not None
        exchanges.append(shown(guard.last))
    used = [p for name, p in net.named_parameters() if spare or not name.startswith("spare")]
    mean = torch.cat([p.grad.reshape(-1) for p in used if p.grad is not None]).float().numpy()
    own = plain_gradients(faults, dtype, spare)
    return {
        "mean": mean,
        "own": torch.cat([grad.reshape(-1) for grad in own]).float().numpy(),
        "exchanges": exchanges,
        "trust": guard.trust.tolist(),
        "suspects": guard.suspects(),
    }


def ddp_goes_on_after_a_skipped_step() -> tuple[list[bool], list[bool], list[float]]:
    """Two NaN ranks in step 1 only: which steps were skipped, which gradients finite; the trust."""
    net, x, y = _problem(torch.float32)
    ddp = DistributedDataParallel(net)
    guard = Guard(f=1).attach(ddp)
    skipped, finite = [], []
    for step in range(3):
        net.zero_grad()
        loss = _loss(ddp, x, y, True)
        if step == 1 and dist.get_rank() in (0, 3):
            loss = loss * torch.nan
        loss.backward()
        assert guard.last is not None
        skipped.append(guard.last.skipped)
        finite.append(all(bool(p.grad.isfinite().all()) for p in net.parameters() if p.grad is not None))
    return skipped, finite, guard.trust.tolist()


def broken_owner(rank: int, steps: int) -> list[tuple[int, ...]]:
    """`check=True` while one rank writes one wrong number into its columns of the mean."""
    guard, found = Guard(f=1, check=True), []
    gather = Peers.gather

    def spoiled(peers: Peers, flat: Tensor, sizes: Any) -> Any:
        if peers.rank == rank and sizes[rank]:
            flat[sum(sizes[:rank])] += 1.0
        return gather(peers, flat, sizes)

    Peers.gather = spoiled  # type: ignore[method-assign]
    try:
        for step in range(steps):
            row = torch.randn(100_000, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
            found.append(guard.all_reduce(row).broken)
    finally:
        Peers.gather = gather  # type: ignore[method-assign]
    return found


def local_training(fault: float, momentum: float, rounds: int = 2) -> dict[str, Any]:
    """Rounds of local SGD in which rank 1 has a fault: where each came, and the parameters in the end."""
    torch.manual_seed(0)
    net = nn.Linear(6, 4)
    options = {"lr": 1.0, "momentum": momentum}
    outer = OuterStep(net, Guard(f=1), (lambda ps: torch.optim.SGD(ps, **options)) if momentum else None)
    moved, exchanges = [], []
    for number in range(rounds):
        before = torch.cat([p.detach().reshape(-1).clone() for p in net.parameters()])
        generator = torch.Generator().manual_seed(10 * number + dist.get_rank())
        factor = fault if dist.get_rank() == 1 else 1.0
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(factor * (0.1 + 0.02 * torch.randn(p.shape, generator=generator)))
        moved.append((before - torch.cat([p.detach().reshape(-1) for p in net.parameters()])).numpy())
        exchanges.append(shown(outer.step()))
    end = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    return {"moved": moved, "exchanges": exchanges, "end": end.numpy(), "before": before.numpy()}


def local_training_with_two_faults() -> dict[str, Any]:
    """An outer step in which two ranks of four have come to NaN."""
    torch.manual_seed(0)
    net = nn.Linear(6, 4)
    start = net.weight.detach().clone()
    outer = OuterStep(net, Guard(f=1))
    with torch.no_grad():
        net.weight.add_(torch.nan if dist.get_rank() < 2 else 1.0)
    exchange = outer.step()
    return {"skipped": exchange.skipped, "start": start.numpy(), "end": net.weight.detach().numpy()}
