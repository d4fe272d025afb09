"""HIDRA, whole and by chunks, and the attack on DnC."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from randeigen.attacks.base import ALL_UPDATES, OWN_UPDATES, AttackerView, RowsAttack, Tensor, declare
from randeigen.attacks.directions import copies, top_deviation, unit
from randeigen.types import Array

PUBLISHED_F = math.sqrt(20) - 1  # the variance that a test at sqrt(20)·sigma leaves to the attacker
ARTEFACT_F = 0.5  # what the RandEigen artefact runs instead, 2.6 times weaker


@declare(
    "hidra-whole",
    "update",
    "untargeted",
    knows=ALL_UPDATES,
    does="hidra on the whole vector, sigma its own",
    paper="Choudhary et al., S&P 2024",
)
@dataclass(frozen=True)
class HIDRA(RowsAttack):
    """mu - sqrt(F·lambda1/(eps² + (1-eps)²·eps))·mu/|mu|, whole vector (Choudhary et al., S&P 2024)."""

    F: float = PUBLISHED_F

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        mean, eps = honest.mean(axis=0), m / (m + len(honest))
        c = math.sqrt(self.F / (eps**2 + (1 - eps) ** 2 * eps)) * top_deviation(honest) if m else 0.0
        return copies(mean - c * unit(mean), m, honest)


@declare(
    "anti-dnc",
    "update",
    "untargeted",
    knows=ALL_UPDATES,
    does="a decoy owns the top direction that DnC looks along",
    paper="Choudhary et al., S&P 2024",
)
@dataclass(frozen=True)
class AntiDnC(RowsAttack):
    """One decoy at mu + 2000·a·r makes the top direction, the rest hide at mu + 40·a·r', r' ⟂ r (appendix).

    With these published distances the rest still tilt the top direction by enough to be dropped by a DnC
    that drops m rows: their projections on it are larger by rest²/decoy·a·(m-1)/n. A smaller `rest` hides
    better.
    """

    decoy: float = 2000.0
    rest: float = 40.0

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        mean = honest.mean(axis=0)
        a = np.linalg.norm(honest - mean, axis=1).mean() or top_deviation(honest)
        mask = rng.integers(2, size=honest.shape[1])
        rows = copies(mean + self.rest * a * unit(np.asarray(1.0 - mask)), m, honest)
        rows[:1] = mean + self.decoy * a * unit(np.asarray(1.0 * mask))
        return rows


MIN_CHUNK_NORM = 1e-30  # avoids 0 / 0
MAX_BLOCK_COLUMNS = 1 << 22  # of the rows handled at once


@declare(
    "hidra",
    "update",
    "untargeted",
    knows=ALL_UPDATES,
    does="against the mean, as far as sigma lets it, per 1,000 coordinates",
    paper="Choudhary et al., S&P 2024",
)
@declare(
    "hidra-partial",
    "update",
    "untargeted",
    knows=OWN_UPDATES,
    does="hidra, knowing its own clients only",
    paper="Choudhary et al., S&P 2024",
    partial=True,
)
@declare(
    "hidra-adaptive",
    "update",
    "untargeted",
    knows=ALL_UPDATES,
    does="hidra, sigma each chunk's own",
    paper="Choudhary et al., S&P 2024",
    adaptive=True,
)
@dataclass(frozen=True)
class ChunkedHIDRA:
    """mu - sqrt(F·sigma/(eps² + (1-eps)²·eps))·mu/|mu| in every chunk of every tensor (Choudhary et al.).

    `sigma` is what the defence takes for the honest variance of a chunk: the task's, unless given. With
    `adaptive` it is each chunk's own top honest variance. `partial`: mu from the attackers' own rows alone.
    `tensors=False` cuts the whole row instead of every tensor, as `ChunkedFiltering` does: in a model of few
    thousand numbers the two differ, and only what fits the defence's own chunks stays below its threshold.
    """

    F: float = PUBLISHED_F
    sigma: float = 0.0  # 0: the task's
    partial: bool = False
    adaptive: bool = False
    chunk: int = 1000
    tensors: bool = True

    @property
    def sees(self) -> tuple[str, ...]:
        """Honest rows, or its own; and the defence's threshold, which is public."""
        return ("own", "sigma") if self.partial else ("honest", "own", "sigma")

    def craft(self, view: AttackerView, rng: Generator) -> Tensor:
        import torch

        def rows(columns: slice) -> Tensor:  # not all at once: those of a large model fill the memory
            sources = [view.own] if self.partial else [view.honest, view.own]
            return torch.cat([source[:, columns] for source in sources])

        d = view.own.shape[1]
        blocks = [slice(first, first + MAX_BLOCK_COLUMNS) for first in range(0, d, MAX_BLOCK_COLUMNS)]
        crafted = torch.cat([rows(columns).mean(0) for columns in blocks])
        for columns in self._blocks(view.sizes):
            centred = rows(columns) - crafted[columns] if self.adaptive else None
            crafted[columns] -= self._distance(crafted[None, columns], centred, view)
        return crafted.expand(view.m, -1)

    def _distance(self, mean: Tensor, deviations: Tensor | None, view: AttackerView) -> Tensor:
        """(columns,) how far from the mean the attackers go in these columns, which begin with a chunk."""
        import torch

        chunks = self._chunks(mean)[:, 0]
        allowed = chunks.new_tensor(self.sigma or view.sigma)
        if deviations is not None:
            centred = self._chunks(deviations)
            gram = (centred @ centred.transpose(1, 2) / len(deviations)).double()
            try:
                values = torch.linalg.eigvalsh(gram)
            except RuntimeError:  # a GPU's solver gives up on matrices that a host's does not
                values = torch.linalg.eigvalsh(gram.cpu()).to(gram.device)
            allowed = values[:, -1:].clamp(min=0).to(mean.dtype)
        c = (self.F * allowed / (view.eps**2 + (1 - view.eps) ** 2 * view.eps)) ** 0.5
        norms = (chunks * chunks).sum(1, keepdim=True) ** 0.5
        against = c * chunks / norms.clamp(min=MIN_CHUNK_NORM)  # a chunk of zeros stays as it is
        return against.reshape(-1)[: mean.shape[1]]

    def _chunks(self, rows: Tensor) -> Tensor:
        """(chunks, rows, chunk): the rows cut from their start, the last piece padded with zeros."""
        count = -(-rows.shape[1] // self.chunk)
        padded = rows.new_zeros((len(rows), count * self.chunk))
        padded[:, : rows.shape[1]] = rows
        return padded.view(len(rows), count, self.chunk).transpose(0, 1)

    def _blocks(self, sizes: tuple[int, ...]) -> Iterator[slice]:
        """Columns that are handled together: whole chunks, those of one tensor unless tensors are ignored."""
        start, step = 0, self.chunk * max(1, MAX_BLOCK_COLUMNS // self.chunk)
        for size in sizes if self.tensors else (sum(sizes),):
            for first in range(start, start + size, step):
                yield slice(first, min(first + step, start + size))
            start += size
