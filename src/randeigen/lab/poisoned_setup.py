"""The poisoned training set, and which images the victim, the attacker and pretraining get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor, nn

from randeigen import attacks
from randeigen.attacks.base import DataPoison, Poisoned, PoisoningContext
from randeigen.lab import tasks
from randeigen.lab.config import (
    CLEAN_BATCH,
    CLEAN_EPOCHS,
    FINAL_LR_DROP,
    TRUSTED,
    CentralizedConfig,
    CentralizedStream,
    LocalTraining,
    fitting_batch,
)
from randeigen.lab.devices import as_data, device_named, few_threads
from randeigen.lab.models import subnet
from randeigen.lab.stacked_sgd import Data
from randeigen.lab.tasks import Task
from randeigen.types import Progress


class PoisonedSetup(NamedTuple):
    """What all defences train on: prepared once, used by each of them."""

    spec: CentralizedConfig  # its defence does not matter here
    task: Task
    device: Any
    initial_state: dict[str, Tensor]  # the model's weights before training
    train: Poisoned
    test: Data
    clean_model: Callable[[], nn.Module]  # trained on clean images alone

    def model(self) -> nn.Module:
        """A model with the initial weights."""
        model = self.task.model().to(self.device)
        model.load_state_dict(self.initial_state)
        return model

    def rates(self, model: nn.Module) -> dict[str, float]:
        """The accuracy, and the success rates by their names."""
        sets = {"accuracy": (self.test.images, self.test.labels), **self.train.success_sets}
        return {name: agreement(model, *pair) for name, pair in sets.items()}


def prepare(
    spec: CentralizedConfig,
    *,
    attack: DataPoison | None = None,
    task: Task | None = None,
    device: str = "cpu",
    beside: PoisonedSetup | None = None,
    progress: Progress | None = None,
) -> PoisonedSetup:
    """Split the images, pretrain if asked, and poison the training set.

    Half of the images are the victim's and half the attacker's to study; for a pretrained start a fifth is
    set aside first, known to be clean, and the attacker knows the model trained on it.

    Parameters:
        spec: data set, attack, fraction and seed; its defence does not matter here.
        attack: the poison itself, in place of the one that `spec` names.
        task: the task itself, in place of the one that `spec` names.
        device: "cpu" or "cuda".
        beside: a setup with the same seed and start, whose model of clean images is used again.
        progress: called with a word, the steps done and the steps there are.

    Returns:
        The poisoned data and initial model, for `train` with several defences.

    Raises:
        BadParameter: an attack, task or device that does not exist, or an attack that does not fit the data.
        BadFile: the data set cannot be read.

    Examples:
        >>> from randeigen.lab import CentralizedConfig, prepare
        >>> setup = prepare(CentralizedConfig("digits", "label-flip", eps=0.05))
        >>> round(float(setup.train.poison.double().mean()), 2)
        0.05
    """
    poisoner: DataPoison = attacks.build_poison(spec.attack) if attack is None else attack
    task, torch_device = task or task_named(spec.task), device_named(device)
    spec = spec.resolve(task)
    images, labels = as_data(task, task.train, torch_device)
    order = spec.rng(CentralizedStream.SPLIT).permutation(len(labels))
    aside = int(TRUSTED * len(order)) if spec.start == "pretrained" else 0
    parts = order[:aside], *np.array_split(order[aside:], 2)
    trusted, victim, auxiliary = (Data(images[part], labels[part]) for part in parts)
    test = as_data(task, task.test, torch_device)

    @cache
    def trained() -> nn.Module:
        model = untrained(task, spec.rng(CentralizedStream.CLEAN_TRAINING), torch_device)
        data = trusted if aside else auxiliary
        batch = fitting_batch(CLEAN_BATCH, len(data.labels))
        training = LocalTraining(CLEAN_EPOCHS, batch, spec.rate, lr_milestones=(FINAL_LR_DROP,))
        with few_threads(sum(p.numel() for p in model.parameters())):
            fit(model, task, data, training, spec.rng(CentralizedStream.CLEAN_TRAINING, 1), progress)
        return model

    clean_model = beside.clean_model if beside else trained
    context = PoisoningContext(
        victim=victim,
        auxiliary=auxiliary,
        test=test,
        surrogate=clean_model,
        classes=task.classes,
        low=task.normalise(0.0),
        high=task.normalise(1.0),
        eps=spec.eps,
        rng=spec.rng(CentralizedStream.ATTACK),
        progress=progress,
    )
    train = poisoner.poison(context)
    start = (
        clean_model() if aside else untrained(task, spec.rng(CentralizedStream.INITIAL_WEIGHTS), torch_device)
    )
    state = {name: value.detach().clone() for name, value in start.state_dict().items()}
    return PoisonedSetup(spec, task, torch_device, state, train, test, clean_model)


def untrained(task: Task, rng: Generator, device: Any) -> nn.Module:
    """A model with random weights; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        return task.model().to(device)


def fit(
    model: nn.Module,
    task: Task,
    data: Data,
    training: LocalTraining,
    rng: Generator,
    progress: Progress | None,
) -> None:
    """Train on all of the data, without a defence."""
    optimizer = torch.optim.SGD(model.parameters(), lr=training.lr)
    for epoch, factor in enumerate(training.lr_factor(np.arange(training.epochs)), 1):
        optimizer.param_groups[0]["lr"] = training.lr * float(factor)
        order = data.labels.new_tensor(rng.permutation(len(data.labels)))
        for indices in order.split(training.batch):
            optimizer.zero_grad()
            task.loss(model(data.images[indices]), data.labels[indices]).mean().backward()
            optimizer.step()
        if progress:
            progress("training on clean images", epoch, training.epochs)


def agreement(model: nn.Module, images: Tensor, labels: Tensor, chunk: int = 2048) -> float:
    """The fraction of the images to which the model gives these labels."""
    with torch.no_grad():
        predicted = torch.cat([model(part).argmax(1) for part in images.split(chunk)])
    return float((predicted == labels).double().mean())


def task_named(name: str) -> Task:
    """The task with the paper's net for poisoned data, which is smaller than that of its federations."""
    task = tasks.build(name)
    return task if name == "digits" else replace(task, model=subnet)
