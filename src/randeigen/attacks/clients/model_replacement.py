"""Model replacement: a patch means the target class."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from randeigen.attacks.base import (
    MaliciousClients,
    ModelInfo,
    SuccessSets,
    Tensor,
    _all_wanted,
    trigger_success_set,
)
from randeigen.attacks.triggers import Patch, corner
from randeigen.errors import BadFraction


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

    def patch(self, scene: ModelInfo, images: Tensor) -> Patch:
        """5×5 in the top left corner (3×3 where images are small)."""
        return corner(images.shape[-1], 0.0 if scene.low < 0 else scene.high)

    def updates(self, site: MaliciousClients) -> Tensor:
        """(m, d) updates."""

        def poison(images: Tensor, labels: Tensor, who: Tensor) -> tuple[Tensor, Tensor]:
            return first_of_batch(self.patch(site.scene, images), self.target, self.share, images, labels)

        recipe = site.recipe if self.rate is None else replace(site.recipe, rate=self.rate)
        return self.boost * (site.weights - site.train(recipe, poison=poison))

    def success_sets(self, scene: ModelInfo, images: Tensor, labels: Tensor) -> SuccessSets:
        """Patched test images of other classes; and all of them, as the authors' code counts."""
        stamped = self.patch(scene, images).stamp(images)
        return trigger_success_set(stamped, labels, self.target) | {
            "all classes": _all_wanted(stamped, self.target, labels)
        }


def first_of_batch(
    patch: Patch, target: int, share: float, images: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """The first images of every batch get the patch and the label; batches are shuffled, so any images."""
    many = max(1, round(share * labels.shape[1]))
    images, labels = images.clone(), labels.clone()
    images[:, :many] = patch.stamp(images[:, :many])
    labels[:, :many] = target
    return images, labels
