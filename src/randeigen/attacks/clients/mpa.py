"""MPA: ten given images are to be misread, all else left alone (Bhagoji et al., ICML 2019)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from randeigen.attacks.base import MaliciousClients, ModelInfo, SuccessSets, Tensor


@dataclass(frozen=True)
class MPA:
    """Alternates an honest epoch with steps on the ten images, and boosts what those taught (as Zhu's code).

    Per epoch: train on one's own images, held near an anchor by rho·|θ - anchor|²; then pass over the ten
    images with their wrong labels, about one batch for each honest batch; send the honest part as it is
    and `boost` times the malicious part. The anchor is a tenth of a step on the honest data.
    """

    boost: float = 2.0
    rho: float = 1e-3

    def updates(self, site: MaliciousClients) -> Tensor:
        """(m, d) updates."""
        images, labels = site.scene.marked
        epoch = replace(site.recipe, epochs=1)
        few = -(-len(labels) // epoch.batch)
        passes = replace(site.recipe, epochs=site.batches(epoch.batch) // few + 1)
        start = site.weights.expand(site.m, -1)
        sent = start * 0
        for _ in range(site.recipe.epochs):
            anchor = start - (start - site.train(epoch, start=start)) / 10
            honest = site.train(epoch, start=start, pull=(anchor, self.rho))
            reached = site.fit(images, labels, passes, start=honest)
            sent = sent + (start - honest) + self.boost * (honest - reached)
            start = reached
        return sent

    def success_sets(self, scene: ModelInfo, images: Tensor, labels: Tensor) -> SuccessSets:
        """The ten images."""
        return {"asr": scene.marked}
