"""What ranks that hold different columns must tell each other: shares of the Gram matrix, and distances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from randeigen.distributed.peers import Peers
from randeigen.geometry.gram_share import GramShare
from randeigen.geometry.products import MAX_PLAIN_EXPONENT, UNSET, ScaledGram, added, in_plain_units
from randeigen.source import Combined, Judgement
from randeigen.types import Array


def judgement_of_first(judgement: Judgement, groups: Sequence[Peers], device: torch.device) -> Judgement:
    """The judgement with the first rank's weights: another processor may have rounded them otherwise."""
    verdict = judgement.verdict
    numbers = torch.from_numpy(np.append(verdict.weights, verdict.scale)).to(device)
    for peers in groups:
        peers.from_first(numbers)
    first = numbers.cpu().numpy()
    return judgement._replace(verdict=replace(verdict, weights=first[:-1], scale=float(first[-1])))


def distances_over(combined: Combined, groups: Sequence[Peers], device: torch.device) -> Combined:
    """Distances over all columns, from those over the own ones of each rank.

    Each allows for the rounding of all columns, so over k ranks that is counted sqrt(k) times.
    """
    away, to_mean = combined.away, combined.distance_to_mean or 0.0
    for peers in groups:
        away, to_mean = (math.hypot(*each) for each in peers.slots((away, to_mean), device))
    return Combined(combined.mean, away, None if combined.distance_to_mean is None else to_mean)


def summed(share: GramShare, groups: Sequence[Peers], device: torch.device) -> GramShare:
    """The sum of the shares of all ranks, the same on every rank.

    By one all-reduce of (n+1)² + n + 3k + 1 numbers in each group of k ranks, in the caller's units. Where
    one rank's numbers do not fit these (1e200 squared), all send them with their exponents instead.
    """
    for peers in groups:
        share = _summed(share, peers, device)
    return share


def _summed(share: GramShare, peers: Peers, device: torch.device) -> GramShare:
    n, k, lines = share.n, peers.size, share.n + 1
    gram, plain = _plain(share.measured)
    of_rank = np.zeros((3, k))  # each rank fills a column of its own: there is no maximum in a sum
    of_rank[:, peers.rank] = share.precision, share.underflow, not plain
    vector = np.concatenate((of_rank.ravel(), [share.columns], share.unusable, gram.ravel()))
    total = peers.sum(torch.from_numpy(vector).to(device)).cpu().numpy()
    (precisions, underflows, scaled), rest = total[: 3 * k].reshape(3, k), total[3 * k :]
    if scaled.any():
        measured = _with_exponents(share.measured, peers, device)
    else:
        measured = ScaledGram(rest[n + 1 :].reshape(lines, lines), np.zeros(lines, np.int64))
    return GramShare(
        measured, rest[1 : n + 1] > 0, float(precisions.max()), float(underflows.sum()), int(rest[0])
    )


def _plain(measured: ScaledGram) -> tuple[Array, bool]:
    """The matrix in the caller's units, and whether nothing is lost by that; else zeros."""
    rows, origin = measured.exponents[:-1], int(measured.exponents[-1])
    if np.isin(rows, (0, UNSET)).all() and (origin == UNSET or abs(origin) <= MAX_PLAIN_EXPONENT):
        gram = in_plain_units(measured)
        if np.isfinite(gram).all():
            return gram, True
    return np.zeros_like(measured.gram), False


def _with_exponents(measured: ScaledGram, peers: Peers, device: torch.device) -> ScaledGram:
    lines = measured.exponents.size
    own = np.vstack((measured.gram, measured.exponents))
    total = None
    for each in peers.of_each(torch.from_numpy(own).to(device)):
        theirs = each.cpu().numpy()
        one = ScaledGram(theirs[:lines], theirs[lines].astype(np.int64))
        total = one if total is None else added(total, one)
    assert total is not None
    return total
