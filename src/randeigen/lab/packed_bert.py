"""BERT classifiers of many clients at once, on sentences without their padding.

Linear layers see no padding: a batch of SST-2's phrases padded to the longest is 3.4 times as long. Attention
pads sentences to others of about their length. Each layer is one batched product for all clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from randeigen.errors import BadModel
from randeigen.lab.packed_sentences import Group, Packing

KIND = "BertForSequenceClassification"  # of transformers
TRIED_TOKENS = ((3, 4, 5, 4), (4, 3, None, None))  # None: padding
WORDS = "inner.bert.embeddings.word_embeddings.weight"
POSITIONS = "inner.bert.embeddings.position_embeddings.weight"


class PackedBert:
    """The logits of a BERT classifier, as a function of all clients' parameters."""

    def __init__(self, model: Any) -> None:
        config = model.inner.config
        self.pad, self.heads, self.epsilon = model.pad, config.num_attention_heads, config.layer_norm_eps
        self.layers = config.num_hidden_layers

    @staticmethod
    def of(model: nn.Module) -> PackedBert | None:
        """None for another model: not a BERT, or with frozen or additional parameters, or with other sums."""
        inner: Any = getattr(model, "inner", None)
        if type(inner).__name__ != KIND or getattr(inner.config, "hidden_act", None) != "gelu":
            return None
        parameters = dict(model.named_parameters())
        packed = PackedBert(model)
        if parameters.keys() != packed.names() or not all(one.requires_grad for one in parameters.values()):
            return None
        device = next(iter(parameters.values())).device
        ids = [[packed.pad if token is None else token for token in row] for row in TRIED_TOKENS]
        tokens = torch.tensor(ids, device=device)
        with torch.no_grad():
            expected = model(tokens)
            without_padding = packed.logits(
                {name: one[None] for name, one in parameters.items()}, tokens[None]
            )
        return packed if torch.allclose(without_padding[0], expected, rtol=1e-3, atol=1e-4) else None

    def names(self) -> set[str]:
        """The names of all parameters."""
        start = "inner.bert."
        parts = ["inner.classifier", start + "pooler.dense", start + "embeddings.LayerNorm"]
        for index in range(self.layers):
            layer = _layer(index)
            attention = ("self.query", "self.key", "self.value", "output.dense", "output.LayerNorm")
            parts += [f"{layer}attention.{part}" for part in attention]
            parts += [layer + part for part in ("intermediate.dense", "output.dense", "output.LayerNorm")]
        tables = [f"{start}embeddings.{kind}_embeddings" for kind in ("word", "position", "token_type")]
        return {f"{part}.{kind}" for part in parts for kind in ("weight", "bias")} | {
            f"{table}.weight" for table in tables
        }

    def logits(self, parameters: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
        """(clients, sentences, classes) from each client's parameters and its (sentences, length) ids."""
        packing = Packing.of(tokens, self.pad)
        if packing.longest > (most := parameters[POSITIONS].shape[1]):
            raise BadModel(
                f"a sentence has {packing.longest} tokens, and this encoder has positions for {most}; take "
                "another encoder, or cut the sentences."
            )
        x = self._embedded(parameters, packing)
        for index in range(self.layers):
            x = self._layer(parameters, _layer(index), x, packing)
        first = x.flatten(0, 1)[packing.first].unflatten(0, tokens.shape[:2])
        pooled = torch.tanh(_linear(parameters, "inner.bert.pooler.dense", first))
        return _linear(parameters, "inner.classifier", pooled)

    def _embedded(self, parameters: Mapping[str, Tensor], packing: Packing) -> Tensor:
        start = "inner.bert.embeddings."
        x = _looked_up(parameters[WORDS], packing.ids)
        x = x + _looked_up(parameters[POSITIONS], packing.positions)
        x = x + parameters[start + "token_type_embeddings.weight"][:, :1]
        return self._normed(parameters, start + "LayerNorm", x)

    def _layer(self, parameters: Mapping[str, Tensor], name: str, x: Tensor, packing: Packing) -> Tensor:
        query, key, value = (
            _Rearranged.apply(
                _linear(parameters, f"{name}attention.self.{part}", x).flatten(0, 1),
                *(packing.slot_of, packing.cell_of, packing.used),
            )
            for part in ("query", "key", "value")
        )
        attended, at = [], 0
        for group in packing.groups:
            cells = slice(at, at + group.sentences * group.length)
            attended.append(self._attended(query[cells], key[cells], value[cells], group))
            at = cells.stop
        inner = _Rearranged.apply(torch.cat(attended), packing.cell_of, packing.slot_of, packing.real)
        x = self._added(parameters, f"{name}attention.output", x, inner.view_as(x))
        wide = functional.gelu(_linear(parameters, f"{name}intermediate.dense", x))
        return self._added(parameters, f"{name}output", x, wide)

    def _attended(self, query: Tensor, key: Tensor, value: Tensor, group: Group) -> Tensor:
        """(cells, columns) of one group. Sentences are so short that plain products are the fastest way."""
        query, key, value = (
            part.view(group.sentences, group.length, self.heads, -1).transpose(1, 2)
            for part in (query, key, value)
        )
        scores = torch.add(group.bias, query @ key.mT, alpha=1 / math.sqrt(query.shape[-1]))
        return (scores.softmax(-1) @ value).transpose(1, 2).flatten(0, 1).flatten(1)

    def _added(self, parameters: Mapping[str, Tensor], name: str, x: Tensor, inner: Tensor) -> Tensor:
        return self._normed(parameters, f"{name}.LayerNorm", x + _linear(parameters, f"{name}.dense", inner))

    def _normed(self, parameters: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
        normed = functional.layer_norm(x, x.shape[-1:], eps=self.epsilon)
        out: Tensor = _Affine.apply(normed, parameters[f"{name}.weight"], parameters[f"{name}.bias"])
        return out


def _layer(index: int) -> str:
    return f"inner.bert.encoder.layer.{index}."


def _looked_up(tables: Tensor, rows: Tensor) -> Tensor:
    """(clients, width, columns): each client's rows of its own table."""
    clients, size, _ = tables.shape
    begins = torch.arange(clients, device=rows.device)[:, None] * size
    return functional.embedding(rows + begins, tables.flatten(0, 1))


def _linear(parameters: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    out: Tensor = _Linear.apply(x, parameters[f"{name}.weight"], parameters[f"{name}.bias"])
    return out


class _Linear(torch.autograd.Function):
    """A linear layer of each client. Gradients lie as the weights do, which the optimizer asks for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        out: Tensor = torch.baddbmm(bias[:, None], x, weight.mT)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        needs = ctx.needs_input_grad
        return (
            torch.bmm(grad, weight) if needs[0] else None,
            torch.bmm(grad.mT, x) if needs[1] else None,
            _summed(grad) if needs[2] else None,
        )


class _Affine(torch.autograd.Function):
    """Each client's factors and shifts of the columns, as layer normalisation has them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.addcmul(bias[:, None], x, weight[:, None])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        needs = ctx.needs_input_grad
        return (
            grad * weight[:, None] if needs[0] else None,
            _summed(grad * x) if needs[1] else None,
            _summed(grad) if needs[2] else None,
        )


def _summed(x: Tensor) -> Tensor:
    """(clients, columns) sums over the lines, by a product: three times as fast on a GPU."""
    return torch.bmm(_one(x.device).expand(len(x), 1, x.shape[1]), x)[:, 0]


@cache
def _one(device: torch.device) -> Tensor:
    return torch.ones((1, 1, 1), device=device)


class _Rearranged(torch.autograd.Function):
    """Lines of a matrix in another order. The gradient goes the same way back: no sums, no atomics."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor, kept: Tensor) -> Tensor:
        """`kept`: 1 for the lines of x that go anywhere, 0 for the others, which have no gradient."""
        ctx.save_for_backward(back, kept)
        return x.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        back, kept = ctx.saved_tensors
        return grads[0].index_select(0, back).mul_(kept), None, None, None
