"""Centralized training on one data set, part of which may be poison, with one of the defences."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from randeigen.lab.config import CentralizedConfig, CentralizedStream
from randeigen.lab.devices import few_threads
from randeigen.lab.poisoned_setup import PoisonedSetup, prepare
from randeigen.lab.results import CentralizedRecord, Checkpoint, EpochMetrics, versions
from randeigen.torch import Suspects, backward, gram
from randeigen.torch.suspicion_score import normalise_gram, top_principal_coordinates
from randeigen.types import Progress

MAX_GRADIENTS_SHOWN = 800  # in a picture


class Projection(NamedTuple):
    """Gradients of the label with the most poison, projected on their top direction."""

    epoch: int
    label: int
    projections: NDArray[np.float64]
    poison: NDArray[np.bool_]


def train(
    spec: CentralizedConfig,
    setup: PoisonedSetup | None = None,
    *,
    device: str = "cpu",
    checkpoint: Path | None = None,
    progress: Callable[[EpochMetrics], None] | None = None,
    within: Progress | None = None,
    look: Callable[[Projection], None] | None = None,
) -> CentralizedRecord:
    """Train with the attack and the defence that `spec` names, and record it.

    The same seed gives the same record on a CPU, interrupted or not; `train(record.spec)` gives it again.

    Parameters:
        spec: data set, attack, defence, fraction and seed.
        setup: the poisoned data, from `prepare`, for several defences; None prepares it here.
        device: "cpu" or "cuda", where `setup` is not given.
        checkpoint: where every epoch is saved; an interrupted run continues from there.
        progress: called with the metrics of every epoch.
        within: called within an epoch with a word, the steps done and the steps there are.
        look: called with the gradients' projections on their top direction.

    Returns:
        The record: configuration, metrics of every epoch, versions.

    Raises:
        BadParameter: a name or parameter that does not exist, or an attack that does not fit the data.
        BadFile: the data set or the checkpoint cannot be read.

    Examples:
        >>> from randeigen.lab import CentralizedConfig, train
        >>> record = train(CentralizedConfig("digits", "trigger:share=0.04", "suspects", epochs=1))
        >>> record.history[-1].poison
        25
    """
    setup = prepare(spec, device=device, progress=within) if setup is None else setup
    spec = spec.resolve(setup.task)
    trainer = CentralizedTrainer(spec, setup, within)
    saved = Checkpoint.read(checkpoint, spec, setup.device, EpochMetrics) if checkpoint else None
    history = saved.history if saved else ()
    if saved:
        trainer.restore(saved.weights, saved.state)
    epochs = trainer.training.epochs
    with few_threads(sum(p.numel() for p in trainer.model.parameters())):
        for t in range(len(history) + 1, epochs + 1):
            history = (*history, trainer.epoch(t))
            if checkpoint:
                Checkpoint(trainer.weights(), trainer.state(), history).write(checkpoint, spec)
            if look and t == (epochs + 1) // 2:
                look(projection(trainer.model, setup, t))
            if progress:
                progress(history[-1])
    return CentralizedRecord(spec, history, versions(str(setup.device)))


class CentralizedTrainer:
    """A model in training, and the state of its defence."""

    def __init__(self, spec: CentralizedConfig, setup: PoisonedSetup, within: Progress | None = None) -> None:
        self.spec, self.setup, self.within = spec, setup, within
        self.model = setup.model()
        self.training = spec.training(setup.task)
        train = setup.train
        self.suspects = Suspects(TensorDataset(train.images, train.labels), spec.eps, seed=spec.seed)
        self.shares = torch.zeros(len(train.labels), dtype=torch.float64)  # each example's, under `backward`

    def epoch(self, t: int) -> EpochMetrics:
        """All batches once, then the defence's scores."""
        start = time.perf_counter()
        self._train_epoch(t)
        if self.spec.defence == "suspects":
            self.suspects.judge(self.model, self.setup.task.loss, progress=self.within)
        seconds = time.perf_counter() - start
        rates, poison = self.setup.rates(self.model), self.setup.train.poison.cpu()
        weights, any_poison = self._weights(t), bool(poison.any())
        ranks = any_poison and self.spec.defence in ("backward", "suspects")
        return EpochMetrics(
            epoch=t,
            accuracy=rates["accuracy"],
            asr=rates.get("asr"),
            weight_honest=float(weights[~poison].mean()),
            weight_poison=float(weights[poison].mean()) if any_poison else None,
            auc=auc(self._scores(), poison) if ranks else None,
            poison=int(poison.sum()),
            seconds=seconds,
        )

    def weights(self) -> Tensor:
        """(d,) the model's weights."""
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()

    def state(self) -> dict[str, Tensor]:
        """The state of the defence."""
        return {"shares": self.shares, **self.suspects.state_dict()}

    def restore(self, weights: Tensor, state: dict[str, Tensor]) -> None:
        """Continue from a checkpoint."""
        nn.utils.vector_to_parameters(weights, self.model.parameters())
        self.shares = state["shares"].cpu()
        self.suspects.load_state_dict(state)

    def _train_epoch(self, t: int) -> None:
        train, robust = self.setup.train, self.spec.defence == "backward"
        factor = float(self.training.lr_factor(np.array([t - 1]))[0])
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.training.lr * factor)
        kept = self._kept()
        order = kept[self.spec.rng(CentralizedStream.BATCH_ORDER, t).permutation(len(kept))]
        batches = torch.from_numpy(order).to(train.labels).split(self.training.batch)
        for done, indices in enumerate(batches, 1):
            optimizer.zero_grad()
            losses = self.setup.task.loss(self.model(train.images[indices]), train.labels[indices])
            if robust:
                verdict = backward(losses, self.model, self.spec.eps, seed=t)
                self.shares[indices.cpu()] += torch.from_numpy(verdict.weights) * len(indices)
            else:
                losses.mean().backward()
            optimizer.step()
            if self.within:
                self.within("training", done, len(batches))

    def _kept(self) -> NDArray[np.intp]:
        """Indices of the examples to train on in this epoch."""
        if self.spec.defence == "clean":
            return np.flatnonzero(~self.setup.train.poison.cpu().numpy())
        return np.flatnonzero(self.suspects.weights.numpy())

    def _weights(self, t: int) -> Tensor:
        if self.spec.defence == "clean":
            return (~self.setup.train.poison.cpu()).double()
        return self.shares / t if self.spec.defence == "backward" else self.suspects.weights

    def _scores(self) -> Tensor:
        return -self.shares if self.spec.defence == "backward" else self.suspects.scores


def auc(scores: Tensor, positive: Tensor) -> float:
    """The chance that one of `positive` scores higher than one of the others; ties count half."""
    _, inverse, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    ranks = (ends - (counts - 1) / 2)[inverse]
    count = int(positive.sum())
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(scores) - count)))


def projection(model: Any, setup: PoisonedSetup, epoch: int) -> Projection:
    """Clean and poisoned gradients of the current model, projected on their top direction."""
    train = setup.train
    affected = train.labels[train.poison] if bool(train.poison.any()) else train.labels
    label = int(torch.bincount(affected).argmax())
    indices = torch.nonzero(train.labels == label).flatten()[:MAX_GRADIENTS_SHOWN]
    losses = setup.task.loss(model(train.images[indices]), train.labels[indices])
    rng = torch.Generator().manual_seed(setup.spec.seed)
    projections = top_principal_coordinates(normalise_gram(gram(losses, model)), rng)[:, -1]
    return Projection(epoch, label, projections.cpu().numpy(), train.poison[indices].cpu().numpy())
