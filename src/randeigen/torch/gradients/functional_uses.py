"""Weights multiplied by a function, not by calling the layer that owns them; recognised in the graph.

nn.MultiheadAttention does so, and so does a head tied to an embedding as `x @ embedding.weight.T`. Whatever
the options, the weight enters a matrix product whose left factor autograd has saved, and whose gradient at
the output passes by in the backward pass. Nothing is run again, so no dropout mask is drawn again.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from randeigen.torch.autograd_graph import ParameterUse
from randeigen.torch.batch_dim import BatchLayout
from randeigen.torch.gradients.factors import Dense, OuterProduct, PerExampleGradient
from randeigen.torch.layers import at_least_float32

PRODUCTS = {"AddmmBackward0": "_saved_mat1", "MmBackward0": "_saved_self", "LinearBackward0": "_saved_input"}


def gradient(
    use: ParameterUse, grad_output: Tensor, shape: torch.Size, layout: BatchLayout
) -> PerExampleGradient:
    """A parameter's per-example gradients by one of its uses, from the gradient at the operation's output."""
    grads = layout.by_example(at_least_float32(grad_output))
    if len(shape) == 2:
        saved: Tensor = getattr(use.node, PRODUCTS[use.name])
        return OuterProduct(layout.by_example(at_least_float32(saved)), grads, use.first)
    rows = grads.sum(1)
    if rows.shape[1:] == shape:
        return Dense(rows)
    padded = rows.new_zeros(layout.n, *shape)
    padded[:, use.first : use.first + rows.shape[1]] = rows
    return Dense(padded)


def has_gradient(use: ParameterUse, parameter: nn.Parameter) -> bool:
    """Whether `gradient` knows this operation."""
    is_added = parameter.dim() == 1 and use.name == "AddBackward0"
    return is_added or (parameter.dim() <= 2 and use.name in PRODUCTS)
