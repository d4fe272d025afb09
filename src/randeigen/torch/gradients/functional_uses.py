"""Weights multiplied by a function, not by calling the layer that owns them; recognised in the graph.

nn.MultiheadAttention does so, and so does a head tied to an embedding as `x @ embedding.weight.T`. Whatever
the options, the weight enters a matrix product whose left factor autograd has saved, and whose gradient at
the output passes by in the backward pass. Nothing is run again, so no dropout mask is drawn again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor, nn

from randeigen.torch.autograd_graph import Graph, Node
from randeigen.torch.batch_dim import BatchLayout
from randeigen.torch.gradients.factors import Dense, OuterProduct, PerExampleGradient
from randeigen.torch.layers import at_least_float32

TRANSPOSES = {"TBackward0", "TransposeBackward0", "PermuteBackward0", "ToCopyBackward0"}
PRODUCTS = {"AddmmBackward0": "_saved_mat1", "MmBackward0": "_saved_self", "LinearBackward0": "_saved_input"}
MAX_NODES_INSIDE_LAYER = 5  # between a parameter's use and the output of the layer that owns it


class FunctionalUse(NamedTuple):
    """One operation that uses some lines of a parameter."""

    node: Node
    first: int  # of the lines
    name: str

    def gradient(self, grad_output: Tensor, shape: torch.Size, layout: BatchLayout) -> PerExampleGradient:
        """The parameter's per-example gradients, from the gradient at the operation's output."""
        grads = layout.by_example(at_least_float32(grad_output))
        if len(shape) == 2:
            saved: Tensor = getattr(self.node, PRODUCTS[self.name])
            return OuterProduct(layout.by_example(at_least_float32(saved)), grads, self.first)
        rows = grads.sum(1)
        if rows.shape[1:] == shape:
            return Dense(rows)
        padded = rows.new_zeros(layout.n, *shape)
        padded[:, self.first : self.first + rows.shape[1]] = rows
        return Dense(padded)

    def has_gradient(self, parameter: nn.Parameter) -> bool:
        """Whether `gradient` knows this operation."""
        is_added = parameter.dim() == 1 and self.name == "AddBackward0"
        return is_added or (parameter.dim() <= 2 and self.name in PRODUCTS)


def uses_of(graph: Graph, parameter: nn.Parameter) -> list[FunctionalUse]:
    """The operations that use the parameter, beyond transposes and splits."""
    uses: list[FunctionalUse] = []
    leaf = graph.leaves.get(id(parameter))
    if leaf is not None:
        _climb(graph, leaf, 0, 0, uses)
    return uses


def _climb(graph: Graph, node: Node, output_nr: int, first: int, uses: list[FunctionalUse]) -> None:
    for use in graph.uses[node]:
        if use.output_nr != output_nr:
            continue
        name = use.user.name()
        if name in TRANSPOSES:
            _climb(graph, use.user, 0, first, uses)
        elif name in ("SplitBackward0", "SplitWithSizesBackward0"):
            start = first
            for k, part in enumerate(use.user._input_metadata):
                _climb(graph, use.user, k, start, uses)
                start += part.shape[0]
        else:
            uses.append(FunctionalUse(use.user, first, name))


def is_inside(graph: Graph, use: FunctionalUse, outputs: Collection[Node]) -> bool:
    """Whether the use is part of a layer's call: one of these outputs is a few nodes above it."""
    if use.node in outputs:
        return True
    level = {use.node}
    for _ in range(MAX_NODES_INSIDE_LAYER - 1):
        level = {above.user for node in level for above in graph.uses[node]}
        if not level.isdisjoint(outputs):
            return True
    return False
