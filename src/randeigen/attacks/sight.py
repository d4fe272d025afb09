"""What an attacker who crafts rows may look at, and the attacks that need more than honest rows.

A crafting attack of the laboratory says in `sees` what it looks at and is shown nothing else. Rows are torch
tensors on whatever device the round runs; only their methods are used, so nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.random import Generator

from randeigen.attacks.adaptive import Hidden
from randeigen.attacks.craft import Attack
from randeigen.attacks.omniscient import Search
from randeigen.attacks.spectral import PUBLISHED_HIDRA
from randeigen.types import Weights

Tensor: TypeAlias = Any  # torch.Tensor
TINY = 1e-30


@dataclass(frozen=True, eq=False)
class Sight:
    """One round as a perfect spy would see it: u_i = w - w_i for everyone, before anybody lied."""

    m: int  # malicious clients
    n: int  # clients in all
    honest: Tensor = None  # (n - m, d) what honest clients send
    own: Tensor = None  # (m, d) what the malicious ones would have sent
    weights: Tensor = None  # (d,) the global model sent out
    sizes: tuple[int, ...] = ()  # of the model's tensors, in order
    sigma: float = math.nan  # the variance a thresholding defence takes for honest
    weigh: Callable[[Tensor], Weights] | None = None  # the server's rule with other coins: rows to weights

    @property
    def eps(self) -> float:
        """The fraction that lies."""
        return self.m / self.n

    def only(self, sees: tuple[str, ...]) -> Sight:
        """The same with everything else hidden; the model and its form are public."""
        hidden = {"honest", "own", "sigma", "weigh"} - set(sees)
        blank: dict[str, Any] = {"honest": None, "own": None, "sigma": math.nan, "weigh": None}
        return replace(self, **{name: blank[name] for name in hidden})


class Crafting(Protocol):
    """An attack on one round, all of which it may have seen."""

    @property
    def sees(self) -> tuple[str, ...]:
        """The fields of `Sight` it looks at."""

    def craft(self, sight: Sight, rng: Generator) -> Tensor:
        """(m, d) what the malicious clients send instead."""


@dataclass(frozen=True)
class Crafted:
    """An attack on rows alone, brought into the laboratory."""

    attack: Attack
    knows: str = "honest"  # or "own": then its own clients' rows are all the honest rows it has seen

    @property
    def sees(self) -> tuple[str, ...]:
        """Honest rows, everyone's or its own."""
        return (self.knows,)

    def craft(self, sight: Sight, rng: Generator) -> Tensor:
        """(m, d) corrupt rows."""
        seen = getattr(sight, self.knows)
        rows = self.attack(seen.cpu().numpy(), sight.m, rng)
        return seen.new_tensor(rows)


@dataclass(frozen=True)
class TMA:
    """Beyond every coordinate's honest range of *weights*, against its direction (Fang et al., 2020).

    All send one vector, off by a share of the weight itself: a gross outlier (attacks.md 4.4).
    """

    b: float = 1.5
    sees = ("honest",)

    def craft(self, sight: Sight, rng: Generator) -> Tensor:
        """(m, d) corrupt rows."""
        rows, w = sight.honest, sight.weights
        growing = rows.sum(0) < 0
        # Honest models are w - u: the least of them belongs to the largest u.
        edge = (w - rows.amax(0)).where(growing, w - rows.amin(0))
        factor = rows.new_tensor(rng.uniform(1, self.b, len(w)))
        shrink = growing == (edge > 0)
        return (w - (edge / factor).where(shrink, edge * factor)).expand(sight.m, -1)


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

    def craft(self, sight: Sight, rng: Generator) -> Tensor:
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
        against = c * chunks / lengths.clamp(min=TINY)  # a chunk of zeros is left alone
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


@dataclass(frozen=True)
class Adaptive:
    """The attacker who has read the server's rule and tries out, each round, what biases it most."""

    tries: int = 8  # distances for each direction
    sees = ("honest", "weigh")

    def craft(self, sight: Sight, rng: Generator) -> Tensor:
        """(m, d) corrupt rows."""
        assert sight.weigh is not None
        distances = tuple(float(t) for t in np.geomspace(0.5, 16, self.tries))
        return Crafted(Hidden(sight.weigh, distances, refine=1)).craft(sight, rng)


@dataclass(frozen=True)
class Searching:
    """The same by CMA-ES in every round: at most `budget` runs of the server's rule."""

    budget: int = 200
    sees = ("honest", "weigh")

    def craft(self, sight: Sight, rng: Generator) -> Tensor:
        """(m, d) corrupt rows."""
        assert sight.weigh is not None
        return Crafted(Search(sight.weigh, self.budget)).craft(sight, rng)
