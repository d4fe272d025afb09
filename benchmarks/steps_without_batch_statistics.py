"""What may stand in for batch normalisation in a robust step, and what that costs: MNIST, three seeds.

    python -m benchmarks.steps_without_batch_statistics [--seeds 0 1 2] [--out results/batchnorm.json]

A net of two convolutions, each followed by a batch normalisation, learns from 6,000 images: from scratch, or
after it was trained on 3,000 others. Poison is 4% of the 6,000: images 30 times as bright, of the next label,
which batch statistics are open to. Each conversion of `randeigen.torch.convert_batchnorm` is trained by plain
steps and by robust ones, with and without the poison. The claim: with the poison, robust steps end within 5
points of plain steps with batch statistics on clean data, whatever the conversion, and those end further away
with the poison. About a quarter of an hour on one core.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import randeigen.torch
from randeigen.lab import tasks
from randeigen.rows.write import replacing
from randeigen.torch import convert_batchnorm
from randeigen.torch.batchnorm import Normalisation
from studies.documents import redraw
from studies.provenance import made_with

PAGE = Path(__file__).resolve().parents[1] / "docs" / "how-to" / "batch-normalisation.md"
TRUSTED, EXAMPLES, TESTED = 3_000, 6_000, 4_000
BATCH, RATE, GHOST = 96, 0.1, 4
POISONED, BRIGHTER = 0.04, 30.0
POINTS = 0.05  # of accuracy that the claim allows


class Case(NamedTuple):
    """A normalisation, how a step is made, and how examples lie in a batch."""

    to: Normalisation | None  # what batch normalisation is converted to
    eps: float | None  # of robust steps; None: plain ones
    by_source: bool = False  # neighbours in a batch come from one source, and sources are poisoned as a whole


SCRATCH = {
    "batch statistics, plain": Case(None, None),
    "`group`, plain": Case("group", None),
    "`group`, robust": Case("group", 0.1),
    "`ghost` of 4, plain": Case("ghost", None),
    "`ghost` of 4, robust": Case("ghost", 0.3),
    "`ghost` of 4 by source, robust": Case("ghost", 0.15, by_source=True),
}
FINE_TUNING = {
    "batch statistics, plain": Case(None, None),
    "`frozen`, plain": Case("frozen", None),
    "`frozen`, robust": Case("frozen", 0.1),
    "`group`, plain": Case("group", None),
    "`group`, robust": Case("group", 0.1),
    "`ghost` of 4, robust": Case("ghost", 0.3),
}


def net() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 10)),
    )


def batches(n: int, by_source: bool, rng: np.random.Generator) -> Iterator[Tensor]:
    """Shuffled indices; by source, `GHOST` neighbours stay together."""
    size = GHOST if by_source else 1
    order = rng.permutation(n // size)[:, None] * size + np.arange(size)
    flat = torch.from_numpy(order.reshape(-1))
    yield from (part for part in flat.split(BATCH) if len(part) == BATCH)


def fit(model: nn.Module, x: Tensor, y: Tensor, case: Case, epochs: int, rng: np.random.Generator) -> None:
    criterion = nn.CrossEntropyLoss(reduction="none")
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    model.train()
    for _ in range(epochs):
        for batch in batches(len(y), case.by_source, rng):
            optimizer.zero_grad()
            losses = criterion(model(x[batch]), y[batch])
            if case.eps is None:
                losses.mean().backward()
            else:
                rows = losses.unflatten(0, (-1, GHOST)).mean(1) if case.to == "ghost" else losses
                randeigen.torch.backward(rows, model, eps=case.eps, seed=0, on_excess="drop")
            optimizer.step()


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())


def poison(x: Tensor, y: Tensor, by_source: bool, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    size = GHOST if by_source else 1
    chosen = rng.choice(len(y) // size, int(POISONED * len(y)) // size, replace=False)
    index = torch.from_numpy((chosen[:, None] * size + np.arange(size)).reshape(-1))
    x, y = x.clone(), y.clone()
    x[index], y[index] = BRIGHTER * x[index], (y[index] + 1) % 10
    return x, y


def measure(seed: int) -> list[dict[str, Any]]:
    """Every case of one seed."""
    task = tasks.build("mnist")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(task.train[1]))[: TRUSTED + EXAMPLES]
    x = task.normalise(torch.from_numpy(task.train[0][order]).float())
    y = torch.from_numpy(task.train[1][order])
    test_images, test_labels = (torch.from_numpy(values[:TESTED]) for values in task.test)
    test = task.normalise(test_images.float()), test_labels
    torch.manual_seed(seed)
    fresh = net()
    trained = copy.deepcopy(fresh)
    fit(trained, x[:TRUSTED], y[:TRUSTED], Case(None, None), 3, np.random.default_rng([seed, 1]))
    lines = [
        {"part": "before fine-tuning", "case": "", "poison": False, "accuracy": accuracy(trained, *test)}
    ]
    for part, cases, start, epochs in (
        ("scratch", SCRATCH, fresh, 3),
        ("fine-tuning", FINE_TUNING, trained, 2),
    ):
        for name, case in cases.items():
            for poisoned in (False, True):
                data = x[TRUSTED:], y[TRUSTED:]
                if poisoned:
                    data = poison(*data, case.by_source, np.random.default_rng([seed, 2]))
                model = copy.deepcopy(start)
                if case.to is not None:
                    convert_batchnorm(model, case.to, size=GHOST if case.to == "ghost" else None)
                fit(model, *data, case, epochs, np.random.default_rng([seed, 3]))
                found = accuracy(model, *test)
                told = f"{part}, {name}, {'poison' if poisoned else 'clean'}: {found:.1%}"
                print(f"  seed {seed}: {told}", file=sys.stderr, flush=True)
                lines.append({"part": part, "case": name, "poison": poisoned, "accuracy": found})
    return [{"seed": seed, **line} for line in lines]


def means(cells: list[dict[str, Any]]) -> dict[tuple[str, str, bool], tuple[float, float, float]]:
    """Mean, least and most over the seeds."""
    found: dict[tuple[str, str, bool], list[float]] = {}
    for cell in cells:
        found.setdefault((cell["part"], cell["case"], cell["poison"]), []).append(cell["accuracy"])
    return {key: (statistics.mean(v), min(v), max(v)) for key, v in found.items()}


def table(cells: list[dict[str, Any]]) -> str:
    found = means(cells)
    lines = ["| steps | clean data | 4% poison |", "|---|---:|---:|"]
    for part, cases in (("scratch", SCRATCH), ("fine-tuning", FINE_TUNING)):
        begin = "**from scratch**" if part == "scratch" else "**fine-tuning**"
        start = found["before fine-tuning", "", False][0] if part == "fine-tuning" else None
        lines.append(f"| {begin} | {'' if start is None else f'{100 * start:.1f} before'} | |")
        for name in cases:
            shown = (
                f"{100 * mean:.1f} ({100 * low:.1f} to {100 * high:.1f})"
                for mean, low, high in (found[part, name, poisoned] for poisoned in (False, True))
            )
            lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def holds(cells: list[dict[str, Any]]) -> bool:
    found = {key: mean for key, (mean, *_) in means(cells).items()}
    for part, cases in (("scratch", SCRATCH), ("fine-tuning", FINE_TUNING)):
        enough = found[part, "batch statistics, plain", False] - POINTS
        robust = [found[part, name, True] for name, case in cases.items() if case.eps is not None]
        if min(robust) < enough or found[part, "batch statistics, plain", True] >= enough:
            return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("results/batchnorm.json"))
    parser.add_argument("--redraw", action="store_true", help="the page's table alone, from the record")
    options = parser.parse_args()
    if options.redraw:
        cells = json.loads(options.out.read_text())["cells"]
    else:
        cells = []
        for seed in options.seeds:
            cells += measure(seed)
        record = {"cells": cells, "holds": holds(cells), "made_with": made_with()}
        with replacing(options.out) as file:
            file.write((json.dumps(record, indent=1, allow_nan=False) + "\n").encode())
    if PAGE.exists():
        redraw(PAGE, {"batchnorm": table(cells)})
    print(table(cells))
    return 0 if holds(cells) else 1


if __name__ == "__main__":
    sys.exit(main())
