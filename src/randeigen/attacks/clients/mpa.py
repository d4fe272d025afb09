"""MPA: ten given images are to be misread, all else left alone (Bhagoji et al., ICML 2019)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from randeigen.attacks.base import OWN_DATA, MaliciousClients, ModelInfo, SuccessSets, Tensor, declare


@declare(
    "mpa",
    "client",
    "targeted",
    knows=OWN_DATA,
    does="ten given images are to be misread",
    paper="Bhagoji et al., ICML 2019",
)
@dataclass(frozen=True)
class MPA:
    """Alternates an honest epoch with steps on the ten images, and boosts the latter (as Zhu's code).

    Per epoch: train on one's own images with the proximal term rho·|θ - anchor|²; then pass over the ten
    images with their wrong labels, about one batch for each honest batch; send the honest part as it is
    and `boost` times the malicious part. The anchor is a tenth of a step on the honest data.
    """

    boost: float = 2.0
    rho: float = 1e-3

    def updates(self, clients: MaliciousClients) -> Tensor:
        images, labels = clients.info.target_images
        epoch = replace(clients.training, epochs=1)
        target_batches = -(-len(labels) // epoch.batch)
        passes = replace(clients.training, epochs=clients.batches(epoch.batch) // target_batches + 1)
        start = clients.weights.expand(clients.m, -1)
        total = start * 0
        for _ in range(clients.training.epochs):
            anchor = start - (start - clients.train(epoch, start=start)) / 10
            honest = clients.train(epoch, start=start, proximal=(anchor, self.rho))
            poisoned = clients.fit(images, labels, passes, start=honest)
            total = total + (start - honest) + self.boost * (honest - poisoned)
            start = poisoned
        return total

    def success_sets(self, info: ModelInfo, images: Tensor, labels: Tensor) -> SuccessSets:
        return {"asr": info.target_images}
