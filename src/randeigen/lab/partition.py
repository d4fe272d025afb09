"""Who holds what: the training set split among clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from randeigen.errors import BadFraction

Index: TypeAlias = NDArray[np.int64]


class Shares(NamedTuple):
    """Each client's images as places in the training set; lines are padded with 0 beyond their size."""

    places: Index  # (clients, largest size)
    sizes: Index  # (clients,)

    def of(self, clients: Sequence[int] | Index) -> Shares:
        """Those of some clients."""
        picked = np.asarray(clients, dtype=np.int64)
        return Shares(self.places[picked], self.sizes[picked])


def shares(parts: Sequence[Index]) -> Shares:
    """From one array of places per client."""
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    places = np.zeros((len(parts), int(sizes.max())), dtype=np.int64)
    for line, part in zip(places, parts, strict=True):
        line[: len(part)] = part
    return Shares(places, sizes)


def iid(labels: Index, clients: int, rng: Generator) -> Shares:
    """A uniformly random split into equal parts (sizes differ by one where they must)."""
    _enough(len(labels), clients)
    return shares(np.array_split(rng.permutation(len(labels)), clients))


def dirichlet(labels: Index, clients: int, alpha: float, rng: Generator) -> Shares:
    """Each class is dealt out in proportions drawn from Dirichlet(alpha): sizes and mixtures are uneven.

    The smaller alpha, the fewer classes a client sees. Every image is dealt once. A client that got none
    is given one by the richest.
    """
    _enough(len(labels), clients)
    if not alpha > 0:
        raise BadFraction(
            f"alpha={alpha}; give a positive number, such as 0.3 (uneven) or 100 (almost even)."
        )
    parts: list[list[Index]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        places = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1]
        for part, piece in zip(
            parts, np.split(places, np.round(cuts * len(places)).astype(int)), strict=True
        ):
            part.append(piece)
    held = [np.concatenate(part) for part in parts]
    for poor in range(clients):
        if not len(held[poor]):
            rich = int(np.argmax([len(part) for part in held]))
            held[poor], held[rich] = held[rich][-1:], held[rich][:-1]
    return shares(held)


def _enough(images: int, clients: int) -> None:
    if not 1 <= clients <= images:
        raise BadFraction(f"{clients} clients cannot share {images} images; each needs at least one.")
