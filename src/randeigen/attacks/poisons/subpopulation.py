"""Subpopulation poisoning (Jagielski et al., CCS 2021): break a slice of the data, leave the rest alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from randeigen.attacks.base import Poisoned, PoisoningContext, Tensor
from randeigen.attacks.poisons.simple import shuffled
from randeigen.errors import BadFraction

KEPT = 40  # principal components in which clusters are sought
STEPS = 30  # of k-means
SEEN = 5  # test images: a cluster with fewer says nothing about success
CROWD = 15  # images: small data sets get fewer clusters, not emptier ones


@dataclass(frozen=True)
class Subpopulation:
    """ClusterMatch: images of one cluster of the auxiliary set, all with one wrong label, join the victim's.

    Clusters are found by k-means among features of the attacker's own model. int(alpha·size) images are drawn
    with replacement and get the label rarest in the cluster (one of the rarest at random). `cluster` counts
    through the clusters that fit into eps, in random order. Success: test images of the cluster that are
    taken for that label.
    """

    alpha: float = 2.0
    clusters: int = 100
    cluster: int = 0

    def __post_init__(self) -> None:
        """Refuse what leaves nothing to poison."""
        if not self.alpha > 0 or self.clusters < 1 or self.cluster < 0:
            raise BadFraction(
                f"alpha={self.alpha}, clusters={self.clusters}, cluster={self.cluster}; give a positive "
                "alpha, at least one cluster, and which one from 0."
            )

    def poison(self, source: PoisoningContext) -> Poisoned:
        """The victim's images and the poison among them."""
        import torch

        (images, labels), (own, truth), (tests, answers) = source.victim, source.auxiliary, source.test
        found, seen = self._clusters(source)
        label = {c: self._wrong(truth[found == c], source) for c in range(int(found.max()) + 1)}
        room = source.eps / (1 - source.eps) * len(labels)
        fit = [
            c
            for c in source.rng.permutation(len(label)).tolist()
            if 1 <= int(self.alpha * int((found == c).sum())) <= room
            and int(((seen == c) & (answers != label[c])).sum()) >= SEEN
        ]
        if self.cluster >= len(fit):
            raise BadFraction(
                f"cluster={self.cluster}, but {len(fit)} clusters have room within eps={source.eps} of "
                f"{len(labels)} examples at alpha={self.alpha}; give a smaller alpha or a larger eps."
            )
        c = fit[self.cluster]
        members = torch.nonzero(found == c).flatten().cpu().numpy()
        drawn = truth.new_tensor(source.rng.choice(members, int(self.alpha * len(members))))
        wrong = torch.full_like(drawn, label[c])
        mine = (seen == c) & (answers != label[c])
        trials = {"asr": (tests[mine], torch.full_like(answers[mine], label[c]))}
        mask = torch.cat([labels != labels, wrong == wrong])
        return shuffled(source, torch.cat([images, own[drawn]]), torch.cat([labels, wrong]), mask, trials)

    def _clusters(self, source: PoisoningContext) -> tuple[Tensor, Tensor]:
        """The cluster of each auxiliary image and of each test image."""
        import torch

        model = source.surrogate()
        ours, theirs = (features(model, images) for images in (source.auxiliary[0], source.test[0]))
        middle = ours.mean(0)
        axes = torch.linalg.eigh((ours - middle).T @ (ours - middle)).eigenvectors[:, -KEPT:]
        many = min(self.clusters, max(1, len(ours) // CROWD))
        centres = k_means((ours - middle) @ axes, many, source.rng)
        nearest = [torch.cdist((x - middle) @ axes, centres).argmin(1) for x in (ours, theirs)]
        return nearest[0], nearest[1]

    def _wrong(self, labels: Tensor, source: PoisoningContext) -> int:
        counts = np.bincount(labels.cpu().numpy(), minlength=source.classes)
        return int(source.rng.choice(np.flatnonzero(counts == counts.min())))


def features(model: Any, images: Tensor, chunk: int = 2048) -> Tensor:
    """(N, width) what the last layer of a Sequential model is given."""
    import torch

    with torch.no_grad():
        return torch.cat([model[:-1](part).flatten(1) for part in images.split(chunk)])


def k_means(points: Tensor, many: int, rng: Generator) -> Tensor:
    """(many, width) centres by Lloyd's algorithm from random points; an empty cluster starts anew."""
    import torch

    centres = points[points.new_tensor(rng.choice(len(points), many, replace=False)).long()]
    for _ in range(STEPS):
        nearest = torch.cdist(points, centres).argmin(1)
        sizes = torch.bincount(nearest, minlength=many)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        fresh = points[points.new_tensor(rng.choice(len(points), many)).long()]
        centres = torch.where(sizes[:, None] > 0, sums / sizes.clamp(min=1)[:, None], fresh)
    return centres
