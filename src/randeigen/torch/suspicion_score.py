"""What makes an example suspicious: its neighbours in gradient space have high losses, and it is far out.

An example that is merely hard has neighbours of all kinds; poison made for one purpose pulls in one
direction, and the rest of its label in another. So losses are averaged over neighbours, which forgives single
hard examples but not a cluster of poison; and the distance along the top direction separates the cluster from
the rest even after the model has learnt the poison. docs/training.md has the measurements.
"""

from __future__ import annotations

import torch
from torch import Tensor

DIRECTIONS = 8  # top directions in which neighbours are looked for
EXTRA_DIRECTIONS = 4  # of the subspace iteration, beyond those that are used
ITERATIONS = 8  # of the subspace iteration: neighbours need directions to a few percent, not to rounding
EXAMPLES_PER_NEIGHBOUR = 20  # the nearest twentieth of a group sets the width of a neighbourhood
MIN_SCORED_EXAMPLES = 10  # a group of fewer has no neighbourhoods, and all its scores are 0
MIN_LOSS = 1e-6  # losses below this count as this much


def suspicion_scores(gram: Tensor, losses: Tensor, generator: torch.Generator) -> Tensor:
    """(2, m) for the m examples of one label: neighbours' mean logit loss, distance along the top direction.

    Neighbours are weighted by exp(−‖a − b‖²/r²), where r is the distance to the k-th nearest, k = m/20.
    """
    if len(losses) < MIN_SCORED_EXAMPLES:
        return torch.zeros(2, len(losses), dtype=gram.dtype, device=gram.device)
    coordinates = top_principal_coordinates(normalise_gram(gram), generator)
    squared_distances = torch.cdist(coordinates, coordinates).square()
    k = max(MIN_SCORED_EXAMPLES // 2, len(losses) // EXAMPLES_PER_NEIGHBOUR)
    squared_radius = squared_distances.kthvalue(k + 1, dim=1).values[:, None]  # the nearest is itself
    tiny = torch.finfo(squared_radius.dtype).tiny
    nearness = torch.exp(-squared_distances / squared_radius.clamp(min=tiny)).fill_diagonal_(0)
    top = coordinates[:, -1]
    return torch.stack([nearness @ logit_loss(losses) / nearness.sum(1), (top - top.median()).abs()])


def logit_loss(losses: Tensor) -> Tensor:
    """log(eˡ − 1): of cross-entropy the log odds against the label, so that no single loss outweighs many."""
    losses = losses.double().clamp(min=MIN_LOSS)
    return losses + torch.log(-torch.expm1(-losses))


def top_principal_coordinates(gram: Tensor, generator: torch.Generator) -> Tensor:
    """(m, k) the rows' projections on the top directions of their covariance, the top one last."""
    means = gram.mean(0)
    centred = gram - means - means[:, None] + means.mean()
    width = min(DIRECTIONS + EXTRA_DIRECTIONS, len(gram))
    basis = torch.randn(len(gram), width, generator=generator, dtype=torch.float64).to(gram)
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(centred @ basis).Q
    values, vectors = torch.linalg.eigh(basis.T @ centred @ basis)
    coordinates: Tensor = (basis @ vectors * values.clamp(min=0).sqrt())[:, -DIRECTIONS:]
    return coordinates


def robust_z_score(values: Tensor) -> Tensor:
    """(n,) deviations from the median, in median absolute deviations: a minority cannot set the scale."""
    deviations = values - values.median()
    typical = deviations.abs().median()
    return deviations / typical if typical > 0 else deviations.sign()


def normalise_gram(gram: Tensor) -> Tensor:
    """The Gram matrix of the same rows scaled to norm 1; a row of norm 0 stays as it is."""
    norms = gram.diagonal().clamp(min=0).sqrt()
    inverse = torch.where(norms > 0, 1 / norms, 0.0)
    return inverse[:, None] * gram * inverse
