"""Parameters that meet the batch by being added or multiplied: position embeddings, class tokens, scales.

What they are made from has no examples, so their slopes are taken where the examples come in: at the
addition or expansion that copies one tensor to all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from randeigen.torch.autograd_graph import Graph, Node
from randeigen.torch.layers import widened

Sizes: TypeAlias = tuple[int | None, int]  # of a batch whose dimension is the second, and n

COPIES = {"AddBackward0", "SubBackward0", "MulBackward0", "ExpandBackward0", "RepeatBackward0"}
# What is done to a tensor alone, or with a number: no examples come in there, whatever the sizes.
ALONE = (
    *(
        "Embedding",
        "Unsqueeze",
        "Squeeze",
        "View",
        "UnsafeView",
        "Transpose",
        "TBackward",
        "Permute",
        "Slice",
    ),
    *("Select", "Clone", "ToCopy", "Exp", "Neg", "Sigmoid", "Tanh", "Softplus"),
)
DEEPEST = 12  # nodes between a parameter and the batch: reshapes, a lookup, a sum of embeddings


@dataclass(frozen=True)
class Entrance:
    """Where a tensor without examples is copied to all of them."""

    node: Node  # the copying
    source: Node  # what is copied: output `number` of this
    number: int
    place: int  # as which input it comes to the copying
    dim: int  # of the copies that holds the examples

    def slopes(self, slopes: Tensor, n: int) -> Tensor:
        """(n, *shape of the source) what each example asks of it."""
        shape = shape_of(self.source, self.number)
        slopes = self._times(widened(slopes)).movedim(self.dim, 0).unflatten(0, (n, -1)).sum(1)
        rest = [1] * (slopes.dim() - len(shape)) + list(shape)
        rest.pop(self.dim)
        over = [1 + k for k, size in enumerate(rest) if size == 1 and slopes.shape[1 + k] != 1]
        return (slopes.sum(over, keepdim=True) if over else slopes).reshape(n, *shape)

    def _times(self, slopes: Tensor) -> Tensor:
        """The slopes of the outcome times the outcome's derivative by the source."""
        if self.node.name() == "MulBackward0":
            return slopes * (self.node._saved_self if self.place else self.node._saved_other)
        if self.place == 0:
            return slopes
        sign = -1 if self.node.name() == "SubBackward0" else 1
        return slopes * (sign * getattr(self.node, "_saved_alpha", 1))


def entrances(graph: Graph, parameter: nn.Parameter, n: int, batch: int | None) -> list[Entrance] | None:
    """Every way from the parameter to the batch, if all of them are copies."""
    leaf = graph.leaves.get(id(parameter))
    if leaf is None:
        return []
    try:
        return list(dict.fromkeys(_climb(graph, leaf, 0, (batch, n), 0)))
    except _NotCopied:
        return None


class _NotCopied(Exception):
    pass


def _climb(graph: Graph, node: Node, number: int, sizes: Sizes, depth: int) -> Iterator[Entrance]:
    users = [use for use in graph.users.get(node, ()) if use[1] == number]
    if not users or depth > DEEPEST:
        raise _NotCopied
    shape = shape_of(node, number)
    for user, _, place in users:
        name, outputs = user.name(), user._input_metadata
        dim = _copied_at(shape, tuple(outputs[0].shape), sizes) if name in COPIES else None
        if dim is not None:
            yield Entrance(user, node, number, place, dim)
        elif _is_alone(name, shape, outputs, sizes):
            for k in {use[1] for use in graph.users.get(user, ())}:
                yield from _climb(graph, user, k, sizes, depth + 1)
        else:
            raise _NotCopied


def _is_alone(name: str, shape: tuple[int, ...], outputs: Any, sizes: Sizes) -> bool:
    """Whether no examples came in at this node."""
    if name.startswith(ALONE) or (name in COPIES and tuple(outputs[0].shape) == shape):
        return True
    batch, n = sizes
    shapes = [tuple(meta.shape) for meta in outputs]
    return not any(shape and (shape[0] % n == 0 or {n, batch} & set(shape[1:2])) for shape in shapes)


def _copied_at(shape: tuple[int, ...], copies: tuple[int, ...], sizes: Sizes) -> int | None:
    """The dimension in which a copy for each example was made, or several for each."""
    padded = (1,) * (len(copies) - len(shape)) + shape
    batch, n = sizes
    second = len(copies) > 1 and padded[1] == 1
    if second and copies[1] == batch:
        return 1
    if copies and padded[0] == 1 and copies[0] > 1 and copies[0] % n == 0:
        return 0
    return 1 if second and copies[1] == n else None


def shape_of(node: Node, number: int) -> tuple[int, ...]:
    """Of what the node made."""
    variable = getattr(node, "variable", None)
    return tuple(variable.shape) if variable is not None else tuple(node._input_metadata[number].shape)


def carried_down(slopes: Mapping[Entrance, Tensor], parameters: list[nn.Parameter]) -> list[Tensor | None]:
    """The parameters' gradients by example, from the slopes at the entrances."""
    found: list[Tensor | None] = [None] * len(parameters)
    inner = {}
    for entrance, slope in slopes.items():
        variable = getattr(entrance.source, "variable", None)
        if variable is None:
            inner[GradientEdge(entrance.source, entrance.number)] = slope
        for i, parameter in enumerate(parameters):
            if variable is parameter:
                found[i] = slope if found[i] is None else found[i] + slope
    if inner:
        below = torch.autograd.grad(
            list(inner), parameters, list(inner.values()),
            retain_graph=True, allow_unused=True, is_grads_batched=True,
        )  # fmt: skip
        found = [a if b is None else b if a is None else a + b for a, b in zip(found, below, strict=True)]
    return found
