"""Shares of a Gram matrix added up over ranks, by one all-reduce of (n+1)² + n + 3k + 1 numbers."""

from __future__ import annotations

import numpy as np
import torch

from randeigen.distributed.peers import Peers
from randeigen.geometry.gram_share import GramShare
from randeigen.geometry.products import MAX_PLAIN_EXPONENT, UNSET, ScaledGram, added, in_plain_units
from randeigen.types import Array


def summed(share: GramShare, peers: Peers, device: torch.device) -> GramShare:
    """The sum of all ranks' shares, the same on every rank.

    Sums are made in the caller's units. Where one rank's numbers do not fit these (1e200 squared), all send
    them with their exponents instead.
    """
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
