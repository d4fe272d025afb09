"""Four ranks train on digits while the memory of one of them flips bits.

    torchrun --nproc-per-node 4 examples/torchrun/train.py --out guarded.json
    torchrun --nproc-per-node 4 examples/torchrun/train.py --plain --out plain.json
    python examples/torchrun/picture.py plain.json guarded.json --out torchrun.png

The only line that differs is the one that attaches the guard. In three of ten steps rank 2 sends a gradient
in which the top exponent bit of one number in a thousand is flipped, as faulty memory would. The loop skips a
step whose gradient is not finite, as loops do.
"""

from __future__ import annotations

import argparse
import json
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import randeigen.distributed
from randeigen.provenance import commit, versions

FAULTY, OFTEN, BITS = 2, 0.3, 1e-3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", action="store_true", help="DDP alone")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    run = train(asked.steps, guarded=not asked.plain)
    if dist.get_rank() == 0:
        asked.out.write_text(json.dumps(run) + "\n")
    dist.destroy_process_group()  # after DDP is gone, which may wait for it


def train(steps: int, guarded: bool) -> dict[str, Any]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    test_x, test_y, x, y = x[:360], y[:360], x[360 + rank :: ranks], y[360 + rank :: ranks]

    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    if rank == FAULTY:
        for p in net.parameters():
            p.register_hook(flip_bits)
    model = DistributedDataParallel(net)
    guard = None if not guarded else randeigen.distributed.Guard(f=1).attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    log = []
    batches = torch.Generator().manual_seed(rank)
    for step in range(steps):
        batch = torch.randint(len(x), (16,), generator=batches)
        Faulty.now = float(torch.rand((), generator=Faulty.coin)) < OFTEN
        optimizer.zero_grad()
        cross_entropy(model(x[batch]), y[batch]).backward()
        if all(bool(p.grad.isfinite().all()) for p in net.parameters() if p.grad is not None):
            optimizer.step()
        with torch.no_grad():
            out = net(test_x)
        loss = float(cross_entropy(out, test_y))
        log.append(
            {
                "step": step,
                "loss": loss if math.isfinite(loss) else None,  # JSON has no NaN
                "accuracy": float((out.argmax(1) == test_y).float().mean()),
                "trust": [] if guard is None else guard.trust.tolist(),
            }
        )
    if rank == 0:
        suspects = "" if guard is None else f", suspects {guard.suspects(below=0.85)}"
        print(f"accuracy {log[-1]['accuracy']:.1%}, loss {loss:.3g}{suspects}")
    made_with = {**versions(), "commit": commit()}
    return {"made_with": made_with, "guarded": guarded, "faulty": FAULTY, "log": log}


class Faulty:
    """Whether the memory is at fault in this step."""

    now = False
    coin = torch.Generator().manual_seed(7)


def flip_bits(grad: Tensor) -> Tensor:
    if not Faulty.now:
        return grad
    bits = grad.contiguous().view(torch.int32)
    return torch.where(torch.rand(grad.shape) < BITS, bits ^ (1 << 30), bits).view(torch.float32)


if __name__ == "__main__":
    main()
