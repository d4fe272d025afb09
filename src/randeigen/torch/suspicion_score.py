"""What makes an example suspicious: its neighbours in gradient space are learnt badly, and it lies far out.

An example that is merely hard has neighbours of all kinds; poison made for one purpose pulls in one
direction, and the rest of its label pulls in another. So losses are averaged over neighbours, which forgives
hard examples and not a crowd of liars; and the distance along the widest direction tells the two crowds
apart even after the model has learnt the lie. Which neighbours: docs/training.md has the measurements.
"""

from __future__ import annotations

import torch
from torch import Tensor

DIRECTIONS = 8  # in which neighbours are sought: the widest of the group
NEIGHBOUR_FRACTION_INVERSE = 20  # one in so many of the group is near
MIN_SCORED_EXAMPLES = 10  # examples: fewer have no neighbourhood, and are not judged
ROUNDS = 8  # of subspace iteration: neighbours need directions to a few percent, not to rounding
LEAST = 1e-6  # a loss below this is as good as 0


def suspicion_scores(table: Tensor, losses: Tensor, coins: torch.Generator) -> Tensor:
    """(2, m) for the m examples of one label: how badly neighbours are learnt, how far out each one is."""
    if len(losses) < MIN_SCORED_EXAMPLES:
        return torch.zeros(2, len(losses), dtype=table.dtype, device=table.device)
    places = top_principal_coordinates(normalise_gram(table), coins)
    apart = torch.cdist(places, places).square()
    reach = apart.kthvalue(
        max(MIN_SCORED_EXAMPLES // 2, len(losses) // NEIGHBOUR_FRACTION_INVERSE) + 1, dim=1
    ).values[:, None]
    near = torch.exp(-apart / reach.clamp(min=torch.finfo(reach.dtype).tiny)).fill_diagonal_(0)
    along = places[:, -1]
    return torch.stack([near @ logit_loss(losses) / near.sum(1), (along - along.median()).abs()])


def logit_loss(losses: Tensor) -> Tensor:
    """log(eˡ - 1): of cross-entropy the log odds against the label, so that no single loss outweighs many."""
    least = losses.double().clamp(min=LEAST)
    return least + torch.log(-torch.expm1(-least))


def top_principal_coordinates(table: Tensor, coins: torch.Generator) -> Tensor:
    """(m, k) the rows' places along the widest directions of their table, the widest last."""
    means = table.mean(0)
    centred = table - means - means[:, None] + means.mean()
    width = min(DIRECTIONS + 4, len(table))
    basis = torch.randn(len(table), width, generator=coins, dtype=torch.float64).to(table)
    for _ in range(ROUNDS):
        basis = torch.linalg.qr(centred @ basis).Q
    values, vectors = torch.linalg.eigh(basis.T @ centred @ basis)
    return (basis @ vectors * values.clamp(min=0).sqrt())[:, -DIRECTIONS:]


def robust_z_score(values: Tensor) -> Tensor:
    """(n,) how many typical deviations each is above the middle: medians, so no liar sets the scale."""
    away = values - values.median()
    typical = away.abs().median()
    return away / typical if typical > 0 else away.sign()


def normalise_gram(table: Tensor) -> Tensor:
    """The table of the same rows at length 1; a row of length 0 stays where it is."""
    lengths = table.diagonal().clamp(min=0).sqrt()
    inverse = torch.where(lengths > 0, 1 / lengths, 0.0)
    return inverse[:, None] * table * inverse
