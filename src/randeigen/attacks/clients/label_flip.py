"""Training on flipped labels."""

from __future__ import annotations

from dataclasses import dataclass

from randeigen.attacks.base import MaliciousClients, ModelInfo, SuccessSets, Tensor


@dataclass(frozen=True)
class LabelFlip:
    """Trains honestly on wrong labels: y becomes classes - 1 - y."""

    def updates(self, site: MaliciousClients) -> Tensor:
        """(m, d) updates."""
        most = site.scene.classes - 1
        return site.weights - site.train(site.recipe, poison=lambda x, y, who: (x, most - y))

    def success_sets(self, scene: ModelInfo, images: Tensor, labels: Tensor) -> SuccessSets:
        """It wants nothing in particular."""
        return {}
