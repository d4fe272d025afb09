"""Low-rank adapters (LoRA, Hu et al. 2022): clients train and send a few small factors of a frozen model."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from randeigen.attacks.base import Tensor
from randeigen.errors import BadModel

QUERIES_AND_VALUES = (
    "query",
    "value",
    "q",
    "v",
    "q_lin",
    "v_lin",
    "q_proj",
    "v_proj",
)  # names in transformers


class LowRankLinear(nn.Module):
    """A frozen linear layer plus (alpha/rank)·up·down; `up` begins at zero, so the model begins as it was."""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.linear, self.scale = linear.requires_grad_(False), alpha / rank
        self.down = nn.Parameter(torch.empty(rank, linear.in_features))
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """The frozen layer's output, corrected."""
        low = functional.linear(functional.linear(x, self.down), self.up)
        corrected: Tensor = self.linear(x) + self.scale * low
        return corrected


def add_adapters(model: nn.Module, rank: int = 8, alpha: float = 16.0) -> int:
    """Replace the projections to queries and values of every attention layer, in place; how many."""
    chosen = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear) and name in QUERIES_AND_VALUES
    ]
    if not chosen:
        linear = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
        names = sorted({name.rpartition(".")[2] for name in linear})
        raise BadModel(
            f"no linear layer of this model is called {', '.join(QUERIES_AND_VALUES)}, so there is nothing "
            f"to adapt; its layers are {', '.join(names)}. Use update=full or update=head."
        )
    for parent, name in chosen:
        setattr(parent, name, LowRankLinear(getattr(parent, name), rank, alpha))
    return len(chosen)
