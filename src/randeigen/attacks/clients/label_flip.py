"""Training on flipped labels."""

from __future__ import annotations

from dataclasses import dataclass

from randeigen.attacks.base import (
    OWN_DATA,
    MaliciousClients,
    ModelInfo,
    SuccessSets,
    Tensor,
    declare,
    flipped,
)


@declare(
    "label-flip",
    "client",
    "untargeted",
    knows=OWN_DATA,
    does="trains on classes - 1 - y",
    paper="folklore",
)
@dataclass(frozen=True)
class LabelFlip:
    """Trains as honest clients do, on wrong labels: y becomes classes - 1 - y."""

    def updates(self, clients: MaliciousClients) -> Tensor:
        classes = clients.info.classes
        poisoned = clients.train(clients.training, poison=lambda x, y, indices: (x, flipped(y, classes)))
        return clients.weights - poisoned

    def success_sets(self, info: ModelInfo, images: Tensor, labels: Tensor) -> SuccessSets:
        """None: it has no target."""
        return {}
