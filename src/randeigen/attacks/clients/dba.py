"""DBA: a trigger in four pieces, of which each attacker knows one (Xie et al., ICLR 2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from randeigen.attacks.base import MaliciousClients, ModelInfo, SuccessSets, Tensor, trigger_success_set
from randeigen.attacks.triggers import Patch, bars


@dataclass(frozen=True)
class DBA:
    """Attacker j stamps piece j mod 4 on half of every batch, label 2; together they teach the whole.

    The settings are Zhu's: batch 10, 20 epochs of SGD at rate 0.05 with momentum 0.9 and decay 5e-4, the
    rate divided by 10 after a fifth and after four fifths of the epochs. `scale` multiplies the update: 1
    on MNIST, 5 on Fashion-MNIST.
    """

    scale: float = 1.0
    target: int = 2
    epochs: int = 20
    batch: int = 10
    poisoned: int = 5  # images of every batch
    rate: float = 0.05

    def pieces(self, scene: ModelInfo, images: Tensor) -> tuple[Patch, ...]:
        """The four pieces, white."""
        return bars(images.shape[-1], scene.high)

    def updates(self, site: MaliciousClients) -> Tensor:
        """(m, d) updates."""
        import torch

        recipe = replace(
            site.recipe,
            epochs=self.epochs,
            batch=self.batch,
            rate=self.rate,
            momentum=0.9,
            decay=5e-4,
            drops=(0.2, 0.8),
        )
        where: list[Tensor] = []  # (4, 1, 1, height, width) the pixels of each piece, once an image was seen

        def poison(images: Tensor, labels: Tensor, who: Tensor) -> tuple[Tensor, Tensor]:
            if not where:
                blank = images[0, :1, :1] * 0 + site.scene.low
                where.append(torch.stack([p.stamp(blank) != blank for p in self.pieces(site.scene, images)]))
            few = min(self.poisoned, labels.shape[1])
            images, labels = images.clone(), labels.clone()
            images[:, :few].masked_fill_(where[0][who % 4], site.scene.high)
            labels[:, :few] = self.target
            return images, labels

        return self.scale * (site.weights - site.train(recipe, poison=poison))

    def success_sets(self, scene: ModelInfo, images: Tensor, labels: Tensor) -> SuccessSets:
        """Test images of other classes with the whole trigger, and with each piece."""
        pieces = self.pieces(scene, images)
        found = trigger_success_set(reduce(or_, pieces).stamp(images), labels, self.target)
        for number, piece in enumerate(pieces):
            found[f"piece {number}"] = trigger_success_set(piece.stamp(images), labels, self.target)["asr"]
        return found
