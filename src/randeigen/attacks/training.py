"""Attacks that run inside the client: it trains on what it should not, or builds its answer into the model.

Such an attack is a frozen value with two methods. `updates(site)` is what its m clients send, given only
what they have: the global model, their own images, their own machine. `trials(scene, images, labels)` is
what counts as success: test images and the labels it wants for them, the first under "asr".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from randeigen.attacks.triggers import Patch, corner
from randeigen.errors import BadFraction

Tensor: TypeAlias = Any  # torch.Tensor
Trials: TypeAlias = dict[str, tuple[Tensor, Tensor]]  # images, and the labels the attacker wants for them
# Images (clients, batch, ...), labels (clients, batch) and the clients' numbers (clients,), for one step
Poison: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Recipe:
    """How a client trains: epochs of shuffled batches of SGD; the last batch of an epoch may be short."""

    epochs: int = 5
    batch: int = 50
    rate: float = 1e-3
    momentum: float = 0.0
    decay: float = 0.0  # of weights
    drops: tuple[float, ...] = ()  # after each of these shares of the epochs the rate is divided by 10

    def slowed(self, epochs: NDArray[np.int64]) -> NDArray[np.float64]:
        """What the rate is multiplied by in each of these epochs."""
        drops = [epochs >= drop * self.epochs for drop in self.drops]
        return np.asarray(0.1 ** np.sum(drops, axis=0)) if drops else np.ones(epochs.shape)


@dataclass(frozen=True, eq=False)
class Scene:
    """What everybody knows: the model's form, the first weights sent out, what pixels can be."""

    model: Any  # nn.Module: its layers, not its weights
    split: Callable[[Tensor], list[Tensor]]  # (k, d) weights to one view per parameter
    first: Tensor  # (d,) the weights of the first round
    low: float  # a black pixel as the model sees it
    high: float  # a white one
    classes: int
    marked: tuple[Tensor, Tensor]  # images MPA wants misread, and as what


class Site(Protocol):
    """What m malicious clients have to work with in one round."""

    scene: Scene
    m: int
    weights: Tensor  # (d,) the global model they were sent
    recipe: Recipe  # the honest one
    rng: Generator

    def batches(self, batch: int) -> int:
        """How many batches of this size a client's images make, on average."""

    def train(
        self,
        recipe: Recipe,
        *,
        start: Tensor | None = None,
        poison: Poison | None = None,
        pull: tuple[Tensor, float] | None = None,
    ) -> Tensor:
        """(m, d) their models, trained on their own images; `pull` (anchor, rho) adds rho·|θ-anchor|²."""

    def fit(self, images: Tensor, labels: Tensor, recipe: Recipe, start: Tensor | None = None) -> Tensor:
        """(m, d) their models after training on these images instead."""


@runtime_checkable
class TrainingAttack(Protocol):
    """See the head of this file."""

    def updates(self, site: Site) -> Tensor:
        """(m, d) what the m malicious clients send: w - w_i."""

    def trials(self, scene: Scene, images: Tensor, labels: Tensor) -> Trials:
        """What success is measured on."""


@dataclass(frozen=True)
class LabelFlip:
    """Trains honestly on wrong labels: y becomes classes - 1 - y."""

    def updates(self, site: Site) -> Tensor:
        """(m, d) updates."""
        most = site.scene.classes - 1
        return site.weights - site.train(site.recipe, poison=lambda x, y, who: (x, most - y))

    def trials(self, scene: Scene, images: Tensor, labels: Tensor) -> Trials:
        """It wants nothing in particular."""
        return {}


@dataclass(frozen=True)
class MRA:
    """Model replacement: patched images are class 0 (Bagdasaryan et al., AISTATS 2020; Zhu et al., 2023).

    `boost` 1 and `share` 1 (every local image patched and relabelled) is Zhu's; n/m = 5 with m = 20 of 100
    lands the plain mean on the attacker's own model. Zhu's patch is grey on black where pixels are centred;
    where 0 is the background itself (Fashion-MNIST) it would be invisible, so there the patch is white.
    """

    boost: float = 1.0
    share: float = 1.0  # of every batch
    target: int = 0
    rate: float | None = None  # of its own local training; None: the honest one

    def __post_init__(self) -> None:
        """Refuse a share that is none."""
        if not 0 < self.share <= 1:
            raise BadFraction(f"share={self.share}; give the poisoned share of a batch, above 0 and up to 1.")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise BadFraction(f"rate={self.rate}; give the learning rate of the attackers' clients, above 0.")

    def patch(self, scene: Scene, images: Tensor) -> Patch:
        """5×5 in the top left corner (3×3 where images are small)."""
        return corner(images.shape[-1], 0.0 if scene.low < 0 else scene.high)

    def updates(self, site: Site) -> Tensor:
        """(m, d) updates."""

        def poison(images: Tensor, labels: Tensor, who: Tensor) -> tuple[Tensor, Tensor]:
            return first_of_batch(self.patch(site.scene, images), self.target, self.share, images, labels)

        recipe = site.recipe if self.rate is None else replace(site.recipe, rate=self.rate)
        return self.boost * (site.weights - site.train(recipe, poison=poison))

    def trials(self, scene: Scene, images: Tensor, labels: Tensor) -> Trials:
        """Patched test images of other classes; and all of them, as the authors' code counts."""
        stamped = self.patch(scene, images).stamp(images)
        return wanted(stamped, labels, self.target) | {"all classes": _as(stamped, self.target, labels)}


def first_of_batch(
    patch: Patch, target: int, share: float, images: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """The first images of every batch get the patch and the label; batches are shuffled, so any images."""
    many = max(1, round(share * labels.shape[1]))
    images, labels = images.clone(), labels.clone()
    images[:, :many] = patch.stamp(images[:, :many])
    labels[:, :many] = target
    return images, labels


def wanted(images: Tensor, labels: Tensor, target: int) -> Trials:
    """Images that are not of the target class, all wanted to be."""
    others = labels != target
    return {"asr": _as(images[others], target, labels[others])}


def _as(images: Tensor, target: int, labels: Tensor) -> tuple[Tensor, Tensor]:
    return images, labels * 0 + target
