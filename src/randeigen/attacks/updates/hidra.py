"""HIDRA, whole and by chunks, and the attack on DnC."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from randeigen.attacks.base import AttackerView, Tensor
from randeigen.attacks.directions import copies, top_deviation, unit
from randeigen.types import Array

PUBLISHED_HIDRA = math.sqrt(20) - 1  # the variance that a test at sqrt(20)·sigma leaves to the attacker
SHIPPED_HIDRA = 0.5  # what the RandEigen artefact runs instead, 2.6 times weaker


@dataclass(frozen=True)
class HIDRA:
    """mu - sqrt(F·lambda1/(eps² + (1-eps)²·eps))·mu/|mu|, whole vector (Choudhary et al., S&P 2024)."""

    F: float = PUBLISHED_HIDRA

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
        mean, eps = honest.mean(axis=0), m / (m + len(honest))
        c = math.sqrt(self.F / (eps**2 + (1 - eps) ** 2 * eps)) * top_deviation(honest) if m else 0.0
        return copies(mean - c * unit(mean), m, honest)


@dataclass(frozen=True)
class AntiDnC:
    """A decoy at mu + 2000·a·r takes the eye, the rest hide at mu + 40·a·r', r' ⟂ r (HiDRA, appendix).

    With these published lengths the rest still tilt the widest direction by enough to be dropped by a DnC
    that drops m rows: they stand rest²/decoy·a·(m-1)/n further out along it. A smaller `rest` hides better.
    """

    decoy: float = 2000.0
    rest: float = 40.0

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) corrupt rows."""
        mean = honest.mean(axis=0)
        a = np.linalg.norm(honest - mean, axis=1).mean() or top_deviation(honest)
        mask = rng.integers(2, size=honest.shape[1])
        rows = copies(mean + self.rest * a * unit(np.asarray(1.0 - mask)), m, honest)
        rows[:1] = mean + self.decoy * a * unit(np.asarray(1.0 * mask))
        return rows


SMALLEST_NORM = 1e-30


@dataclass(frozen=True)
class ChunkedHIDRA:
    """mu - sqrt(F·sigma/(eps² + (1-eps)²·eps))·mu/|mu| in every chunk of every tensor (Choudhary et al.).

    `sigma` is what the defence takes for the honest variance of a chunk: the task's, unless given. With
    `adaptive` it is each chunk's own widest honest variance. `partial`: mu from the liars' own rows alone.
    `tensors=False` cuts the whole row instead of every tensor, as `ChunkedFiltering` does: in a model of few
    thousand numbers the two differ, and only what fits the defence's own chunks stays below its threshold.
    """

    F: float = PUBLISHED_HIDRA
    sigma: float = 0.0  # 0: the task's
    partial: bool = False
    adaptive: bool = False
    chunk: int = 1000
    tensors: bool = True

    @property
    def sees(self) -> tuple[str, ...]:
        """All rows, or its own; and the defence's threshold, which is public."""
        return ("own", "sigma") if self.partial else ("honest", "own", "sigma")

    def craft(self, sight: AttackerView, rng: Generator) -> Tensor:
        """(m, d) corrupt rows."""
        import torch

        rows = sight.own if self.partial else torch.cat([sight.honest, sight.own])
        mean = rows.mean(0, keepdim=True)
        sizes = sight.sizes if self.tensors else (sum(sight.sizes),)
        chunks = self._chunks(mean, sizes)[:, 0]
        allowed = chunks.new_tensor(self.sigma or sight.sigma)
        if self.adaptive:
            apart = self._chunks(rows - mean, sizes)
            inner = (apart @ apart.transpose(1, 2) / len(rows)).double()
            allowed = torch.linalg.eigvalsh(inner)[:, -1:].clamp(min=0).to(rows.dtype)
        c = (self.F * allowed / (sight.eps**2 + (1 - sight.eps) ** 2 * sight.eps)) ** 0.5
        lengths = (chunks * chunks).sum(1, keepdim=True) ** 0.5
        against = c * chunks / lengths.clamp(min=SMALLEST_NORM)  # a chunk of zeros is left alone
        return (mean[0] - self._joined(against, sizes)).expand(sight.m, -1)

    def _chunks(self, rows: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """(chunks, rows, chunk): every tensor cut from its start, the last piece padded with zeros."""
        counts = [-(-size // self.chunk) for size in sizes]
        room = rows.new_zeros((len(rows), sum(counts) * self.chunk))
        for piece, (start, end) in zip(rows.split(sizes, 1), self._places(sizes), strict=True):
            room[:, start:end] = piece
        return room.view(len(rows), -1, self.chunk).transpose(0, 1)

    def _joined(self, chunks: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """(d,) back in the order of the rows."""
        room = chunks.reshape(-1)
        out = room.new_zeros(sum(sizes))
        for piece, (start, end) in zip(out.split(sizes), self._places(sizes), strict=True):
            piece.copy_(room[start:end])
        return out

    def _places(self, sizes: tuple[int, ...]) -> list[tuple[int, int]]:
        """Where each tensor lies among the padded chunks."""
        starts = np.cumsum([0, *(-(-size // self.chunk) * self.chunk for size in sizes)])
        return [(int(start), int(start) + size) for start, size in zip(starts, sizes, strict=False)]
