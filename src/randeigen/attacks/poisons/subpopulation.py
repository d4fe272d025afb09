"""Subpopulation poisoning (Jagielski et al., CCS 2021): break a slice of the data, leave the rest alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from randeigen.attacks.base import SIMILAR_DATA, Poisoned, PoisoningContext, Tensor, declare
from randeigen.attacks.poisons.simple import shuffled
from randeigen.errors import BadParameter

COMPONENTS = 40  # principal components of the features that are clustered
K_MEANS_STEPS = 30
MIN_TEST_IMAGES = 5  # of a cluster: with fewer, success could not be measured
MIN_IMAGES_PER_CLUSTER = 15  # small data sets get fewer clusters, not emptier ones


@declare(
    "subpopulation",
    "data",
    "targeted",
    knows=SIMILAR_DATA,
    does="images of one cluster join the data, all with one wrong label",
    paper="Jagielski et al., CCS 2021",
)
@dataclass(frozen=True)
class Subpopulation:
    """ClusterMatch: images of one cluster of the auxiliary set, all with one wrong label, join the victim's.

    Clusters are those of k-means on features of the attacker's own model. int(alpha·size) images are drawn
    with replacement and get the label rarest in the cluster (one of the rarest at random). `cluster` counts
    through the clusters that fit into eps, in random order. Success: test images of the cluster that are
    taken for that label.
    """

    alpha: float = 2.0
    clusters: int = 100
    cluster: int = 0

    def __post_init__(self) -> None:
        if not self.alpha > 0 or self.clusters < 1 or self.cluster < 0:
            raise BadParameter(
                f"alpha={self.alpha}, clusters={self.clusters}, cluster={self.cluster}; give a positive "
                "alpha, at least one cluster, and which one from 0."
            )

    def poison(self, context: PoisoningContext) -> Poisoned:
        """The victim's images, with the poison added."""
        import torch

        (images, labels), (own, truth), (tests, answers) = context.victim, context.auxiliary, context.test
        own_cluster, test_cluster = self._clusters(context)
        label = {
            c: self._wrong_label(truth[own_cluster == c], context) for c in range(int(own_cluster.max()) + 1)
        }
        room = context.eps / (1 - context.eps) * len(labels)
        fitting = [
            c
            for c in context.rng.permutation(len(label)).tolist()
            if 1 <= int(self.alpha * int((own_cluster == c).sum())) <= room
            and int(((test_cluster == c) & (answers != label[c])).sum()) >= MIN_TEST_IMAGES
        ]
        if self.cluster >= len(fitting):
            raise BadParameter(
                f"cluster={self.cluster}, but {len(fitting)} clusters have room within eps={context.eps} of "
                f"{len(labels)} examples at alpha={self.alpha}; give a smaller alpha or a larger eps."
            )
        c = fitting[self.cluster]
        members = torch.nonzero(own_cluster == c).flatten().cpu().numpy()
        sampled = truth.new_tensor(context.rng.choice(members, int(self.alpha * len(members))))
        wrong = torch.full_like(sampled, label[c])
        trial = (test_cluster == c) & (answers != label[c])
        success_sets = {"asr": (tests[trial], torch.full_like(answers[trial], label[c]))}
        mask = torch.cat([labels != labels, wrong == wrong])
        return shuffled(
            context, torch.cat([images, own[sampled]]), torch.cat([labels, wrong]), mask, success_sets
        )

    def _clusters(self, context: PoisoningContext) -> tuple[Tensor, Tensor]:
        """The cluster of each auxiliary image and of each test image."""
        import torch

        model = context.surrogate()
        own, test = (features(model, images) for images in (context.auxiliary[0], context.test[0]))
        centre = own.mean(0)
        axes = torch.linalg.eigh((own - centre).T @ (own - centre)).eigenvectors[:, -COMPONENTS:]
        many = min(self.clusters, max(1, len(own) // MIN_IMAGES_PER_CLUSTER))
        centres = k_means((own - centre) @ axes, many, context.rng)
        nearest = [torch.cdist((x - centre) @ axes, centres).argmin(1) for x in (own, test)]
        return nearest[0], nearest[1]

    def _wrong_label(self, labels: Tensor, context: PoisoningContext) -> int:
        counts = np.bincount(labels.cpu().numpy(), minlength=context.classes)
        return int(context.rng.choice(np.flatnonzero(counts == counts.min())))


def features(model: Any, images: Tensor, chunk: int = 2048) -> Tensor:
    """(N, width) what the last layer of a Sequential model is given."""
    import torch

    with torch.no_grad():
        return torch.cat([model[:-1](part).flatten(1) for part in images.split(chunk)])


def k_means(points: Tensor, many: int, rng: Generator) -> Tensor:
    """(many, width) centres by Lloyd's algorithm from random points; an empty cluster starts anew."""
    import torch

    centres = points[points.new_tensor(rng.choice(len(points), many, replace=False)).long()]
    for _ in range(K_MEANS_STEPS):
        nearest = torch.cdist(points, centres).argmin(1)
        sizes = torch.bincount(nearest, minlength=many)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        fresh = points[points.new_tensor(rng.choice(len(points), many)).long()]
        centres = torch.where(sizes[:, None] > 0, sums / sizes.clamp(min=1)[:, None], fresh)
    return centres
