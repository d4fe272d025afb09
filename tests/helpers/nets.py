"""Small nets of every kind, and the slow obvious way to their gradients: one backward pass per example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Make = Callable[[int], tuple[nn.Module, tuple[Tensor, ...]]]  # n → a model and what it is called with


def jacobian(losses: Tensor, model: nn.Module) -> Tensor:
    """(n, d) each example's gradient."""
    trained = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for loss in losses:
        found = torch.autograd.grad(loss, trained, retain_graph=True, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    (torch.zeros_like(p) if g is None else g.to_dense()).flatten()
                    for p, g in zip(trained, found, strict=True)
                ]
            )
        )
    return torch.stack(rows).double()


def losses_of(out: Tensor) -> Tensor:
    """One number per example, in which every output matters differently."""
    out = out.flatten(1)
    mixed = out.tanh() * torch.linspace(0.5, 2, out.shape[1], dtype=out.dtype, device=out.device)
    return (mixed.sum(1) + 0.3).square()


def mlp(n: int) -> Any:
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)), (torch.randn(n, 7),)


def inplace_on_sequences(n: int) -> Any:
    net = nn.Sequential(nn.Linear(7, 9), nn.ReLU(inplace=True), nn.Linear(9, 3, bias=False))
    return net, (torch.randn(n, 4, 7),)


def wide_sequences(n: int) -> Any:
    """Long enough for the other of the two ways to a linear layer's Gram matrix."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), (torch.randn(n, 40, 3),)


def cnn(n: int) -> Any:
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(inplace=True)),
        *(nn.Conv2d(8, 8, 3, stride=2, groups=4), nn.InstanceNorm2d(8, affine=True), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(8 * 9, 4)),
    )
    return net, (torch.randn(n, 3, 8, 8),)


class Encoder(nn.Module):
    def __init__(self, batch_first: bool, dropout: float = 0.0) -> None:
        super().__init__()
        one = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=batch_first)
        self.inner = nn.TransformerEncoder(one, 2, enable_nested_tensor=False)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.zeros(x.shape[0], x.shape[1], dtype=torch.bool, device=x.device)
        mask[1::2, -1] = True  # every other example is shorter
        if self.batch_first:
            return self.inner(x, src_key_padding_mask=mask)
        return self.inner(x.transpose(0, 1), src_key_padding_mask=mask).transpose(0, 1)


def transformer(n: int) -> Any:
    return Encoder(batch_first=True), (torch.randn(n, 6, 8),)


def transformer_with_dropout(n: int) -> Any:
    return Encoder(batch_first=True, dropout=0.2), (torch.randn(n, 6, 8),)


def sequence_first(n: int) -> Any:
    return Encoder(batch_first=False), (torch.randn(n, 6, 8),)


def sequence_first_as_long_as_the_batch(n: int) -> Any:
    return Encoder(batch_first=False), (torch.randn(n, n, 8),)


class Attention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.inner(q, k, v)[0]


def attention_to_others(n: int) -> Any:
    return Attention(kdim=5, vdim=6, dropout=0.3), (
        *(torch.randn(n, 3, 8), torch.randn(n, 4, 5)),
        torch.randn(n, 4, 6),
    )


def attention_to_memory(n: int) -> Any:
    memory = torch.randn(n, 4, 8)
    return Attention(bias=False), (torch.randn(n, 3, 8), memory, memory)


def attention_to_three(n: int) -> Any:
    return Attention(), (torch.randn(n, 3, 8), torch.randn(n, 4, 8), torch.randn(n, 4, 8))


def attention_with_more_keys(n: int) -> Any:
    return Attention(add_bias_kv=True), (torch.randn(n, 3, 8), torch.randn(n, 4, 8), torch.randn(n, 4, 8))


class Words(nn.Module):
    """Tokens, positions looked up once for all, a class token, and a head tied to the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 6, padding_idx=0), nn.Embedding(12, 6)
        self.start = nn.Parameter(torch.randn(1, 1, 6))
        self.norm, self.rms = nn.LayerNorm(6), nn.RMSNorm(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device)))
        return self.head(self.rms(torch.cat([self.start.expand(len(x), -1, -1), x], 1).sin()))


class TiedByFunction(Words):
    """The head multiplies by the tokens' own weight, and a matrix belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.combine_rows, self.by = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6))
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.linear(self.tokens(x), self.combine_rows, self.by)
        return self.norm(self.drop(x).tanh()) @ self.tokens.weight.T


def tied_by_function(n: int) -> Any:
    return TiedByFunction(), (torch.randint(0, 11, (n, 4)),)


def words(n: int) -> Any:
    return Words(), (torch.randint(0, 11, (n, 4)),)


def words_as_many_as_examples(n: int) -> Any:
    return Words(), (torch.randint(0, 11, (n, n)),)


def embedding(n: int, sparse: bool = False) -> Any:
    net = nn.Sequential(nn.Embedding(20, 5, sparse=sparse), nn.Flatten(), nn.Linear(15, 3))
    return net, (torch.randint(0, 20, (n, 3)),)


def sparse_embedding(n: int) -> Any:
    return embedding(n, sparse=True)


def embedding_bag(n: int) -> Any:
    return nn.Sequential(nn.EmbeddingBag(20, 5), nn.Linear(5, 3)), (torch.randint(0, 20, (n, 4)),)


class Recurrent(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.inner, self.head = nn.LSTM(6, 5, 2, **options), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        if not self.inner.batch_first:
            x = x.transpose(0, 1)
        out, (last, _) = self.inner(x)
        out = out if self.inner.batch_first else out.transpose(0, 1)
        return self.head(out).flatten(1) + last.sum(0).mean(1, keepdim=True)


def lstm(n: int) -> Any:
    return Recurrent(batch_first=True), (torch.randn(n, 3, 6),)


class LastState(Recurrent):
    """Only the second of the layer's outputs is used."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x)[1][0][-1])


def lstm_last_state(n: int) -> Any:
    return LastState(batch_first=True), (torch.randn(n, n, 6),)


def lstm_sequence_first(n: int) -> Any:
    return Recurrent(bidirectional=False), (torch.randn(n, 3, 6),)


class Reused(nn.Module):
    """A layer, a convolution and a cell used several times: an example's gradient is the sum over uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.cell, self.conv = nn.Linear(6, 6), nn.GRUCell(6, 6), nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.conv(self.cell(self.layer(x).tanh())[:, None])[:, 0]
        return x


def reused(n: int) -> Any:
    return Reused(), (torch.randn(n, 6),)


class Gate(nn.Module):
    """Not in the registry: a parameter of its own, used its own way, and a child."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift, self.child = (
            nn.Parameter(torch.randn(5)),
            nn.Parameter(torch.randn(5)),
            mlp(1)[0],
        )

    def forward(self, x: Tensor, *, power: Tensor) -> Tensor:
        return self.child(torch.cat([x * self.scale.sigmoid() ** power, x[:, :2]], 1)) + self.shift[:3]


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    def forward(self, x: Tensor) -> Tensor:
        return self.gate(x, power=x.abs().mean(1, keepdim=True))


def own_layer(n: int) -> Any:
    return Gated(), (torch.randn(n, 5),)


def weight_normed(n: int) -> Any:
    normed = nn.utils.parametrizations.weight_norm
    return nn.Sequential(normed(nn.Linear(6, 5)), nn.Tanh(), normed(nn.Linear(5, 4))), (torch.randn(n, 6),)


def frozen_below(n: int) -> Any:
    net, given = cnn(n)
    net[0].requires_grad_(False)
    net[3].weight.requires_grad_(False)
    return net, given


def batch_norm_in_eval(n: int) -> Any:
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    return net.eval(), (torch.randn(n, 2, 4, 4),)


def transposed_convolution(n: int) -> Any:
    return nn.Sequential(nn.ConvTranspose2d(2, 3, 3), nn.Tanh()), (torch.randn(n, 2, 3, 3),)


class Scaled(nn.Module):
    """A scale and a shift of its own around a child whose dropout must not be drawn again."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(1, 6))
        self.child = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return (x - 2 * self.shift) + self.scale * self.child(x).tanh()


def layer_scale(n: int) -> Any:
    return nn.Sequential(Scaled(), Scaled()), (torch.randn(n, 3, 6),)


class Frames(nn.Module):
    """Each example is several images, folded into the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.see, self.head = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.see(x.flatten(0, 1)).mean((2, 3)).sin()).unflatten(0, x.shape[:2])


def frames(n: int) -> Any:
    return Frames(), (torch.randn(n, 3, 1, 5, 5),)


NAMED: tuple[Make, ...] = (mlp, cnn, transformer, embedding)  # those torch.func can follow
ZOO: tuple[Make, ...] = (
    *(mlp, inplace_on_sequences, wide_sequences, cnn, transformer, transformer_with_dropout, sequence_first),
    *(sequence_first_as_long_as_the_batch, attention_to_others, attention_to_memory, attention_to_three),
    *(
        attention_with_more_keys,
        words,
        words_as_many_as_examples,
        embedding,
        lstm,
        lstm_sequence_first,
        reused,
    ),
    *(own_layer, weight_normed, frozen_below, batch_norm_in_eval, transposed_convolution, frames),
    *(sparse_embedding, embedding_bag, lstm_last_state, tied_by_function, layer_scale),
)
