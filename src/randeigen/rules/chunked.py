"""FILTERING and NO-REGRET as their paper runs them: every 1,000 columns have weights of their own."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from randeigen.backend.batched import GeometryBatch, Numbers, beside
from randeigen.errors import BadParameter
from randeigen.rules.base import NUMBER, Facts, Rule, is_count
from randeigen.rules.zhu import EXPANSION, check_variance_bound, no_regret_weights, zhu_filter_weights
from randeigen.rules.zhu_batched import filter_weights, no_regret_weights_of_each
from randeigen.types import Array, ChunkedWeights, Decision, Geometry, Index

DEFAULT_CHUNK_COLUMNS = 1000
ZHU_PAPER = "Zhu et al. 2023, arXiv:2205.11765"
ADDS_UP = "shifts within sqrt(expansion)·sigma in every chunk (HIDRA): they add up to sqrt(d/chunk) of one"


@dataclass(frozen=True)
class ChunkedRule(Rule):
    """A filter run on each `chunk` consecutive columns. sigma: the largest honest variance in a chunk.

    Or one for each chunk, which nobody who aggregates can know. `adaptive` asks the laboratory for it: before
    an attack replaces any update it takes each chunk's top variance over all honest ones (an oracle that the
    authors of HIDRA allow this defence).
    """

    sigma: float | Sequence[float] = math.nan
    chunk: int = DEFAULT_CHUNK_COLUMNS
    expansion: float = field(default=EXPANSION, kw_only=True)
    adaptive: bool = field(default=False, kw_only=True)
    family: ClassVar[str] = "Spectral filters"
    by_column: ClassVar[bool] = True
    known_variance: ClassVar[str | None] = "sigma"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "sigma", self._checked(self.sigma))
        for each in self.sigma if isinstance(self.sigma, tuple) else (self.sigma,):
            check_variance_bound(self, each, self.expansion)
        if not is_count(self.chunk):
            raise BadParameter(f"chunk={self.chunk!r}; give how many columns are judged together, from 1.")

    def _checked(self, sigma: Any) -> float | tuple[float, ...]:
        """One number or several, each of which fits a float."""
        one = isinstance(sigma, NUMBER) and not isinstance(sigma, bool)
        with suppress(TypeError, ValueError, OverflowError):
            numbers = tuple(float(each) for each in ((sigma,) if one else sigma))
            if numbers and not isinstance(sigma, str):
                return sigma if one else numbers
        raise BadParameter(
            f"{type(self).__name__} with a sigma of type {type(sigma).__name__}, no number or too large for "
            "one; give a variance, or one for each chunk."
        )

    def block_multiple(self) -> int:
        return self.chunk

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        note = (
            f"judged in chunks of {self.chunk} columns, each with weights of its own; the weights here are "
            "RandEigen's, and the certificate leans on their mean"
        )
        if self.adaptive and not isinstance(self.sigma, tuple):
            raise BadParameter(
                f"{type(self).__name__} is adaptive, but sigma={self.sigma}; give one variance for each "
                f"{self.chunk} columns, or use the laboratory, which knows the honest updates."
            )
        plan = ChunkedWeights(
            self.chunk,
            int(rng.integers(2**63)),
            lambda geometry, chunk: self.weights_in_chunk(geometry, f, float(self._sigmas(chunk))),
            lambda batch, chunks: self.weights_in_chunks(
                batch, f, beside(self._sigmas(chunks), batch.prior_weights)
            ),
        )
        return Decision(None, plan, notes=(note,), with_rounds=False)

    def _sigmas(self, chunks: int | Index) -> Array:
        """The variance that these chunks are allowed."""
        if not isinstance(self.sigma, tuple):
            return np.full(np.shape(chunks), float(self.sigma))  # type: ignore[arg-type]
        if np.max(chunks) >= len(self.sigma):
            raise BadParameter(
                f"sigma has {len(self.sigma)} variances, but the rows have more chunks of {self.chunk} "
                "columns; give one for each."
            )
        return np.asarray(self.sigma)[chunks]

    @abstractmethod
    def weights_in_chunk(self, geometry: Geometry, f: int, sigma: float) -> Array:
        """(n,) the weights in one chunk, whose own geometry this is."""

    @abstractmethod
    def weights_in_chunks(self, batch: GeometryBatch, f: int, sigma: Numbers) -> Numbers:
        """(p, n) the same of p chunks at once."""


@dataclass(frozen=True)
class ChunkedFiltering(ChunkedRule):
    """FILTERING (Zhu et al. 2023, Algorithm 3) per `chunk` columns, until λ ≤ sqrt(expansion)·sigma in each.

    As the paper and its successors run it, to be compared with; `ZhuFiltering` takes whole rows. The
    weighted covariance, as in Zhu's own code. Cost: n²·d, and up to 2f rounds of n² for each of d/chunk
    chunks. Breaks down at half the rows if sigma is right. Blind to HIDRA: a shift in every chunk that stays
    below the threshold, which adds up to sqrt(d/chunk) times the bias of one.
    """

    name: ClassVar[str] = "chunked-filtering"
    facts: ClassVar[Facts] = Facts(ZHU_PAPER, "n²·d + f·n²·d/chunk", "1/2, if sigma is right", ADDS_UP)

    def weights_in_chunk(self, geometry: Geometry, f: int, sigma: float) -> Array:
        return zhu_filter_weights(geometry, 2 * f, sigma, self.expansion).weights

    def weights_in_chunks(self, batch: GeometryBatch, f: int, sigma: Numbers) -> Numbers:
        return filter_weights(batch, 2 * f, sigma, self.expansion)


@dataclass(frozen=True)
class ChunkedNoRegret(ChunkedRule):
    """NO-REGRET (Zhu et al. 2023, Algorithm 2) per `chunk` columns: Krum's pre-filter, then capped weights.

    As the paper and its successors run it, to be compared with; `NoRegret` takes whole rows. Cost: n²·d,
    and up to 2f rounds of n² for each of d/chunk chunks. Breaks down at half the rows if sigma is right.
    Blind to HIDRA, as `ChunkedFiltering` is.
    """

    name: ClassVar[str] = "chunked-no-regret"
    facts: ClassVar[Facts] = Facts(ZHU_PAPER, "n²·d + f·n²·d/chunk", "1/2, if sigma is right", ADDS_UP)

    def weights_in_chunk(self, geometry: Geometry, f: int, sigma: float) -> Array:
        return no_regret_weights(geometry, f, sigma, self.expansion).weights

    def weights_in_chunks(self, batch: GeometryBatch, f: int, sigma: Numbers) -> Numbers:
        return no_regret_weights_of_each(batch, f, sigma, self.expansion)
