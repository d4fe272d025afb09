"""How the training set is split among the clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from randeigen.errors import BadParameter

Index: TypeAlias = NDArray[np.int64]


class Shares(NamedTuple):
    """Each client's images as indices into the training set; rows are padded with 0 beyond their size."""

    indices: Index  # (clients, largest size)
    sizes: Index  # (clients,)

    def of(self, clients: Sequence[int] | Index) -> Shares:
        """The shares of some clients."""
        selected = np.asarray(clients, dtype=np.int64)
        return Shares(self.indices[selected], self.sizes[selected])


def shares(parts: Sequence[Index]) -> Shares:
    """From one array of indices per client."""
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    indices = np.zeros((len(parts), int(sizes.max())), dtype=np.int64)
    for row, part in zip(indices, parts, strict=True):
        row[: len(part)] = part
    return Shares(indices, sizes)


def iid(labels: Index, clients: int, rng: Generator) -> Shares:
    """A uniformly random split into equal parts (sizes differ by one where they must)."""
    check_enough(len(labels), clients)
    return shares(np.array_split(rng.permutation(len(labels)), clients))


def dirichlet(labels: Index, clients: int, alpha: float, rng: Generator) -> Shares:
    """Each class is split in proportions drawn from Dirichlet(alpha): sizes and mixtures are uneven.

    The smaller alpha, the fewer classes a client has. Every image goes to one client. A client without any
    image gets one from the client with the most.
    """
    check_enough(len(labels), clients)
    if not alpha > 0:
        raise BadParameter(
            f"alpha={alpha}; give a positive number, such as 0.3 (uneven) or 100 (almost even)."
        )
    pieces: list[list[Index]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        indices = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1]
        split = np.split(indices, np.round(cuts * len(indices)).astype(int))
        for own, piece in zip(pieces, split, strict=True):
            own.append(piece)
    parts = [np.concatenate(own) for own in pieces]
    for empty in range(clients):
        if not len(parts[empty]):
            largest = int(np.argmax([len(part) for part in parts]))
            parts[empty], parts[largest] = parts[largest][-1:], parts[largest][:-1]
    return shares(parts)


def check_enough(images: int, clients: int) -> None:
    """Refuse more clients than there are images."""
    if not 1 <= clients <= images:
        raise BadParameter(f"{clients} clients cannot share {images} images; each needs at least one.")
