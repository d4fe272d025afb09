"""A BERT of one layer in plain torch, for sentences of whole words."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

WORD_STD, OTHER_STD = 0.15, 0.02  # of initial weights; words need the larger to be told apart from the start


class TinyBert(nn.Module):
    """Embeddings, one post-norm layer of attention and feed-forward, a linear head on the first token.

    420,802 parameters at 6,000 words and 50 positions. Without dropout, so that a seed repeats a run.
    """

    def __init__(
        self, words: int, length: int, width: int = 64, heads: int = 2, hidden: int = 128, pad: int = 0
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(length, width)
        self.queries, self.keys, self.values, self.mixed = (nn.Linear(width, width) for _ in range(4))
        self.attended, self.finished = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.head = nn.Linear(width, 2)
        self.heads, self.pad = heads, pad
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=WORD_STD if name == "words.weight" else OTHER_STD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, 2) logits of (batch, length) token ids."""
        x = self.words(tokens) + self.positions.weight[: tokens.shape[-1]]
        x = self.attended(x + self.attention(x, tokens))
        x = self.finished(x + self.outer(functional.gelu(self.inner(x))))
        logits: Tensor = self.head(x[:, 0])
        return logits

    def attention(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Every token attends to those that are no padding."""
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            for layer in (self.queries, self.keys, self.values)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill((tokens == self.pad)[:, None, None], torch.finfo(scores.dtype).min)
        out: Tensor = self.mixed((scores.softmax(-1) @ v).transpose(-3, -2).flatten(-2))
        return out
