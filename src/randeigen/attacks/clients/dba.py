"""DBA: a trigger in four pieces, of which each attacker knows one (Xie et al., ICLR 2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from randeigen.attacks.base import (
    OWN_DATA,
    MaliciousClients,
    ModelInfo,
    SuccessSets,
    Tensor,
    declare,
    trigger_success_set,
)
from randeigen.attacks.triggers import Patch, bars


@declare(
    "dba",
    "client",
    "backdoor",
    knows=OWN_DATA,
    does="a trigger in four pieces, one for each attacker",
    paper="Xie et al., ICLR 2020",
    inputs="images",
)
@dataclass(frozen=True)
class DBA:
    """Attacker j stamps piece j mod 4 on half of every batch, label 2; together they teach the whole.

    The settings are Zhu's: batch 10, 20 epochs of SGD at learning rate 0.05 with momentum 0.9 and weight
    decay 5e-4, the learning rate divided by 10 after a fifth and after four fifths of the epochs. `scale`
    multiplies the update: 1 on MNIST, 5 on Fashion-MNIST.
    """

    scale: float = 1.0
    target: int = 2
    epochs: int = 20
    batch: int = 10
    poisoned: int = 5  # images of every batch
    rate: float = 0.05  # the learning rate

    def pieces(self, info: ModelInfo, images: Tensor) -> tuple[Patch, ...]:
        """The four pieces of the trigger, in the brightest pixel value."""
        return bars(images.shape[-1], info.high)

    def updates(self, clients: MaliciousClients) -> Tensor:
        import torch

        training = replace(
            clients.training,
            epochs=self.epochs,
            batch=self.batch,
            lr=self.rate,
            momentum=0.9,
            weight_decay=5e-4,
            lr_milestones=(0.2, 0.8),
        )
        info = clients.info
        masks: list[Tensor] = []  # (4, 1, 1, height, width) the pixels of each piece; made on the first batch

        def poison(images: Tensor, labels: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
            if not masks:
                blank = images[0, :1, :1] * 0 + info.low
                masks.append(torch.stack([p.stamp(blank) != blank for p in self.pieces(info, images)]))
            count = min(self.poisoned, labels.shape[1])
            images, labels = images.clone(), labels.clone()
            images[:, :count].masked_fill_(masks[0][indices % 4], info.high)
            labels[:, :count] = self.target
            return images, labels

        return self.scale * (clients.weights - clients.train(training, poison=poison))

    def success_sets(self, info: ModelInfo, images: Tensor, labels: Tensor) -> SuccessSets:
        """Test images of other classes with the whole trigger, and with each piece."""
        pieces = self.pieces(info, images)
        sets = trigger_success_set(reduce(or_, pieces).stamp(images), labels, self.target)
        for number, piece in enumerate(pieces):
            sets[f"piece {number}"] = trigger_success_set(piece.stamp(images), labels, self.target)["asr"]
        return sets
