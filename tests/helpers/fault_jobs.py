"""Ranks that die, hang or have faulty memory; each function runs on every rank of a `Ranks` at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from randeigen.distributed import Guard, all_reduce
from rank_jobs import Net, shown

HANGS_S = 30.0


def end(how: str) -> None:
    """What the last rank does in place of its part."""
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(HANGS_S)


def lost_in_all_reduce(how: str) -> float:
    """The last rank is lost after a first exchange; how long the others wait in the second one."""
    all_reduce(torch.ones(1000), f=0)
    if dist.get_rank() == dist.get_world_size() - 1:
        end(how)
    start = time.monotonic()
    try:
        all_reduce(torch.ones(100_000), f=0)
    except RuntimeError:
        return time.monotonic() - start
    raise AssertionError("the exchange ended without one of its ranks")


def lost_in_backward(how: str) -> float:
    """The same under DDP, in the middle of backward: its first gradients are out, its last ones are not."""
    net = Net()
    last = dist.get_rank() == dist.get_world_size() - 1
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.001)
    Guard(f=0).attach(ddp)
    x = torch.ones(4, 20)
    for _ in range(2):
        ddp(x).sum().backward()
    if last:
        next(net.parameters()).register_hook(lambda grad: end(how))
    start = time.monotonic()
    try:
        ddp(x).sum().backward()
    except RuntimeError:
        return time.monotonic() - start
    raise AssertionError("backward ended without one of its ranks")


def flipped_bits(row: Tensor, every: int, seed: int) -> Tensor:
    """The top exponent bit of one number in `every`, as a memory fault would flip it."""
    chosen = torch.rand(row.shape, generator=torch.Generator().manual_seed(seed)) < 1 / every
    bits = row.view(torch.int32)
    return torch.where(chosen, bits ^ (1 << 30), bits).view(torch.float32)


def flip_bits_in(rank: int) -> Any:
    """An exchange in which one rank's memory flips bits: the mean, and the exchange."""
    row = torch.randn(50_000, generator=torch.Generator().manual_seed(5))
    row += 0.3 * torch.randn(50_000, generator=torch.Generator().manual_seed(dist.get_rank()))
    if dist.get_rank() == rank:
        row = flipped_bits(row, 1000, 7)
    exchange = all_reduce(row, f=1)
    return row.numpy(), shown(exchange)


def bytes_sent(numbers: int) -> tuple[float, float]:
    """What this rank hands to its sockets in a plain and in a robust all-reduce, in rows."""
    row = torch.randn(numbers)

    def sent(work: Callable[[], object]) -> float:
        work()
        dist.barrier()
        before = _written()
        work()
        return (_written() - before) / (4 * numbers)

    return sent(lambda: dist.all_reduce(row)), sent(lambda: all_reduce(row, f=1))


def _written() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])
