"""One training loop on one data set, part of which may be poison; each defence in its place."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset

from randeigen.lab.config import CentralizedConfig, LocalTraining
from randeigen.lab.devices import few_threads
from randeigen.lab.poisoned_setup import ORDER, PoisonedSetup
from randeigen.lab.results import CentralizedRecord, Checkpoint, EpochMetrics, versions
from randeigen.lab.stacked_model import Tensor
from randeigen.torch import Suspects, backward, gram
from randeigen.torch.suspicion_score import normalise_gram, top_principal_coordinates
from randeigen.types import Progress

SHOWN = 800  # gradients in a picture


class Projection(NamedTuple):
    """Gradients of the label with the most poison, along the widest of their directions."""

    epoch: int
    label: int
    places: NDArray[np.float64]
    poison: NDArray[np.bool_]


Watch: TypeAlias = Callable[[EpochMetrics], None]


def train(
    spec: CentralizedConfig,
    shop: PoisonedSetup,
    *,
    checkpoint: Path | None = None,
    progress: Watch | None = None,
    within: Progress | None = None,
    look: Callable[[Projection], None] | None = None,
) -> CentralizedRecord:
    """Train in this workshop with the defence that `spec` names, and record it.

    With a `checkpoint` path every epoch is saved there, and a run that was interrupted goes on from it. The
    same seed gives the same record on a CPU, whether interrupted or not. `progress` is told of every epoch,
    `within` of how far it has got.
    """
    spec = spec.resolve(shop.task)
    bench = CentralizedTrainer(spec, shop, within)
    saved = Checkpoint.read(checkpoint, spec, shop.device, EpochMetrics) if checkpoint else None
    history = saved.history if saved else ()
    if saved:
        bench.restore(saved.weights, saved.state)
    with few_threads(sum(p.numel() for p in bench.model.parameters())):
        for t in range(len(history) + 1, bench.recipe.epochs + 1):
            history = (*history, bench.epoch(t))
            if checkpoint:
                Checkpoint(bench.weights(), bench.state(), history).write(checkpoint, spec)
            if look and t == (bench.recipe.epochs + 1) // 2:
                look(projection(bench.model, shop, t))
            if progress:
                progress(history[-1])
    return CentralizedRecord(spec, history, versions(str(shop.device)))


class CentralizedTrainer:
    """A model in training, and what its defence remembers."""

    def __init__(self, spec: CentralizedConfig, shop: PoisonedSetup, within: Progress | None = None) -> None:
        self.spec, self.shop, self.within = spec, shop, within
        self.model = shop.model()
        assert spec.epochs  # settled, as is the batch
        assert spec.batch
        self.recipe = LocalTraining(spec.epochs, spec.batch, spec.rate, drops=(0.75,))
        train = shop.train
        self.suspects = Suspects(TensorDataset(train.images, train.labels), spec.eps, seed=spec.seed)
        self.shares = torch.zeros(len(train.labels), dtype=torch.float64)  # of the gradient, for `backward`

    def epoch(self, t: int) -> EpochMetrics:
        """All batches once, then the judgement."""
        began = time.perf_counter()
        self._descend(t)
        if self.spec.defence == "suspects":
            self.suspects.judge(self.model, self.shop.task.loss, progress=self.within)
        seconds = time.perf_counter() - began
        rates, poison = self.shop.rates(self.model), self.shop.train.poison.cpu()
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
        """(d,) the model's."""
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()

    def state(self) -> dict[str, Tensor]:
        """What the defence remembers."""
        return {"shares": self.shares, **self.suspects.state_dict()}

    def restore(self, weights: Tensor, state: dict[str, Tensor]) -> None:
        """Go on from there."""
        nn.utils.vector_to_parameters(weights, self.model.parameters())
        self.shares = state["shares"].cpu()
        self.suspects.load_state_dict(state)

    def _descend(self, t: int) -> None:
        train, robust = self.shop.train, self.spec.defence == "backward"
        slowed = float(self.recipe.slowed(np.array([t - 1]))[0])
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.recipe.rate * slowed)
        kept = self._kept()
        order = kept[self.spec.rng(ORDER, t).permutation(len(kept))]
        batches = torch.from_numpy(order).to(train.labels).split(self.recipe.batch)
        for done, places in enumerate(batches, 1):
            optimizer.zero_grad()
            losses = self.shop.task.loss(self.model(train.images[places]), train.labels[places])
            if robust:
                verdict = backward(losses, self.model, self.spec.eps, seed=t)
                self.shares[places.cpu()] += torch.from_numpy(verdict.weights) * len(places)
            else:
                losses.mean().backward()
            optimizer.step()
            if self.within:
                self.within("training", done, len(batches))

    def _kept(self) -> NDArray[np.intp]:
        """Places of the examples to train on in this epoch."""
        if self.spec.defence == "clean":
            return np.flatnonzero(~self.shop.train.poison.cpu().numpy())
        return np.flatnonzero(self.suspects.weights.numpy())

    def _weights(self, t: int) -> Tensor:
        if self.spec.defence == "clean":
            return (~self.shop.train.poison.cpu()).double()
        return self.shares / t if self.spec.defence == "backward" else self.suspects.weights

    def _scores(self) -> Tensor:
        return -self.shares if self.spec.defence == "backward" else self.suspects.scores


def auc(scores: Tensor, positive: Tensor) -> float:
    """The chance that one of `positive` scores higher than one of the others; ties count half."""
    _, inverse, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    ranks = (ends - (counts - 1) / 2)[inverse]
    many = int(positive.sum())
    return float((ranks[positive].sum() - many * (many + 1) / 2) / (many * (len(scores) - many)))


def projection(model: Any, shop: PoisonedSetup, epoch: int) -> Projection:
    """Where clean and poisoned gradients stand on the widest direction, as the model is now."""
    train = shop.train
    infested = train.labels[train.poison] if bool(train.poison.any()) else train.labels
    label = int(torch.bincount(infested).argmax())
    places = torch.nonzero(train.labels == label).flatten()[:SHOWN]
    losses = shop.task.loss(model(train.images[places]), train.labels[places])
    coins = torch.Generator().manual_seed(shop.spec.seed)
    along = top_principal_coordinates(normalise_gram(gram(losses, model)), coins)[:, -1]
    return Projection(epoch, label, along.cpu().numpy(), train.poison[places].cpu().numpy())
