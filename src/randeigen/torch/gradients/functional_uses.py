"""Weights multiplied by a function, not by calling the layer that owns them; found in the graph.

nn.MultiheadAttention does so, and so does a head tied to an embedding as `x @ embedding.weight.T`. Whatever
the options, the weight is met by a matrix product whose left factor autograd has kept and whose slopes pass
by. Nothing is run again, so no dropout is drawn again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from torch import Tensor, nn

from randeigen.torch.autograd_graph import Graph, Node
from randeigen.torch.gradients.factors import Dense, OuterProduct, PerExampleGradient
from randeigen.torch.layers import widened

TURNS = {"TBackward0", "TransposeBackward0", "PermuteBackward0", "ToCopyBackward0"}
PRODUCTS = {"AddmmBackward0": "_saved_mat1", "MmBackward0": "_saved_self", "LinearBackward0": "_saved_input"}
NEAR = 5  # nodes between a parameter's use and the output of the layer that owns it


class Use(NamedTuple):
    """One place where some lines of a parameter are used."""

    node: Node
    first: int  # of the lines
    name: str

    def factor(self, slopes: Tensor, shape: Any, n: int, batch: int | None) -> PerExampleGradient:
        """The parameter's gradients by example, from the slopes at this place."""
        slopes = _by_example(slopes, n, batch)
        if len(shape) == 2:
            inputs = _by_example(getattr(self.node, PRODUCTS[self.name]), n, batch)
            return OuterProduct(inputs, slopes, self.first)
        rows = slopes.sum(1)
        if rows.shape[1:] == shape:
            return Dense(rows)
        whole = rows.new_zeros(n, *shape)
        whole[:, self.first : self.first + rows.shape[1]] = rows
        return Dense(whole)

    def known(self, parameter: nn.Parameter) -> bool:
        """Whether `factor` can tell."""
        added = parameter.dim() == 1 and self.name == "AddBackward0"
        return added or (parameter.dim() <= 2 and self.name in PRODUCTS)


def _by_example(rows: Tensor, n: int, batch: int | None) -> Tensor:
    """(n, positions, width), from rows ordered by example or, given the size of the batch, by position."""
    rows, width = widened(rows), rows.shape[-1]
    if batch is None:
        return rows.reshape(n, -1, width)
    return rows.reshape(-1, n, batch // n, width).transpose(0, 1).reshape(n, -1, width)


def uses(graph: Graph, parameter: nn.Parameter) -> list[Use]:
    """Where the parameter is used, beyond transposes and splits."""
    found: list[Use] = []
    leaf = graph.leaves.get(id(parameter))
    if leaf is not None:
        _climb(graph, leaf, 0, 0, found)
    return found


def _climb(graph: Graph, node: Node, number: int, first: int, found: list[Use]) -> None:
    for user, output, _ in graph.users[node]:
        if output != number:
            continue
        name = user.name()
        if name in TURNS:
            _climb(graph, user, 0, first, found)
        elif name in ("SplitBackward0", "SplitWithSizesBackward0"):
            start = first
            for k, part in enumerate(user._input_metadata):
                _climb(graph, user, k, start, found)
                start += part.shape[0]
        else:
            found.append(Use(user, first, name))


def inside(graph: Graph, use: Use, outputs: Collection[Node]) -> bool:
    """Whether the use is part of a layer's call: one of these outputs is close above it."""
    if use.node in outputs:
        return True
    level = {use.node}
    for _ in range(NEAR - 1):
        level = {user for node in level for user, _, _ in graph.users[node]}
        if not level.isdisjoint(outputs):
            return True
    return False
