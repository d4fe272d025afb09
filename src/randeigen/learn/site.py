"""The machine of a malicious client: its own images, the model it was sent, and time to train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator

from randeigen.attacks.training import Poison, Recipe
from randeigen.learn import clients
from randeigen.learn.descent import Data
from randeigen.learn.partition import Shares, shares
from randeigen.learn.stacked import Tensor

if TYPE_CHECKING:
    from randeigen.learn.federated import Laboratory


class OwnSite:
    """A `Site`: what malicious clients have, and no more."""

    def __init__(self, lab: Laboratory, weights: Tensor, held: Shares, rng: Generator) -> None:
        self.scene, self.m, self.weights, self.rng = lab.scene, len(held.sizes), weights, rng
        self.recipe = lab.recipe()
        self._lab, self._held = lab, held

    def batches(self, batch: int) -> int:
        """How many batches of this size a client's images make, on average."""
        return round(float(np.mean(-(-self._held.sizes // batch))))

    def train(
        self,
        recipe: Recipe,
        *,
        start: Tensor | None = None,
        poison: Poison | None = None,
        pull: tuple[Tensor, float] | None = None,
    ) -> Tensor:
        """(m, d) models trained on their own images."""
        return self._go(self._lab.train, self._held, recipe, start, poison=poison, pull=pull)

    def fit(self, images: Tensor, labels: Tensor, recipe: Recipe, start: Tensor | None = None) -> Tensor:
        """(m, d) models trained on these images."""
        everyone = shares([np.arange(len(labels))] * self.m)
        return self._go(Data(images, labels), everyone, recipe, start)

    def _go(self, data: Data, held: Shares, recipe: Recipe, start: Tensor | None, **more: Any) -> Tensor:
        model, loss = self._lab.model, self._lab.task.loss
        begin = self.weights if start is None else start
        return clients.train(model, loss, data, held, begin, recipe, self.rng, **more)
