"""FILTERING and NO-REGRET as their paper runs them: every 1,000 columns judged on their own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from randeigen.backend.arrays import to_host_float64
from randeigen.errors import BadFraction
from randeigen.geometry.gram import GramAccumulator
from randeigen.rules.base import Facts, TableRule
from randeigen.rules.randeigen import RandEigen
from randeigen.rules.zhu import EXPANSION, check_variance_bound, no_regret_weights, zhu_filter_weights
from randeigen.types import Array, Block, Geometry, Verdict

DEFAULT_CHUNK_COLUMNS = 1000
ZHU_PAPER = "Zhu et al. 2023, arXiv:2205.11765"
ADDS_UP = "shifts within sqrt(expansion)·sigma in every chunk (HIDRA): they add up to sqrt(d/chunk) of one"


@dataclass(frozen=True)
class SeededVerdict(Verdict):
    """A verdict with coins for what is judged later, chunk by chunk."""

    seed: int = 0


@dataclass(frozen=True)
class ChunkedRule(TableRule):
    """A table rule run on each `chunk` consecutive columns. sigma: the largest honest variance in a chunk."""

    sigma: float = math.nan
    chunk: int = DEFAULT_CHUNK_COLUMNS
    expansion: float = field(default=EXPANSION, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse a missing promise and chunks of nothing."""
        super().__post_init__()
        check_variance_bound(self, self.sigma, self.expansion)
        if isinstance(self.chunk, bool) or not isinstance(self.chunk, (int, np.integer)) or self.chunk < 1:
            raise BadFraction(f"chunk={self.chunk!r}; give how many columns are judged together, from 1.")

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> SeededVerdict:
        """RandEigen's judgement of the whole rows: the mean that the certificate leans on."""
        verdict = RandEigen(f=f).weigh(geometry, f, rng)
        note = (
            f"judged in chunks of {self.chunk} columns, each with weights of its own; the weights here are "
            "RandEigen's, and the certificate leans on their mean"
        )
        seed = int(rng.integers(2**63))
        return SeededVerdict(verdict.weights, verdict.stop, notes=(note,), seed=seed)

    def merge(self, columns: slice, block: Block, f: int, verdict: Verdict) -> Any:
        """(b,) chunk by chunk; chunks are counted from column 0, so blocks should not cut them."""
        assert isinstance(verdict, SeededVerdict)
        answer = np.empty(block.shape[1])
        starts = range(columns.start - columns.start % self.chunk, columns.stop, self.chunk)
        for start in starts:
            at = slice(max(start - columns.start, 0), start - columns.start + self.chunk)
            piece = to_host_float64(block[:, at])
            weights = self.judge(_table(piece, [verdict.seed, start]), f)
            live = np.flatnonzero(weights)  # the others are left out, not multiplied
            answer[at] = weights[live] @ piece[live]
        return answer.astype(block.dtype) if isinstance(block, np.ndarray) else block.new_tensor(answer)

    def judge(self, geometry: Geometry, f: int) -> Array:
        """(n,) the weights in one chunk."""
        raise NotImplementedError


@dataclass(frozen=True)
class ChunkedFiltering(ChunkedRule):
    """FILTERING (Zhu et al. 2023, Algorithm 3) per `chunk` columns, until λ ≤ sqrt(expansion)·sigma in each.

    As the paper and its successors run it, to be compared with; `ZhuFiltering` judges whole rows. The
    weighted covariance, as in Zhu's own code. Cost: n²·d, and up to 2f rounds of n² for each of d/chunk
    chunks. Breaks down at half the rows if sigma is right. Blind to HIDRA: a shift in every chunk that stays
    below the threshold, which adds up to sqrt(d/chunk) times the bias of one.
    """

    facts: ClassVar[Facts] = Facts(ZHU_PAPER, "n²·d + f·n²·d/chunk", "1/2, if sigma is right", ADDS_UP)

    def judge(self, geometry: Geometry, f: int) -> Array:
        """Algorithm 3 on one chunk."""
        return zhu_filter_weights(geometry, 2 * f, self.sigma, self.expansion).weights


@dataclass(frozen=True)
class ChunkedNoRegret(ChunkedRule):
    """NO-REGRET (Zhu et al. 2023, Algorithm 2) per `chunk` columns: Krum's pre-filter, then capped weights.

    As the paper and its successors run it, to be compared with; `NoRegret` judges whole rows. Cost: n²·d,
    and up to 2f rounds of n² for each of d/chunk chunks. Breaks down at half the rows if sigma is right.
    Blind to HIDRA, as `ChunkedFiltering` is.
    """

    facts: ClassVar[Facts] = Facts(ZHU_PAPER, "n²·d + f·n²·d/chunk", "1/2, if sigma is right", ADDS_UP)

    def judge(self, geometry: Geometry, f: int) -> Array:
        """Algorithm 2 on one chunk."""
        return no_regret_weights(geometry, f, self.sigma, self.expansion).weights


def _table(piece: Array, key: list[int]) -> Geometry:
    """The chunk's own geometry, measured with the care that hostile numbers need."""
    tally = GramAccumulator(piece.shape[0], int(np.random.default_rng(key).integers(2**63)))
    with np.errstate(all="ignore"):
        tally.add(slice(0, piece.shape[1]), piece)
        return tally.geometry()
