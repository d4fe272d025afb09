"""Attacks on a training set: some of its examples are the attacker's, and training does the rest.

Such an attack is a frozen value with one method: `poison(source)` is the training set the victim gets, which
of it is poison, and what counts as success. torch is imported only where it is used, so that attacks can be
named without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.random import Generator

from randeigen.attacks.training import Tensor, Trials, wanted
from randeigen.attacks.triggers import corner
from randeigen.errors import BadFraction
from randeigen.types import Progress


@dataclass(frozen=True, eq=False)
class Source:
    """What a poisoner has to work with. Images are as the model sees them."""

    victim: tuple[Tensor, Tensor]  # the training set, clean
    auxiliary: tuple[Tensor, Tensor]  # as many images from where those came
    test: tuple[Tensor, Tensor]  # for measuring success, and for a target
    surrogate: Callable[[], Any]  # an nn.Module trained on clean images; its last layer is linear
    classes: int
    low: float  # a black pixel as the model sees it
    high: float  # a white one
    eps: float  # of the training set may be poison
    rng: Generator
    progress: Progress | None = None  # told of what takes long


class Poisoned(NamedTuple):
    """A training set in random order, with the truth about it."""

    images: Tensor
    labels: Tensor
    poison: Tensor  # (n,) bool
    trials: Trials


class Poisoner(Protocol):
    """See the head of this file."""

    def poison(self, source: Source) -> Poisoned:
        """The training set the victim gets."""


def shuffled(source: Source, images: Tensor, labels: Tensor, poison: Tensor, trials: Trials) -> Poisoned:
    """In an order that says nothing."""
    order = labels.new_tensor(source.rng.permutation(len(labels)))
    return Poisoned(images[order], labels[order], poison[order], trials)


def chosen(source: Source, share: float | None) -> tuple[Tensor, Tensor]:
    """Places of the examples that become poison, and the same as a mask; `share` None: all of eps."""
    share = source.eps if share is None else share
    if not 0 <= share < 0.5:
        raise BadFraction(f"share={share}; give the poisoned fraction of the training set, in [0, 0.5).")
    labels = source.victim[1]
    mask = np.zeros(len(labels), dtype=bool)
    mask[source.rng.choice(len(labels), int(share * len(labels)), replace=False)] = True
    return labels.new_tensor(np.flatnonzero(mask)), labels.new_tensor(mask).bool()


@dataclass(frozen=True)
class Clean:
    """No poison: what training costs when nobody attacks."""

    def poison(self, source: Source) -> Poisoned:
        """The training set as it is."""
        images, labels = source.victim
        return shuffled(source, images, labels, labels != labels, {})


@dataclass(frozen=True)
class FlippedLabels:
    """Wrong labels: y becomes classes - 1 - y for a share of the examples."""

    share: float | None = None

    def poison(self, source: Source) -> Poisoned:
        """The training set with wrong labels."""
        images, labels = source.victim
        places, mask = chosen(source, self.share)
        labels = labels.clone()
        labels[places] = source.classes - 1 - labels[places]
        return shuffled(source, images, labels, mask, {})


@dataclass(frozen=True)
class Trigger:
    """A dirty-label backdoor: a share of the examples gets a white corner and the target label."""

    share: float | None = None
    target: int = 0

    def poison(self, source: Source) -> Poisoned:
        """The training set with stamped examples; success is on stamped test images of other classes."""
        if not 0 <= self.target < source.classes:
            raise BadFraction(f"target={self.target}; give a label from 0 to {source.classes - 1}.")
        images, labels = source.victim
        patch = corner(images.shape[-1], source.high)
        places, mask = chosen(source, self.share)
        images, labels = images.clone(), labels.clone()
        images[places], labels[places] = patch.stamp(images[places]), self.target
        trials = wanted(patch.stamp(source.test[0]), source.test[1], self.target)
        return shuffled(source, images, labels, mask, trials)
