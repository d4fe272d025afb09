"""Poisons that need no optimisation: none, flipped labels, a trigger."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from randeigen.attacks.base import (
    CHANGED_DATA,
    Poisoned,
    PoisoningContext,
    SuccessSets,
    Tensor,
    declare,
    flipped,
    trigger_success_set,
)
from randeigen.attacks.triggers import corner
from randeigen.errors import BadParameter


def shuffled(
    context: PoisoningContext, images: Tensor, labels: Tensor, poison: Tensor, success_sets: SuccessSets
) -> Poisoned:
    """The examples in random order, so that the order does not tell poison from the rest."""
    order = labels.new_tensor(context.rng.permutation(len(labels)))
    return Poisoned(images[order], labels[order], poison[order], success_sets)


def choose_examples(context: PoisoningContext, share: float | None) -> tuple[Tensor, Tensor]:
    """Indices of the examples that become poison, and the same as a mask; `share` None: all of eps."""
    share = context.eps if share is None else share
    if not 0 <= share < 0.5:
        raise BadParameter(f"share={share}; give the poisoned fraction of the training set, in [0, 0.5).")
    labels = context.victim[1]
    mask = np.zeros(len(labels), dtype=bool)
    mask[context.rng.choice(len(labels), int(share * len(labels)), replace=False)] = True
    return labels.new_tensor(np.flatnonzero(mask)), labels.new_tensor(mask).bool()


@dataclass(frozen=True)
class Clean:
    """No poison: training without an attack."""

    def poison(self, context: PoisoningContext) -> Poisoned:
        images, labels = context.victim
        return shuffled(context, images, labels, labels != labels, {})


@declare(
    "label-flip",
    "data",
    "untargeted",
    knows=CHANGED_DATA,
    does="y becomes classes - 1 - y",
    paper="folklore",
)
@dataclass(frozen=True)
class LabelFlipPoison:
    """Wrong labels: y becomes classes - 1 - y for a share of the examples."""

    share: float | None = None

    def poison(self, context: PoisoningContext) -> Poisoned:
        images, labels = context.victim
        indices, mask = choose_examples(context, self.share)
        labels = labels.clone()
        labels[indices] = flipped(labels[indices], context.classes)
        return shuffled(context, images, labels, mask, {})


@declare(
    "trigger",
    "data",
    "backdoor",
    knows=CHANGED_DATA,
    does="a white corner means class 0",
    paper="Gu et al., 2017",
)
@dataclass(frozen=True)
class Trigger:
    """A dirty-label backdoor: a share of the examples gets a white corner and the target label."""

    share: float | None = None
    target: int = 0

    def poison(self, context: PoisoningContext) -> Poisoned:
        """Stamped examples; success is measured on stamped test images of other classes."""
        if not 0 <= self.target < context.classes:
            raise BadParameter(f"target={self.target}; give a label from 0 to {context.classes - 1}.")
        images, labels = context.victim
        patch = corner(images.shape[-1], context.high)
        indices, mask = choose_examples(context, self.share)
        images, labels = images.clone(), labels.clone()
        images[indices], labels[indices] = patch.stamp(images[indices]), self.target
        success_sets = trigger_success_set(patch.stamp(context.test[0]), context.test[1], self.target)
        return shuffled(context, images, labels, mask, success_sets)
