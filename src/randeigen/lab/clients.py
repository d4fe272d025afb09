"""All clients of a round trained at once: their weights are rows of one tensor, a step is one backward pass.

Every epoch a client goes once through its own images in a fresh order, in ceil(size / batch) steps of which
the last may be short; a step's loss is the mean over its real images. Clients with fewer images take fewer
steps and leave early: the stack is sorted by size, so those still at work are its first rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator

from randeigen.attacks.base import Poison
from randeigen.lab import clients
from randeigen.lab.config import LocalTraining
from randeigen.lab.partition import Shares, shares
from randeigen.lab.stacked_model import StackedModel, Tensor
from randeigen.lab.stacked_sgd import Data, LrFactors, StackedSGD
from randeigen.lab.tasks import Loss

if TYPE_CHECKING:
    from randeigen.lab.federated import Federation


ROOM = {"cpu": 1 << 26, "cuda": 1 << 35}  # numbers that unfolded images may take at once


class Schedule(NamedTuple):
    """Which images each client takes in each of its steps."""

    places: Tensor  # (steps, clients, batch)
    parts: Tensor  # (steps, clients, batch) what each image counts in the step's loss; 0 for padding
    active: list[int]  # (steps,) how many clients still train
    pace: LrFactors


def train(
    model: StackedModel,
    loss: Loss,
    data: Data,
    shares: Shares,
    start: Tensor,
    recipe: LocalTraining,
    rng: Generator,
    *,
    poison: Poison | None = None,
    pull: tuple[Tensor, float] | None = None,
) -> Tensor:
    """(clients, d) the weights each ends with, from `start`: (d,) for all, or (clients, d)."""
    clients, device = len(shares.sizes), data.images.device
    keys = rng.random((recipe.epochs, *shares.places.shape), dtype=np.float32)
    order = np.argsort(-shares.sizes, kind="stable")
    ended = start.expand(clients, model.d).clone()
    for group in np.array_split(order, -(-clients // _together(model, data, recipe, clients))):
        who = torch.from_numpy(group).to(device)
        plan = schedule(shares.of(group), keys[:, group], recipe, device)
        anchor = None if pull is None else (pull[0].expand(clients, -1)[who], pull[1])
        with _fast_products(device):
            descent = StackedSGD(model, loss, data, ended[who], recipe, who, poison, anchor)
            ended[who] = descent.follow(plan.places, plan.parts, plan.pace, plan.active)
    return ended


def schedule(shares: Shares, keys: np.ndarray, recipe: LocalTraining, device: Tensor) -> Schedule:
    """Clients must come largest first. `keys` (epochs, clients, largest size) decide the orders."""
    batch = min(recipe.batch, int(shares.sizes.max()))
    steps = -(-shares.sizes // batch)  # in an epoch
    width = int(shares.sizes.max())
    keys = np.where(np.arange(width) < shares.sizes[:, None], keys[..., :width], 2.0)  # padding sorts last
    room = int(steps[0]) * batch
    orders = np.pad(np.argsort(keys, axis=2, kind="stable"), ((0, 0), (0, 0), (0, room - width)))
    orders = orders.reshape(recipe.epochs, len(steps), int(steps[0]), batch)
    step, client = np.arange(recipe.epochs * int(steps[0]))[:, None], np.arange(len(steps))
    epoch, turn = np.minimum(step // steps, recipe.epochs - 1), step % steps
    picked = orders[epoch, client, turn]  # (steps, clients, batch)
    real = turn[..., None] * batch + np.arange(batch) < shares.sizes[:, None]
    parts = real / np.maximum(real.sum(axis=2, keepdims=True), 1)
    places = np.take_along_axis(shares.places[None], picked.reshape(len(step), len(steps), -1), axis=2)
    at_work = step < recipe.epochs * steps
    active = [int(number) for number in np.count_nonzero(at_work, axis=1)]
    pace = recipe.slowed(epoch) * at_work
    return Schedule(
        torch.from_numpy(places).to(device),
        torch.from_numpy(parts.astype(np.float32)).to(device),
        active,
        pace.astype(np.float32),
    )


def _together(model: StackedModel, data: Data, recipe: LocalTraining, clients: int) -> int:
    """How many clients fit beside each other."""
    widest = max((25 * shape[0] for shape in model.shapes if len(shape) == 4), default=1)
    each = min(recipe.batch, len(data.labels)) * data.images[0].numel() * widest // 4
    return max(1, min(clients, ROOM[data.images.device.type] // int(each)))


@contextmanager
def _fast_products(device: Tensor) -> Iterator[None]:
    """Tensor cores for training on a GPU; what was set before is set again after."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


class SimulatedClients:
    """A `Site`: what malicious clients have, and no more."""

    def __init__(self, lab: Federation, weights: Tensor, held: Shares, rng: Generator) -> None:
        self.scene, self.m, self.weights, self.rng = lab.scene, len(held.sizes), weights, rng
        self.recipe = lab.recipe()
        self._lab, self._held = lab, held

    def batches(self, batch: int) -> int:
        """How many batches of this size a client's images make, on average."""
        return round(float(np.mean(-(-self._held.sizes // batch))))

    def train(
        self,
        recipe: LocalTraining,
        *,
        start: Tensor | None = None,
        poison: Poison | None = None,
        pull: tuple[Tensor, float] | None = None,
    ) -> Tensor:
        """(m, d) models trained on their own images."""
        return self._go(self._lab.train, self._held, recipe, start, poison=poison, pull=pull)

    def fit(
        self, images: Tensor, labels: Tensor, recipe: LocalTraining, start: Tensor | None = None
    ) -> Tensor:
        """(m, d) models trained on these images."""
        everyone = shares([np.arange(len(labels))] * self.m)
        return self._go(Data(images, labels), everyone, recipe, start)

    def _go(
        self, data: Data, held: Shares, recipe: LocalTraining, start: Tensor | None, **more: Any
    ) -> Tensor:
        model, loss = self._lab.model, self._lab.task.loss
        begin = self.weights if start is None else start
        return clients.train(model, loss, data, held, begin, recipe, self.rng, **more)
