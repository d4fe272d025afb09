"""Poisons that need no optimisation: none, flipped labels, a trigger."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from randeigen.attacks.base import Poisoned, PoisoningContext, SuccessSets, Tensor, trigger_success_set
from randeigen.attacks.triggers import corner
from randeigen.errors import BadFraction


def shuffled(
    source: PoisoningContext, images: Tensor, labels: Tensor, poison: Tensor, trials: SuccessSets
) -> Poisoned:
    """In an order that says nothing."""
    order = labels.new_tensor(source.rng.permutation(len(labels)))
    return Poisoned(images[order], labels[order], poison[order], trials)


def chosen(source: PoisoningContext, share: float | None) -> tuple[Tensor, Tensor]:
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

    def poison(self, source: PoisoningContext) -> Poisoned:
        """The training set as it is."""
        images, labels = source.victim
        return shuffled(source, images, labels, labels != labels, {})


@dataclass(frozen=True)
class LabelFlipPoison:
    """Wrong labels: y becomes classes - 1 - y for a share of the examples."""

    share: float | None = None

    def poison(self, source: PoisoningContext) -> Poisoned:
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

    def poison(self, source: PoisoningContext) -> Poisoned:
        """The training set with stamped examples; success is on stamped test images of other classes."""
        if not 0 <= self.target < source.classes:
            raise BadFraction(f"target={self.target}; give a label from 0 to {source.classes - 1}.")
        images, labels = source.victim
        patch = corner(images.shape[-1], source.high)
        places, mask = chosen(source, self.share)
        images, labels = images.clone(), labels.clone()
        images[places], labels[places] = patch.stamp(images[places]), self.target
        trials = trigger_success_set(patch.stamp(source.test[0]), source.test[1], self.target)
        return shuffled(source, images, labels, mask, trials)
