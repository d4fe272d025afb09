"""Sentences without their padding: where each token is, and which sentences attention pads together."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GROUP_LENGTHS = (12, 24)  # most tokens of a sentence of the first groups: half of SST-2's phrases have 10

Ints: TypeAlias = NDArray[np.int64]


class Group(NamedTuple):
    """Sentences of like lengths, which attention pads to the longest of them."""

    sentences: int
    length: int
    bias: Tensor  # (sentences, 1, 1, length) added to the scores: 0, or next to minus infinity for padding

    @staticmethod
    def of(mask: Tensor) -> Group:
        """Of sentences whose (sentences, length) tokens are no padding where the mask is True."""
        bias = torch.where(mask, 0.0, torch.finfo(torch.float32).min)[:, None, None]
        return Group(len(mask), mask.shape[1], bias)


class Packing(NamedTuple):
    """The tokens of (clients, sentences, length) ids side by side, `width` slots for each client.

    Attention works on *cells*: the tokens of all groups with their padding, one group after the other.
    """

    ids: Tensor  # (clients, width)
    positions: Tensor  # (clients, width) in the sentence
    used: Tensor  # (clients · width, 1) 1, or 0 for a slot that holds no token
    first: Tensor  # (clients · sentences,) the slots of the sentences' first tokens
    slot_of: Tensor  # (cells,) the slot of each cell; any for padding
    real: Tensor  # (cells, 1) 1, or 0 for padding
    cell_of: Tensor  # (clients · width,) the cell of each slot; any where no token is
    groups: list[Group]
    longest: int  # tokens of a sentence, padding inside it included

    @staticmethod
    def of(tokens: Tensor, pad: int) -> Packing:
        """The first token of a sentence counts as one even where it is padding."""
        given = tokens.cpu().numpy()
        real = given != pad
        real[..., 0] = True
        lengths = real.sum(2)
        totals = lengths.sum(1)
        clients, width = len(given), int(totals.max())
        owner, sentence, position = np.nonzero(real)
        unused = np.arange(clients) * width - (totals.cumsum() - totals)  # slots of the clients before
        slot = np.arange(len(owner)) + np.repeat(unused, totals)
        # The id, its position, whether there is one, and its cell.
        by_slot = np.full((4, clients * width), [[pad], [0], [0], [0]])
        by_slot[:3, slot] = np.stack([given[owner, sentence, position], position, np.ones_like(position)])
        first = (lengths.cumsum(1) - lengths + width * np.arange(clients)[:, None]).ravel()
        slots, masks = [], []
        for members, length in _by_length(lengths.ravel()):
            masks.append(np.arange(length) < lengths.ravel()[members, None])
            slots.append((first[members, None] + np.arange(length) * masks[-1]).ravel())
        slot_of, inside = np.concatenate(slots), np.concatenate([mask.ravel() for mask in masks])
        by_slot[3, slot_of[inside]] = np.flatnonzero(inside)

        def on_device(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(array).to(tokens.device)

        ids, positions, used, cell_of = on_device(by_slot)
        return Packing(
            ids.view(clients, width),
            positions.view(clients, width),
            used.float()[:, None],
            on_device(first),
            on_device(slot_of),
            on_device(inside).float()[:, None],
            cell_of,
            [Group.of(on_device(mask)) for mask in masks],
            int(position.max()) + 1,
        )


def _by_length(lengths: Ints) -> list[tuple[Ints, int]]:
    """Sentences of like lengths together, and the longest of each group."""
    order = np.argsort(lengths, kind="stable")
    groups = np.split(order, np.searchsorted(lengths[order], GROUP_LENGTHS, side="right"))
    return [(members, int(lengths[members].max())) for members in groups if members.size]
