"""Sentences without their padding: where each token is, and which sentences attention pads together."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

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
        """Of sentences whose (sentences, 1, length) tokens are no padding where the mask is True."""
        bias = torch.where(mask, 0.0, torch.finfo(torch.float32).min)[:, None]
        return Group(len(mask), mask.shape[-1], bias)


class Packing(NamedTuple):
    """The tokens of (clients, sentences, length) ids side by side, `width` slots for each client.

    A *line* is what one head has of one slot. Attention works on *cells*, the lines of padded sentences,
    those of a head side by side: then its products need no copies.
    """

    ids: Tensor  # (clients, width)
    positions: Tensor  # (clients, width) in the sentence
    first: Tensor  # (clients · sentences,) the slots of the sentences' first tokens
    line_of: Tensor  # (cells,) the line of each cell; any for padding
    real: Tensor  # (cells, 1) 1, or 0 for padding
    cell_of: Tensor  # (lines,) the cell of each line; any where a slot holds no token
    used: Tensor  # (lines, 1) 1, or 0 where a slot holds no token
    groups: list[Group]

    @staticmethod
    def of(tokens: Tensor, pad: int, heads: int) -> Packing:
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
        # The id, its position, whether there is one, the cell of its first head, and cells to the next head.
        by_slot = np.full((5, clients * width), [[pad], [0], [0], [0], [0]])
        by_slot[:3, slot] = np.stack([given[owner, sentence, position], position, np.ones_like(position)])
        first = (lengths.cumsum(1) - lengths + width * np.arange(clients)[:, None]).ravel()
        device, cells, lines, masks = tokens.device, 0, [], []
        for members, length in _by_length(lengths.ravel()):
            offsets = np.arange(length)
            inside = offsets < lengths.ravel()[members, None]
            slots = first[members, None] + offsets * inside
            begins = cells + np.arange(len(members))[:, None] * heads * length + offsets
            by_slot[3, slots[inside]], by_slot[4, slots[inside]] = begins[inside], length
            lines.append(torch.from_numpy(slots).to(device)[:, None])
            masks.append(torch.from_numpy(inside).to(device)[:, None])
            cells += len(members) * heads * length
        head = torch.arange(heads, device=device)
        ids, positions, used, begin, step = torch.from_numpy(by_slot).to(device)
        return Packing(
            ids.view(clients, width),
            positions.view(clients, width),
            torch.from_numpy(first).to(device),
            torch.cat([(slots * heads + head[:, None]).flatten() for slots in lines]),
            torch.cat([mask.expand(-1, heads, -1).flatten() for mask in masks]).float()[:, None],
            (begin[:, None] + step[:, None] * head).flatten(),
            used.float()[:, None].expand(-1, heads).reshape(-1, 1),
            [Group.of(mask) for mask in masks],
        )


def _by_length(lengths: Ints) -> list[tuple[Ints, int]]:
    """Sentences of like lengths together, and the longest of each group."""
    order = np.argsort(lengths, kind="stable")
    groups = np.split(order, np.searchsorted(lengths[order], GROUP_LENGTHS, side="right"))
    return [(members, int(lengths[members].max())) for members in groups if members.size]
