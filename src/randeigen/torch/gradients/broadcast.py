"""Parameters that meet the batch by being added or multiplied: position embeddings, class tokens, scales.

What they are made from has no batch dimension, so their gradients are taken where the batch comes in: at the
addition, product or expansion that broadcasts one tensor to all examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from randeigen.torch.autograd_graph import Graph, Node
from randeigen.torch.batch_dim import BatchLayout
from randeigen.torch.layers import at_least_float32

BROADCASTS = {"AddBackward0", "SubBackward0", "MulBackward0", "ExpandBackward0", "RepeatBackward0"}
# Operations on one tensor, or on a tensor and a number: no examples come in there, whatever the sizes.
WITHOUT_BATCH = (
    *("Embedding", "Unsqueeze", "Squeeze", "View", "UnsafeView", "Transpose", "TBackward", "Permute"),
    *("Slice", "Select", "Clone", "ToCopy", "Exp", "Neg", "Sigmoid", "Tanh", "Softplus"),
)
MAX_DEPTH = 12  # nodes between a parameter and the batch: reshapes, a lookup, a sum of embeddings


@dataclass(frozen=True)
class Broadcast:
    """An operation that broadcasts a tensor without examples to all of them."""

    node: Node
    source: Node  # the node that made the tensor, as its output `output_nr`
    output_nr: int
    input_nr: int  # as which input of `node` it comes in
    dim: int  # of the result: the batch dimension

    def grad_source(self, grad_output: Tensor, n: int) -> Tensor:
        """(n, *shape of the source) each example's gradient with respect to the source."""
        shape = shape_of(self.source, self.output_nr)
        grads = self._times_derivative(at_least_float32(grad_output))
        grads = torch.unflatten(grads.movedim(self.dim, 0), 0, (n, -1)).sum(1)
        rest = [1] * (grads.dim() - len(shape)) + list(shape)
        rest.pop(self.dim)
        over = [1 + k for k, size in enumerate(rest) if size == 1 and grads.shape[1 + k] != 1]
        return (grads.sum(over, keepdim=True) if over else grads).reshape(n, *shape)

    def _times_derivative(self, grad_output: Tensor) -> Tensor:
        """The gradient at the result times the derivative of the result with respect to the source."""
        if self.node.name() == "MulBackward0":
            other: Tensor = self.node._saved_self if self.input_nr else self.node._saved_other
            return grad_output * other
        if self.input_nr == 0:
            return grad_output
        sign = -1 if self.node.name() == "SubBackward0" else 1
        factor: float = sign * getattr(self.node, "_saved_alpha", 1)
        return grad_output * factor


def broadcasts_of(graph: Graph, parameter: nn.Parameter, layout: BatchLayout) -> list[Broadcast] | None:
    """Every way from the parameter to the batch, if all of them are broadcasts; else None."""
    leaf = graph.leaves.get(id(parameter))
    if leaf is None:
        return []
    try:
        return list(dict.fromkeys(_climb(graph, leaf, 0, layout, 0)))
    except _NotBroadcast:
        return None


class _NotBroadcast(Exception):
    pass


def _climb(graph: Graph, node: Node, output_nr: int, layout: BatchLayout, depth: int) -> Iterator[Broadcast]:
    uses = [use for use in graph.uses.get(node, ()) if use.output_nr == output_nr]
    if not uses or depth > MAX_DEPTH:
        raise _NotBroadcast
    shape = shape_of(node, output_nr)
    for user, _, input_nr in uses:
        name, results = user.name(), user._input_metadata
        dim = layout.expanded_dim(shape, tuple(results[0].shape)) if name in BROADCASTS else None
        if dim is not None:
            yield Broadcast(user, node, output_nr, input_nr, dim)
        elif _is_without_batch(name, shape, results, layout):
            for k in {use.output_nr for use in graph.uses.get(user, ())}:
                yield from _climb(graph, user, k, layout, depth + 1)
        else:
            raise _NotBroadcast


def _is_without_batch(name: str, shape: tuple[int, ...], results: Any, layout: BatchLayout) -> bool:
    """Whether no examples came in at this node."""
    if name.startswith(WITHOUT_BATCH) or (name in BROADCASTS and tuple(results[0].shape) == shape):
        return True
    return not any(layout.may_hold_examples(tuple(result.shape)) for result in results)


def shape_of(node: Node, output_nr: int) -> tuple[int, ...]:
    """The shape of one output of a node; of a leaf, that of its parameter."""
    variable = getattr(node, "variable", None)
    return tuple(variable.shape) if variable is not None else tuple(node._input_metadata[output_nr].shape)


def carried_to_parameters(
    grads: Mapping[Broadcast, Tensor], parameters: list[nn.Parameter]
) -> list[Tensor | None]:
    """The parameters' per-example gradients, from those at the sources of the broadcasts."""
    totals: list[Tensor | None] = [None] * len(parameters)
    computed = {}
    for broadcast, grad in grads.items():
        variable = getattr(broadcast.source, "variable", None)
        if variable is None:
            computed[GradientEdge(broadcast.source, broadcast.output_nr)] = grad
        for i, parameter in enumerate(parameters):
            if variable is parameter:
                totals[i] = _sum(totals[i], grad)
    if computed:
        below = torch.autograd.grad(
            list(computed), parameters, list(computed.values()),
            retain_graph=True, allow_unused=True, is_grads_batched=True,
        )  # fmt: skip
        totals = [_sum(a, b) for a, b in zip(totals, below, strict=True)]
    return totals


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b
