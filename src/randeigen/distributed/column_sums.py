"""`check=True`: whether every rank's columns of the mean are the weighted sum of what it was sent.

Every rank also tells the sum of its own numbers in each rank's columns. After the exchange the sum of the
mean over these columns must be Σ wᵢ·sumᵢ, but for rounding. One wrong number shows if it is larger than the
rounding of all others; this is a test for faulty memory, not for a hostile process.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from randeigen.distributed.agreement import DTYPES
from randeigen.distributed.rank_rows import RankRows
from randeigen.types import Array, Weights

UNIT_ROUNDOFF = {dtype: torch.finfo(dtype).eps / 2 for dtype in DTYPES}
FLOAT64_SUM_ROUNDING = 2.0**-50  # per number that is added, of their magnitudes


class ColumnSums:
    """Taken before the exchange ends: sums of each rank's numbers over each rank's columns."""

    def __init__(self, rows: RankRows) -> None:
        self._rows = rows
        n = rows.n
        sums = torch.zeros((n, 2 * n), dtype=torch.float64, device=rows.device)
        sums[rows.peers.rank] = torch.cat((_sums(rows, False), _sums(rows, True)))
        self._sums: Array = rows.peers.sum(sums).cpu().numpy()

    def broken(self, weights: Weights) -> tuple[int, ...]:
        """The ranks whose columns do not add up, after the exchange; `weights` times the rule's scale."""
        rows, n = self._rows, self._rows.n
        kept = weights != 0  # a row of weight 0 may hold NaN
        expected = weights[kept] @ self._sums[kept, :n]
        magnitudes = abs(weights[kept]) @ self._sums[kept, n:]
        rounding = max(UNIT_ROUNDOFF[bucket.received.dtype] for bucket in rows.buckets)
        columns = np.sum([bucket.sizes for bucket in rows.buckets], axis=0)
        allowed = ((n + 4) * rounding + columns * FLOAT64_SUM_ROUNDING) * magnitudes
        actual = _sums(rows, False).cpu().numpy()
        with np.errstate(invalid="ignore"):
            wrong = ~(abs(actual - expected) <= allowed) & (columns > 0)
        return tuple(np.flatnonzero(wrong).tolist())


def _sums(rows: RankRows, absolute: bool) -> Tensor:
    """(n,) the sum, or the sum of magnitudes, of what lies in each rank's columns here."""
    total = torch.zeros(rows.n, dtype=torch.float64, device=rows.device)
    for flat, sizes in _flats(rows):
        pieces = [piece.abs() if absolute else piece for piece in flat.split(sizes)]
        total += torch.stack([piece.sum(dtype=torch.float64) for piece in pieces])
    return total


def _flats(rows: RankRows) -> Iterator[tuple[Tensor, list[int]]]:
    return ((bucket.flat, bucket.sizes) for bucket in rows.buckets if bucket.flat is not None)
