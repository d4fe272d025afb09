"""Figure 5a and b: clean and poisoned gradients of the first step on their top principal direction."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from randeigen.lab.config import CentralizedConfig
from randeigen.lab.paper.cells import POISONS
from randeigen.lab.poisoned_setup import prepare
from randeigen.lab.results import versions
from randeigen.provenance import commit
from randeigen.torch import gram

MAX_GRADIENTS = 600  # gradients of either kind at most
# One restart in place of the printed eight, which cost eight times as long.
POISONS_OF_FIGURE = {**POISONS, "gradient-matching": "matching:ball=16,share=0.01"}


def poison_projections(
    task: str = "mnist",
    seed: int = 0,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda stage: None,
    poisons: dict[str, str] = POISONS_OF_FIGURE,
) -> dict[str, Any]:
    """The record: for each attack raw gradients of an untrained model, projected, and which are poison."""
    began, panels = time.monotonic(), []
    for name, attack in poisons.items():
        config = CentralizedConfig(task, attack, "none", 0.05, seed=seed)
        setup = prepare(config, device=device, progress=partial(_report, progress, name))
        train, model = setup.train, setup.model()
        rng = np.random.default_rng(seed)
        poison = np.flatnonzero(train.poison.cpu().numpy())[:MAX_GRADIENTS]
        clean = rng.permutation(np.flatnonzero(~train.poison.cpu().numpy()))[:MAX_GRADIENTS]
        indices = torch.from_numpy(np.r_[poison, clean]).to(train.labels.device)
        losses = setup.task.loss(model(train.images[indices]), train.labels[indices])
        panels.append(
            {
                "attack": name,
                "poison": len(poison),  # the first ones
                "projections": np.round(
                    top_projection(gram(losses, model).cpu().double().numpy()), 6
                ).tolist(),
            }
        )
    provenance = {"command": "randeigen reproduce figure:5", "commit": commit(), "seed": seed}
    provenance["seconds"] = round(time.monotonic() - began, 2)
    return {"task": task, "panels": panels, "versions": versions(device), "made": provenance}


def _report(progress: Callable[[str], None], name: str, stage: str, done: int, total: int) -> None:
    progress(f"{name}: {stage} {done / total:.0%}")


def top_projection(inner: np.ndarray) -> np.ndarray:
    """(n,) rows on their top principal direction, from their Gram matrix."""
    to_mean = inner.mean(axis=1)
    centred = inner - to_mean[:, None] - to_mean + to_mean.mean()
    values, vectors = np.linalg.eigh(centred)
    return np.asarray(vectors[:, -1] * np.sqrt(max(float(values[-1]), 0.0)))
