"""The table of per-example gradients, without the gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from randeigen.errors import BadRows
from randeigen.torch.factors import Factor, joint_gram
from randeigen.torch.survey import Survey
from randeigen.types import Array

# Of the squared length, by item size of the narrowest slopes, times 1/sqrt(n). Where examples mix, it is off
# by about 1/n; rounding is a hundredth of these.
SLACK = {2: 2e-2, 4: 1e-3, 8: 1e-10}


def table(losses: Tensor, model: nn.Module, *, checked: bool = False) -> Tensor:
    """(n, n) inner products of the gradients of n losses, in float64 on their device; `.grad` is not touched.

    The losses keep their graph, so that they can still be sent backward. `checked` sends them backward once
    more to see that the model works example by example, as `randeigen.torch.backward` always does.
    """
    with survey(losses, model) as plan:
        found = measure(plan)
        if checked:
            trained = [node.variable for key, node in plan.graph.leaves.items() if key in plan.names]
            each = torch.full_like(losses, 1 / plan.n)
            mean = torch.autograd.grad(losses, trained, each, retain_graph=True)
            check(mean, found.cpu().numpy(), np.full(plan.n, 1 / plan.n), plan)
        return found


def survey(losses: Tensor, model: nn.Module) -> Survey:
    """Refuse what cannot be judged example by example, then read the graph."""
    if not isinstance(losses, Tensor) or losses.dim() != 1 or losses.numel() == 0:
        found = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise BadRows(
            f"losses must be a vector with one loss per example, found {found}; give the criterion "
            'reduction="none", and average over positions or outputs within each example.'
        )
    if losses.grad_fn is None:
        raise BadRows(
            "losses need no gradient: nothing that made them is being trained. Compute them with gradients "
            "enabled (no torch.no_grad) from parameters that require them."
        )
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise BadRows(
            f"{type(model).__name__} sums gradients over devices before anyone could judge them; give the "
            "model inside it (model.module) and losses computed with that."
        )
    if not isinstance(model, nn.Module):
        raise BadRows(
            f"model must be the torch.nn.Module that made the losses, found {type(model).__name__}."
        )
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise BadRows(
                f"{name or 'the model'} is a {type(module).__name__} in training mode: it mixes the examples "
                "of a batch, so no example has a gradient of its own. Use nn.GroupNorm instead, or put it "
                "into eval mode (module.eval()) to train with the statistics it has."
            )
    return Survey(losses, model)


def measure(plan: Survey) -> Tensor:
    """Run the survey and add up the shares of all parameters."""
    if plan.n == 1:
        trained = [node.variable for key, node in plan.graph.leaves.items() if key in plan.names]
        found = torch.autograd.grad(plan.losses, trained, retain_graph=True)
        return torch.stack([_length(g).double().square() for g in found]).sum().reshape(1, 1)
    total = torch.zeros(plan.n, plan.n, dtype=torch.float64, device=plan.losses.device)

    def add(parameter: nn.Parameter, factors: Sequence[Factor]) -> None:
        with _in_full():
            total.add_(joint_gram(factors, parameter.shape).to(total.device))

    plan.run(add)
    signs = plan.signs.double()
    return (total + total.T) / 2 * signs[:, None] * signs


@contextmanager
def _in_full() -> Iterator[None]:
    """No TF32 for the table, whatever the caller trains with: its 2⁻¹¹ would be an adversary's to use."""
    flags = torch.backends.cuda.matmul
    name, full = ("fp32_precision", "ieee") if hasattr(flags, "fp32_precision") else ("allow_tf32", False)
    before = getattr(flags, name)
    if before == full:
        yield
        return
    setattr(flags, name, full)
    try:
        yield
    finally:
        setattr(flags, name, before)


def check(gradients: Sequence[Tensor | None], table: Array, weights: Array, plan: Survey) -> None:
    """The squared length of Σ wᵢ·gᵢ must be what the table says, wᵀGw. It costs one reading of the sum."""
    parts = [_length(g) for g in gradients if g is not None]
    found = float(torch.stack([part.to(plan.losses.device) for part in parts]).double().square().sum())
    live = np.flatnonzero(weights)
    w, inner = weights[live], table[np.ix_(live, live)]
    expected, scale = float(w @ inner @ w), float(w @ np.sqrt(inner.diagonal())) ** 2
    if abs(found - expected) <= SLACK[plan.itemsize] / math.sqrt(plan.n) * scale:
        return
    if not math.isfinite(found):
        raise BadRows(
            "the gradient is not finite although every example's gradient is: their sum overflows, or an "
            "operation mixes examples. Lower the scale of the losses, and look for the latter."
        )
    raise BadRows(
        f"the gradient's squared length is {found:.6g}, but by the examples' own gradients it should be "
        f"{expected:.6g}. Something in the model does not work example by example: a layer that mixes the "
        "examples of a batch (a batch statistic, a contrastive loss), a batch that is not in the first "
        "dimension, a parameter used outside the layer that owns it, or a compiled part. Nothing was "
        "added to .grad."
    )


def _length(gradient: Tensor) -> Tensor:
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    return torch.linalg.vector_norm(gradient, dtype=torch.promote_types(gradient.dtype, torch.float32))
