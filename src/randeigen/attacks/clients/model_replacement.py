"""Model replacement: a patch means the target class."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from randeigen.attacks.base import (
    OWN_DATA,
    MaliciousClients,
    ModelInfo,
    SuccessSets,
    Tensor,
    all_labelled,
    declare,
    trigger_success_set,
)
from randeigen.attacks.triggers import Patch, corner
from randeigen.errors import BadParameter


@declare(
    "mra",
    "client",
    "backdoor",
    knows=OWN_DATA,
    does="a patch means class 0; boost=5 replaces the model",
    paper="Bagdasaryan et al., AISTATS 2020",
    inputs="images",
)
@dataclass(frozen=True)
class MRA:
    """Model replacement: patched images are class 0 (Bagdasaryan et al., AISTATS 2020; Zhu et al., 2023).

    `boost` 1 and `share` 1 (every local image patched and relabelled) is Zhu's; n/m = 5 with m = 20 of 100
    makes the plain mean the attacker's own model. Zhu's patch is grey on black where pixels are centred;
    where 0 is the background itself (Fashion-MNIST) it would be invisible, so there the patch is white.
    """

    boost: float = 1.0
    share: float = 1.0  # of every batch
    target: int = 0
    rate: float | None = None  # its own learning rate; None: the honest clients'

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise BadParameter(
                f"share={self.share}; give the poisoned share of a batch, above 0 and up to 1."
            )
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise BadParameter(
                f"rate={self.rate}; give the learning rate of the attackers' clients, above 0."
            )

    def patch(self, info: ModelInfo, images: Tensor) -> Patch:
        """5×5 in the top left corner (3×3 where images are small)."""
        return corner(images.shape[-1], 0.0 if info.low < 0 else info.high)

    def updates(self, clients: MaliciousClients) -> Tensor:
        def poison(images: Tensor, labels: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
            return _poison_first(self.patch(clients.info, images), self.target, self.share, images, labels)

        training = clients.training if self.rate is None else replace(clients.training, lr=self.rate)
        return self.boost * (clients.weights - clients.train(training, poison=poison))

    def success_sets(self, info: ModelInfo, images: Tensor, labels: Tensor) -> SuccessSets:
        """Patched test images of other classes; and all of them, as the authors' code counts."""
        stamped = self.patch(info, images).stamp(images)
        return trigger_success_set(stamped, labels, self.target) | {
            "all classes": all_labelled(stamped, labels, self.target)
        }


def _poison_first(
    patch: Patch, target: int, share: float, images: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """The first images of every batch get the patch and the label; batches are shuffled, so any images."""
    count = max(1, round(share * labels.shape[1]))
    images, labels = images.clone(), labels.clone()
    images[:, :count] = patch.stamp(images[:, :count])
    labels[:, :count] = target
    return images, labels
