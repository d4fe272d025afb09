"""What came of one exchange, the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from randeigen.types import Mask, Verdict, Weights


@dataclass(frozen=True)
class Exchange:
    """The judgement on the ranks' rows in one exchange; `guard.last`, and what `all_reduce` returns.

    Attributes:
        weights: (n,) each rank's weight in the mean; they sum to 1, and are 0 where the step was skipped.
        bias_bound: f corrupt ranks can have moved the mean by at most this at these weights: it is that close
            to the mean of the honest ranks alone at the same weights, and may be further from their plain
            mean. Inf where the step was skipped.
        verdict: What the rule decided, round by round; None where the step was skipped.
        unusable: Ranks whose row holds NaN or infinity, and why: each used up one of the f.
        seed: `randeigen.aggregate` of the gathered rows with this seed comes to the same verdict.
        f: How many ranks were assumed corrupt.
        distance_to_mean: How far the answer is from the plain mean of all usable ranks; inf where skipped.
        skipped: Whether more ranks were unusable than f, so that every rank's numbers are NaN now.
        broken: Ranks whose columns of the mean do not add up, with `check=True`.
    """

    weights: Weights
    bias_bound: float
    verdict: Verdict | None
    unusable: Mapping[int, str]
    seed: int
    f: int
    distance_to_mean: float = math.nan
    skipped: bool = False
    broken: tuple[int, ...] = ()

    @property
    def kept(self) -> Mask:
        """(n,) whether a rank has any weight."""
        return np.asarray(self.weights > 0)

    @property
    def left_out(self) -> list[int]:
        """The ranks of weight 0."""
        left_out: list[int] = np.flatnonzero(self.weights == 0).tolist()
        return left_out
