"""Many clients trained at once: their weights are rows of one tensor, a step is one backward pass.

In every epoch a client goes once through its own examples in a fresh order, in ceil(size / batch) steps of
which the last may be short; a step's loss is the mean over its examples. Clients with fewer take fewer
steps: the stack is sorted by size, so the clients that still train are its first rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from randeigen.attacks.base import BatchPoison, Restriction
from randeigen.lab.config import LocalTraining
from randeigen.lab.partition import Shares, shares
from randeigen.lab.stacked_model import StackedModel, tensor_cores
from randeigen.lab.stacked_sgd import Data, LrFactors, StackedSGD
from randeigen.lab.tasks import Loss
from randeigen.lab.used_words import UsedWords

if TYPE_CHECKING:
    from randeigen.lab.federated import Federation


MAX_UNFOLDED_NUMBERS = {"cpu": 1 << 26, "cuda": 1 << 35}  # in the unfolded images of one group of clients
MAX_STACKED_PARAMETERS = {"cpu": 1 << 24, "cuda": 1 << 30}  # of one group of clients with token ids


class Schedule(NamedTuple):
    """Which images each client uses in each of its steps."""

    indices: Tensor  # (steps, clients, batch)
    loss_weights: Tensor  # (steps, clients, batch) of each image in the step's loss; 0 for padding
    active: list[int]  # (steps,) how many clients still train
    lr_factors: LrFactors


def train(
    model: StackedModel,
    loss: Loss,
    data: Data,
    shares: Shares,
    start: Tensor,
    training: LocalTraining,
    rng: Generator,
    *,
    poison: BatchPoison | None = None,
    proximal: tuple[Tensor, float] | None = None,
    restriction: Restriction | None = None,
) -> Tensor:
    """(clients, d) each client's weights after training, from `start`: (d,) for all, or (clients, d).

    `proximal` is (anchor, rho), and adds rho·|θ - anchor|² to every client's loss. `restriction` says which
    parameters are trained, and within what bounds.
    """
    clients, device = len(shares.sizes), data.images.device
    keys = rng.random((training.epochs, *shares.indices.shape), dtype=np.float32)
    order = np.argsort(-shares.sizes, kind="stable")
    weights = start.expand(clients, model.d).clone()
    for group in np.array_split(order, -(-clients // _group_size(model, data, training, clients))):
        members = torch.from_numpy(group).to(device)
        plan = schedule(shares.of(group), keys[:, group], training, device)
        pull = None if proximal is None else (proximal[0].expand(clients, -1)[members], proximal[1])
        plainly = (poison, pull, restriction) == (None, None, None) and not training.weight_decay
        used = UsedWords.of(model, data, plan.indices) if model.packed and plainly else None
        with tensor_cores(device):
            if used is not None:
                sgd = StackedSGD(used.model, loss, used.data, used.taken(weights[members]), training, members)
                trained = sgd.run(used.indices, plan.loss_weights, plan.lr_factors, plan.active)
                used.put_back(trained, weights, members)
                continue
            sgd = StackedSGD(
                model, loss, data, weights[members], training, members, poison, pull, restriction,
                batch=plan.indices.shape[2],
            )  # fmt: skip
            weights[members] = sgd.run(plan.indices, plan.loss_weights, plan.lr_factors, plan.active)
    return weights


def schedule(shares: Shares, keys: np.ndarray, training: LocalTraining, device: torch.device) -> Schedule:
    """Clients must come largest first. `keys` (epochs, clients, largest size) decide the orders."""
    batch = min(training.batch, int(shares.sizes.max()))
    steps = -(-shares.sizes // batch)  # in an epoch
    width = int(shares.sizes.max())
    keys = np.where(np.arange(width) < shares.sizes[:, None], keys[..., :width], 2.0)  # padding sorts last
    padded = int(steps[0]) * batch
    orders = np.pad(np.argsort(keys, axis=2, kind="stable"), ((0, 0), (0, 0), (0, padded - width)))
    orders = orders.reshape(training.epochs, len(steps), int(steps[0]), batch)
    most = training.epochs * int(steps[0])
    step = np.arange(min(most, training.steps or most))[:, None]
    client = np.arange(len(steps))
    epoch, step_in_epoch = np.minimum(step // steps, training.epochs - 1), step % steps
    columns = orders[epoch, client, step_in_epoch]  # (steps, clients, batch)
    real = step_in_epoch[..., None] * batch + np.arange(batch) < shares.sizes[:, None]
    loss_weights = real / np.maximum(real.sum(axis=2, keepdims=True), 1)
    indices = np.take_along_axis(shares.indices[None], columns.reshape(len(step), len(steps), -1), axis=2)
    still_training = step < training.epochs * steps
    active = [int(count) for count in np.count_nonzero(still_training, axis=1)]
    lr_factors = training.lr_factor(epoch) * still_training
    return Schedule(
        torch.from_numpy(indices).to(device),
        torch.from_numpy(loss_weights.astype(np.float32)).to(device),
        active,
        lr_factors.astype(np.float32),
    )


def _group_size(model: StackedModel, data: Data, training: LocalTraining, clients: int) -> int:
    """How many clients' parameters, or unfolded images, fit into memory at once."""
    if model.trims:
        return max(1, min(clients, MAX_STACKED_PARAMETERS[data.images.device.type] // model.d))
    unfolded = max((25 * shape[0] for shape in model.shapes if len(shape) == 4), default=1)
    each = min(training.batch, len(data.labels)) * data.images[0].numel() * unfolded // 4
    return max(1, min(clients, MAX_UNFOLDED_NUMBERS[data.images.device.type] // int(each)))


class SimulatedClients:
    """The `MaliciousClients` of one round of a federation: their examples, the global model, and no more."""

    def __init__(self, federation: Federation, weights: Tensor, own: Shares, rng: Generator) -> None:
        self.info, self.m, self.weights, self.rng = federation.info, len(own.sizes), weights, rng
        self.training = federation.local_training()
        self._federation, self._own = federation, own

    def batches(self, batch: int) -> int:
        return round(float(np.mean(-(-self._own.sizes // batch))))

    def train(
        self,
        training: LocalTraining,
        *,
        start: Tensor | None = None,
        poison: BatchPoison | None = None,
        proximal: tuple[Tensor, float] | None = None,
    ) -> Tensor:
        data = self._federation.train
        return self._train_on(data, self._own, training, start, poison=poison, proximal=proximal)

    def fit(
        self,
        images: Tensor,
        labels: Tensor,
        training: LocalTraining,
        start: Tensor | None = None,
        restriction: Restriction | None = None,
    ) -> Tensor:
        if labels.ndim == 1:
            own = shares([np.arange(len(labels))] * self.m)
        else:  # each client its own
            own = shares(list(np.arange(labels.numel()).reshape(labels.shape)))
            images, labels = images.flatten(0, 1), labels.flatten()
        return self._train_on(Data(images, labels), own, training, start, restriction=restriction)

    def draw(self, count: int, *, other_than: int) -> Tensor:
        data = self._federation.train
        labels = data.labels.cpu().numpy()
        samples = []
        for indices, size in zip(self._own.indices, self._own.sizes, strict=True):
            own = indices[:size]
            fitting = own[labels[own] != other_than] if (labels[own] != other_than).any() else own
            samples.append(self.rng.choice(fitting, count, replace=len(fitting) < count))
        return data.images[torch.from_numpy(np.stack(samples)).to(data.images.device)]

    def _train_on(
        self, data: Data, own: Shares, training: LocalTraining, start: Tensor | None, **more: Any
    ) -> Tensor:
        model, loss = self._federation.model, self._federation.task.loss
        begin = self.weights if start is None else start
        return train(model, loss, data, own, begin, training, self.rng, **more)
