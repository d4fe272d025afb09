"""Guard on one GPU: NCCL and FSDP2 with a single rank, and the device time of what a rank of eight does.

    python -m benchmarks.guard_on_a_gpu --out results/guard-h200.json

With one rank NCCL moves nothing, so this shows that the code runs there and what the hook adds to a step. The
arithmetic of a rank of eight is the library's own, on a block of the size that a rank of eight would receive;
only its exchange is left out, and what an all-reduce takes is reckoned from an assumed rate of the links.
Every part is tried on its own: one that fails is recorded with its error, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import randeigen
from randeigen.distributed import Guard, all_reduce
from randeigen.distributed.fsdp import KeptRows
from randeigen.distributed.rank_rows import RankRows
from randeigen.pipeline import Options, run
from studies.provenance import made_with

LINK_BYTES_PER_S = 200e9  # assumed of NVLink in an all-reduce, each way; not measured
RANKS = 8


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard_on_a_gpu")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--numbers", type=int, default=10**9, help="parameters of the model of eight ranks")
    parser.add_argument("--width", type=int, default=5000, help="of the layers of the model that is trained")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda", 0) if options.device == "cuda" else torch.device(options.device)
    os.environ.pop("TORCH_NCCL_NAN_CHECK", None)
    record: dict[str, Any] = {"device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=f"file://{folder}/store",
            timeout=timedelta(seconds=60),
            world_size=1,
            rank=0,
        )
        parts: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: one_rank(device),
            "ddp": lambda: ddp_step(device, options.width),
            "fsdp": lambda: fsdp_step(device),
            "rank_of_eight_float32": lambda: rank_of(device, options.numbers, torch.float32),
            "rank_of_eight_bfloat16": lambda: rank_of(device, options.numbers, torch.bfloat16),
        }
        for name, part in parts.items():
            try:
                record[name] = part()
            except Exception:
                record[name] = {"failed": traceback.format_exc()}
            print(name, json.dumps(record[name], indent=1), flush=True)
        dist.destroy_process_group()
    record["made_with"] = made_with()
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if any("failed" in record[name] for name in parts) else 0


def one_rank(device: torch.device) -> dict[str, Any]:
    """all_reduce of one rank leaves its numbers, and a NaN is one more than f = 0 allows."""
    row = torch.randn(3_000_001, device=device)
    before = row.clone()
    exchange = all_reduce(row, f=0)
    assert torch.equal(row, before)
    row[17] = torch.nan
    try:
        all_reduce(row, f=0)
    except randeigen.TooManyCorrupt:
        refused = True
    else:
        refused = False
    assert refused
    skipped = all_reduce(row, f=0, on_excess="nan").skipped
    assert skipped
    assert bool(row.isnan().all())
    return {"backend": str(dist.get_backend()), "weights": exchange.weights.tolist(), "nan_refused": refused}


def mlp(width: int, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    ).to(device)


def batch(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.randn(64, 256, device=device), torch.randn(64, 10, device=device)


def ddp_step(device: torch.device, width: int) -> dict[str, Any]:
    """The gradient of DDP with the hook is DDP's, to the bit; and what a step takes with and without it."""
    x, y = batch(device)
    ids = [device] if device.type == "cuda" else None
    plain = DistributedDataParallel(mlp(width, device), device_ids=ids)
    guarded = DistributedDataParallel(mlp(width, device), device_ids=ids)
    guard = Guard(f=0).attach(guarded)

    def step(model: nn.Module) -> None:
        model.zero_grad()
        (model(x) - y).square().mean().backward()

    for model in (plain, guarded):
        step(model)
    same = all(
        torch.equal(p.grad, q.grad)
        for p, q in zip(plain.parameters(), guarded.parameters(), strict=True)
        if p.grad is not None and q.grad is not None
    )
    assert same
    times = in_turn({"ddp_ms": lambda: step(plain), "guard_ms": lambda: step(guarded)}, device)
    (loss := (guarded(x) - y).square().mean() * torch.nan).backward()
    assert guard.last is not None
    assert guard.last.skipped
    step(guarded)  # and backward goes on after a skipped step
    assert not guard.last.skipped
    numbers = sum(p.numel() for p in plain.parameters())
    return {"parameters": numbers, "same_bits": same, **times, "loss_was_nan": bool(loss.isnan())}


def fsdp_step(device: torch.device) -> dict[str, Any]:
    """A fully sharded model on one rank: FSDP skips the reduce-scatter there, so it is called by hand too."""
    mesh = dist.device_mesh.init_device_mesh(device.type, (1,))
    x, y = batch(device)
    plain, sharded = mlp(500, device), mlp(500, device)
    for layer in sharded:  # type: ignore[attr-defined]
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    guard = Guard(f=0).attach(sharded)
    for model in (plain, sharded):
        (model(x) - y).square().mean().backward()
    exchange = guard.finish()
    error = max(
        float((p.grad - q.grad.full_tensor()).abs().max())  # type: ignore[union-attr]
        for p, q in zip(plain.parameters(), sharded.parameters(), strict=True)
    )
    reduced = all_reduce(sharded, f=0, shards=mesh)
    rows = RankRows(Alone(1), [])  # type: ignore[arg-type]
    kept, given, place = KeptRows(rows), torch.randn(1000, device=device), torch.empty(1000, device=device)
    kept(place, given, dist.group.WORLD, None)  # type: ignore[arg-type]
    assert bool(place.isnan().all())
    run(rows, randeigen.RandEigen(f=0), Options(0, "gram"))
    assert torch.equal(place, given)
    assert error < 1e-5
    return {"weights": exchange.weights.tolist(), "error": error, "by_hand": reduced.weights.tolist()}


class Done:
    """Work that is over."""

    def wait(self) -> bool:
        return True


class Alone:
    """One of n ranks whose peers are not there: what they would send lies in its memory already."""

    def __init__(self, size: int) -> None:
        self.size, self.rank, self.ranks = size, 0, tuple(range(size))

    def exchange(self, received: Tensor, flat: Tensor, sizes: Sequence[int]) -> Done:
        received[0].copy_(flat[: sizes[0]])
        return Done()

    def gather(self, flat: Tensor, sizes: Sequence[int]) -> list[Done]:
        return []

    def sum(self, vector: Tensor) -> Tensor:
        return vector

    from_first = sum

    def of_each(self, vector: Tensor) -> list[Tensor]:
        return [vector]

    def slots(self, numbers: Sequence[float], device: torch.device) -> list[list[float]]:
        return [[number] for number in numbers]


def rank_of(device: torch.device, numbers: int, dtype: torch.dtype) -> dict[str, Any]:
    """What a rank of eight computes in an exchange, the exchange itself left out."""
    flat = torch.randn(numbers, device=device, dtype=dtype)
    own = numbers // RANKS
    rows = RankRows(Alone(RANKS), [])  # type: ignore[arg-type]
    rows.device = device
    rows.start(flat)
    block = rows.buckets[0].received
    common = torch.randn(own, device=device, dtype=dtype)
    for i in range(RANKS):
        block[i] = common + 0.5 * torch.randn(own, device=device, dtype=dtype)
    block[3].mul_(-1)  # one rank's sign is flipped
    flat[:own] = block[0]  # this rank's own, sent to itself
    rows.finish()
    rule, weights = randeigen.RandEigen(f=1), np.zeros(RANKS)

    def decide() -> None:
        nonlocal weights
        rows.start(flat)
        run(rows, rule, Options(0, "gram"))
        weights = rows.weights
        rows.finish()

    times = in_turn({"exchange_ms": decide, "one_reading_ms": lambda: flat.sum()}, device, repeats=6)
    sent = 2 * (RANKS - 1) / RANKS * numbers * flat.element_size()
    return {
        "numbers": numbers,
        "ranks": RANKS,
        **times,
        "all_reduce_reckoned_ms": 1e3 * sent / LINK_BYTES_PER_S,
        "weights": weights.tolist(),
        "memory_bytes": block.numel() * block.element_size(),
    }


def in_turn(
    works: dict[str, Callable[[], object]], device: torch.device, repeats: int = 12
) -> dict[str, Any]:
    """The least milliseconds of each, on the device's own clock, and on the wall."""
    least: dict[str, float] = {}
    for number in range(repeats):
        for name, work in works.items():
            device_ms, wall_ms = timed(work, device)
            if number >= 2:
                least[name] = min(least.get(name, float("inf")), device_ms)
                least[f"{name}_wall"] = min(least.get(f"{name}_wall", float("inf")), wall_ms)
    return least


def timed(work: Callable[[], object], device: torch.device) -> tuple[float, float]:
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        wall = 1e3 * (time.perf_counter() - start)
        return wall, wall
    torch.cuda.synchronize()
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start = time.perf_counter()
    first.record()
    work()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last), 1e3 * (time.perf_counter() - start)


if __name__ == "__main__":
    sys.exit(main())
