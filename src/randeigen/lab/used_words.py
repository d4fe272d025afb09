"""Rows of the word table that clients use in a round: the others do not move, and take no optimizer's time.

Of MiniLM's 30,522 words a client meets some 1,500 in ten steps, and the table is half of the model.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor

from randeigen.lab.packed_bert import WORDS
from randeigen.lab.stacked_model import StackedModel
from randeigen.lab.stacked_sgd import Data


class UsedWords(NamedTuple):
    """A model with a narrower word table, and the sentences in the numbers of its rows."""

    model: StackedModel
    data: Data
    indices: Tensor  # (steps, clients, batch) into the data
    rows: Tensor  # (clients, most) of the word table; the first is padding's, and so are those left over
    table: int  # the word table among the parameters

    @staticmethod
    def of(model: StackedModel, data: Data, indices: Tensor) -> UsedWords:
        """Of a packed model: others may look at the ids themselves."""
        assert model.packed is not None
        table, pad, clients = model.names.index(WORDS), model.packed.pad, indices.shape[1]
        tokens = data.images[indices].transpose(0, 1).flatten(1)
        vocabulary = torch.arange(model.shapes[table][0], device=tokens.device)
        met = torch.zeros((clients, len(vocabulary)), dtype=torch.bool, device=tokens.device)
        met.scatter_(1, tokens, True)
        number = met.cumsum(1)
        most = int(number[:, -1].max()) + 1
        rows = tokens.new_full((clients, most + 1), pad)
        rows.scatter_(1, torch.where(met, number, most), vocabulary.expand(clients, -1))
        rows = rows[:, :most]
        renamed = torch.where(tokens == pad, 0, number.gather(1, tokens))
        renamed = renamed.unflatten(1, (len(indices), -1)).transpose(0, 1).reshape(-1, data.images.shape[1])
        renumbered = torch.arange(indices.numel(), device=tokens.device).view_as(indices)
        sentences = Data(renamed, data.labels[indices].flatten())
        return UsedWords(_narrower(model, table, most), sentences, renumbered, rows, table)

    def taken(self, weights: Tensor) -> Tensor:
        """The narrower model's weights from (clients, d) of the model."""
        parts = weights.split(self._cuts(weights), dim=1)
        words = parts[1].unflatten(1, (-1, self.model.shapes[self.table][1]))
        index = self.rows[..., None].expand(-1, -1, words.shape[2])
        return torch.cat([parts[0], words.gather(1, index).flatten(1), parts[2]], dim=1)

    def put_back(self, trained: Tensor, into: Tensor, members: Tensor) -> None:
        """Write the narrower model's weights into those lines of (all clients, d) weights."""
        before, words, after = trained.split(self._cuts(trained), dim=1)
        start, stop = before.shape[1], into.shape[1] - after.shape[1]
        into[members, :start], into[members, stop:] = before, after
        table = into[:, start:stop].unflatten(1, (-1, self.model.shapes[self.table][1]))
        table[members[:, None], self.rows] = words.unflatten(1, (-1, table.shape[2]))

    def _cuts(self, weights: Tensor) -> list[int]:
        """Numbers before the word table, in it and after it."""
        before, after = sum(self.model.sizes[: self.table]), sum(self.model.sizes[self.table + 1 :])
        return [before, weights.shape[1] - before - after, after]


def _narrower(model: StackedModel, table: int, rows: int) -> StackedModel:
    """The same model with so many words, whose padding is 0."""
    narrow, shapes = copy.copy(model), list(model.shapes)
    shapes[table] = (rows, shapes[table][1])
    narrow.shapes, narrow.sizes = shapes, tuple(int(torch.Size(shape).numel()) for shape in shapes)
    narrow.leaves, narrow.d = list(zip(model.names, shapes, strict=True)), sum(narrow.sizes)
    narrow.packed = copy.copy(model.packed)
    assert narrow.packed is not None
    narrow.packed.pad = narrow.pad = 0
    return narrow
