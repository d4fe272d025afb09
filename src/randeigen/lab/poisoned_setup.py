"""Before the first step: which images the victim, the attacker and the pretraining get, and the poison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from torch import nn

from randeigen.attacks import catalogue
from randeigen.attacks.base import DataPoison, Poisoned, PoisoningContext
from randeigen.attacks.poisons.simple import Clean
from randeigen.errors import BadFraction
from randeigen.lab.config import BATCH, EPOCHS, CentralizedConfig, LocalTraining, fitting_batch
from randeigen.lab.devices import as_data, device_named, few_threads
from randeigen.lab.models import subnet
from randeigen.lab.stacked_model import Tensor
from randeigen.lab.stacked_sgd import Data
from randeigen.lab.tasks import TASKS, Task
from randeigen.types import Progress

POISONS = {"none": Clean, **{name: entry.make for name, entry in catalogue.POISONS.items()}}
TRUSTED = 0.2  # of the images are clean for sure, where a model is pretrained: 12,000 of MNIST's
SPLIT, START, CLEANLY, MALICE, ORDER = range(5)  # what randomness is for; each has its own


class PoisonedSetup(NamedTuple):
    """All that the defences have in common: made once, trained on by each of them."""

    spec: CentralizedConfig  # whatever its defence
    task: Task
    device: Any
    first: dict[str, Tensor]  # the model's weights before training
    train: Poisoned
    test: Data
    cleanly: Callable[[], nn.Module]  # the model trained on clean images alone

    def model(self) -> nn.Module:
        """A model with the first weights."""
        made = self.task.model().to(self.device)
        made.load_state_dict(self.first)
        return made

    def rates(self, model: nn.Module) -> dict[str, float]:
        """Accuracy, and success under its name."""
        asked = {"accuracy": tuple(self.test), **self.train.success_sets}
        return {name: rate(model, *trial) for name, trial in asked.items()}


def prepare(
    spec: CentralizedConfig,
    *,
    attack: DataPoison | None = None,
    task: Task | None = None,
    device: str = "cpu",
    beside: PoisonedSetup | None = None,
    progress: Progress | None = None,
) -> PoisonedSetup:
    """Split the images, pretrain if asked, and let the attacker work.

    Half of the images are the victim's and half the attacker's to study; for a pretrained start a fifth is
    put aside first, known to be clean, and the attacker knows the model trained on it. `beside` is a workshop
    with the same seed and start: what was trained there on clean images is not trained again.
    """
    if attack is None:
        if spec.attack not in POISONS:
            raise BadFraction(f"there is no attack {spec.attack!r}; known are {', '.join(POISONS)}.")
        attack = POISONS[spec.attack]()
    task, place = task or task_named(spec.task), device_named(device)
    spec = spec.resolve(task)
    images, labels = as_data(task, task.train, place)
    order = spec.rng(SPLIT).permutation(len(labels))
    aside = int(TRUSTED * len(order)) if spec.start == "pretrained" else 0
    parts = order[:aside], *np.array_split(order[aside:], 2)
    trusted, victim, auxiliary = (Data(images[places], labels[places]) for places in parts)
    test = as_data(task, task.test, place)

    @cache
    def trained() -> nn.Module:
        model = fresh(task, spec.rng(CLEANLY), place)
        data = trusted if aside else auxiliary
        recipe = LocalTraining(EPOCHS, fitting_batch(BATCH, len(data.labels)), spec.rate, drops=(0.75,))
        with few_threads(sum(p.numel() for p in model.parameters())):
            fit(model, task, data, recipe, spec.rng(CLEANLY, 1), progress)
        return model

    cleanly = beside.cleanly if beside else trained
    source = PoisoningContext(
        victim=victim,
        auxiliary=auxiliary,
        test=test,
        surrogate=cleanly,
        classes=task.classes,
        low=task.normal(0.0),
        high=task.normal(1.0),
        eps=spec.eps,
        rng=spec.rng(MALICE),
        progress=progress,
    )
    train = attack.poison(source)
    begin = cleanly() if aside else fresh(task, spec.rng(START), place)
    first = {name: value.detach().clone() for name, value in begin.state_dict().items()}
    return PoisonedSetup(spec, task, place, first, train, test, cleanly)


def fresh(task: Task, rng: Generator, device: Any) -> nn.Module:
    """A model with random weights; torch's own randomness is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        return task.model().to(device)


def fit(
    model: nn.Module, task: Task, data: Data, recipe: LocalTraining, rng: Generator, progress: Progress | None
) -> None:
    """Train on all of it, believing every label."""
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.rate)
    for epoch, slowed in enumerate(recipe.slowed(np.arange(recipe.epochs)), 1):
        optimizer.param_groups[0]["lr"] = recipe.rate * float(slowed)
        order = data.labels.new_tensor(rng.permutation(len(data.labels)))
        for places in order.split(recipe.batch):
            optimizer.zero_grad()
            task.loss(model(data.images[places]), data.labels[places]).mean().backward()
            optimizer.step()
        if progress:
            progress("training on clean images", epoch, recipe.epochs)


def rate(model: nn.Module, images: Tensor, labels: Tensor, chunk: int = 2048) -> float:
    """The share of the images that get these labels."""
    with torch.no_grad():
        read = torch.cat([model(part).argmax(1) for part in images.split(chunk)])
    return float((read == labels).double().mean())


def task_named(name: str) -> Task:
    """The task with the paper's net for poisoned data, which is smaller than that of its federations."""
    task = TASKS[name]()
    return task if name == "digits" else replace(task, model=subnet)
