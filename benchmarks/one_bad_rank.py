"""One faulty rank of eight does not hurt training under Guard, and without a fault Guard costs nothing.

    python -m benchmarks.one_bad_rank --out results/bad-rank.json
    python -m benchmarks.one_bad_rank --out results/bad-rank.json --page docs/distributed.md

Eight ranks train a small net on scikit-learn's digits: 300 steps of data parallel, or 15 outer steps of local
SGD of 20 inner steps each. One rank has a fault in every step, or in a tenth of them. The plain mean skips
steps whose gradient is not finite, as training loops do; Guard has f = 1. Each line is the mean over seeds.
Ranks are processes on gloo; with `--rows` one process computes all eight rows and gives them to
`randeigen.aggregate`, which comes to the same weights, for machines with fewer cores than ranks. Exits 1 if
Guard ends more than a point of accuracy below the plain mean without a fault; with zero gradients it may,
since nobody can tell these from honest ones. `--page` redraws the table of a page from the record.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import randeigen
from randeigen.distributed import Exchange, Guard
from randeigen.distributed.trust import Trust
from studies.documents import redraw
from studies.provenance import made_with

RANKS, BAD, STEPS, OUTER, INNER, BATCH, LR = 8, 5, 300, 15, 20, 16, 0.2
FIRST_LAYER = slice(0, 64 * 64)
MAX_LOSS = 0.01  # of accuracy


class Fault(NamedTuple):
    name: str
    often: float  # in which part of the steps
    change: Callable[[Tensor, torch.Generator], object]


def flip_bits(row: Tensor, generator: torch.Generator) -> None:
    chosen = torch.rand(row.shape, generator=generator) < 1e-3
    bits = row.view(torch.int32)
    row.copy_(torch.where(chosen, bits ^ (1 << 30), bits).view(torch.float32))


FAULTS = (
    Fault("none", 0.0, lambda row, _: None),
    Fault("a NaN in 10% of steps", 0.1, lambda row, _: row[0].fill_(torch.nan)),
    Fault("top exponent bit of 1 number in 1,000, in 10% of steps", 0.1, flip_bits),
    Fault("first layer ×−100, in 10% of steps", 0.1, lambda row, _: row[FIRST_LAYER].mul_(-100)),
    Fault("first layer ×−100, always", 1.0, lambda row, _: row[FIRST_LAYER].mul_(-100)),
    Fault("sign and ×3, always", 1.0, lambda row, _: row.mul_(-3)),
    Fault("zero gradient, always", 1.0, lambda row, _: row.zero_()),
)
LOCAL = (FAULTS[0], FAULTS[2], FAULTS[4], FAULTS[5])


class World(Protocol):
    """The ranks, of which some are played by this process."""

    ranks: list[int]

    def plain(self, rows: list[Tensor]) -> Tensor: ...

    def robust(self, rows: list[Tensor]) -> Tensor | None: ...

    def trust(self) -> list[float]: ...


class Processes:
    """This process is one rank."""

    def __init__(self) -> None:
        self.ranks, self._guard = [dist.get_rank()], Guard(f=1)

    def plain(self, rows: list[Tensor]) -> Tensor:
        dist.all_reduce(rows[0])
        return rows[0] / RANKS

    def robust(self, rows: list[Tensor]) -> Tensor | None:
        return None if self._guard.all_reduce(rows[0]).skipped else rows[0]

    def trust(self) -> list[float]:
        return self._guard.trust.tolist() or [1.0] * RANKS


class Rows:
    """This process plays all ranks."""

    def __init__(self) -> None:
        self.ranks, self._trust = list(range(RANKS)), Trust(RANKS)

    def plain(self, rows: list[Tensor]) -> Tensor:
        return torch.stack(rows).mean(0)

    def robust(self, rows: list[Tensor]) -> Tensor | None:
        try:
            result = randeigen.aggregate(torch.stack(rows), f=1)
        except randeigen.TooManyCorrupt as error:
            self._trust.update(Exchange(np.zeros(RANKS), np.inf, None, error.reasons, 0, 1, skipped=True))
            return None
        r = result
        self._trust.update(Exchange(r.weights, r.bias_bound, r.verdict, r.unusable, r.seed, r.f))
        return result.mean

    def trust(self) -> list[float]:
        trust: list[float] = self._trust.mean.tolist()
        return trust


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_bad_rank")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", action="store_true", help="one process plays all ranks")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path, help="a page with the markers bad-rank, redrawn from --out")
    options = parser.parse_args()
    if options.page:
        redraw(options.page, {"bad-rank": table(json.loads(options.out.read_text()))})
        return 0
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if options.rows:
            study(options.seeds, Rows, folder)
        else:
            # Forked: eight processes that import torch anew take longer than a run.
            start_processes(rank_main, (options.seeds, folder), RANKS, start_method="fork")
        runs = json.loads((Path(folder) / "runs.json").read_text())
    how = "rows of one process" if options.rows else "processes on gloo"
    record = {"made_with": made_with(), "seeds": options.seeds, "ranks": how, "runs": runs}
    print(table(record))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if holds(record) else 1


def rank_main(rank: int, seeds: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", f"file://{folder}/store", timedelta(seconds=120), world_size=RANKS, rank=rank
    )
    study(seeds, Processes, folder)
    dist.destroy_process_group()


def study(seeds: int, world: Callable[[], World], folder: str) -> None:
    data = digits()
    kinds = [("data parallel", fault) for fault in FAULTS] + [("local SGD", fault) for fault in LOCAL]
    runs, start = [], time.monotonic()
    for seed in range(seeds):
        for kind, fault in kinds:
            for robust in (False, True):
                ranks = world()
                run = train(data, ranks, seed, fault, robust, local=kind == "local SGD")
                runs.append({"kind": kind, "fault": fault.name, "seed": seed, "robust": robust, **run})
                if 0 in ranks.ranks:
                    text = f"{time.monotonic() - start:5.0f} s  seed {seed}  {kind}, {fault.name}, "
                    text += f"{'Guard' if robust else 'mean'}: {run['accuracy']:.1%}"
                    print(text, file=sys.stderr, flush=True)
                    (Path(folder) / "runs.json").write_text(json.dumps(runs))


class Data(NamedTuple):
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    def shard(self, rank: int) -> tuple[Tensor, Tensor]:
        return self.x[rank::RANKS], self.y[rank::RANKS]


def digits() -> Data:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    test, rest = order[:360], order[360:]
    return Data(x[rest], y[rest], x[test], y[test])


def train(data: Data, world: World, seed: int, fault: Fault, robust: bool, local: bool) -> dict[str, Any]:
    """One run: accuracy, steps skipped, trust at the end."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    at = parameters_to_vector(net.parameters()).detach().clone()
    batches = {rank: torch.Generator().manual_seed(1000 * seed + rank) for rank in world.ranks}
    when, skipped = torch.Generator().manual_seed(seed), 0

    def gradient(rank: int) -> Tensor:
        x, y = data.shard(rank)
        batch = torch.randint(len(x), (BATCH,), generator=batches[rank])
        loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
        return torch.cat([grad.reshape(-1) for grad in torch.autograd.grad(loss, list(net.parameters()))])

    def row(rank: int) -> Tensor:
        """What a rank sends: its gradient, or how far it came by itself."""
        vector_to_parameters(at, net.parameters())
        if not local:
            return gradient(rank)
        here = at.clone()
        for _ in range(INNER):
            here -= LR * gradient(rank)
            vector_to_parameters(here, net.parameters())
        return at - here

    for _ in range(OUTER if local else STEPS):
        rows = [row(rank) for rank in world.ranks]
        if float(torch.rand((), generator=when)) < fault.often and BAD in world.ranks:
            fault.change(rows[world.ranks.index(BAD)], batches[BAD])
        step = world.robust(rows) if robust else world.plain(rows)
        if step is None or not bool(step.isfinite().all()):
            skipped += 1
        else:
            at = at - (step if local else LR * step)
    vector_to_parameters(at, net.parameters())
    right = (net(data.test_x).argmax(1) == data.test_y).float().mean()
    trust = world.trust()
    others = mean(trust[:BAD] + trust[BAD + 1 :])
    return {"accuracy": float(right), "skipped": skipped, "trust_bad": trust[BAD], "trust_others": others}


def chosen(record: dict[str, Any], kind: str, fault: str, robust: bool, what: str) -> float:
    """The mean over seeds."""
    key = (kind, fault, robust)
    return mean(
        float(run[what]) for run in record["runs"] if (run["kind"], run["fault"], run["robust"]) == key
    )


def lines(record: dict[str, Any]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((run["kind"], run["fault"]) for run in record["runs"]))


def table(record: dict[str, Any]) -> str:
    seeds = record["seeds"]
    text = [
        f"| fault on one rank of {RANKS} | mean: accuracy (steps skipped) | Guard: accuracy (steps skipped) "
        "| trust of that rank / the others |",
        "|---|---:|---:|---:|",
    ]
    for kind, fault in lines(record):
        plain = [chosen(record, kind, fault, False, what) for what in ("accuracy", "skipped")]
        robust = [chosen(record, kind, fault, True, what) for what in ("accuracy", "skipped")]
        trust = [chosen(record, kind, fault, True, what) for what in ("trust_bad", "trust_others")]
        name = fault if kind == "data parallel" else f"{kind}: {fault}"
        text.append(
            f"| {name} | {100 * plain[0]:.1f} ({plain[1]:.0f}) | {100 * robust[0]:.1f} ({robust[1]:.0f}) "
            f"| {trust[0]:.2f} / {trust[1]:.2f} |"
        )
    return "\n".join(
        [*text, "", f"Means over {seeds} seeds, ranks as {record['ranks']} (`results/bad-rank.json`)."]
    )


def holds(record: dict[str, Any]) -> bool:
    for kind, fault in lines(record):
        clean = chosen(record, kind, "none", False, "accuracy")
        if fault != FAULTS[-1].name and chosen(record, kind, fault, True, "accuracy") < clean - MAX_LOSS:
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
