"""The table of per-example gradients, without the gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from randeigen.errors import BadRows
from randeigen.torch.gradients.factors import piece_for
from randeigen.torch.gram_accumulator import GramAccumulator
from randeigen.torch.layers import widened
from randeigen.torch.plan import GramPlan, alternating
from randeigen.types import Array

# Of the squared length, by item size of the narrowest slopes, times 1/sqrt(n). Where examples mix, it is off
# by about 1/n; rounding is a hundredth of these.
RELATIVE_SLACK = {2: 2e-2, 4: 1e-3, 8: 1e-10}


def gram(losses: Tensor, model: nn.Module, *, checked: bool = False) -> Tensor:
    """(n, n) inner products of the gradients of n losses, in float64 on their device; `.grad` is not touched.

    The losses keep their graph, so that they can still be sent backward. `checked` sends them backward once
    more to see that the model works example by example, as `randeigen.torch.backward` always does.
    """
    with plan_for(losses, model) as plan:
        found = measure(plan)
        if checked:
            each = torch.full_like(losses, 1 / plan.n)
            mean = torch.autograd.grad(losses, list(plan.trained.values()), each, retain_graph=True)
            check_gradient(mean, found.cpu().numpy(), np.full(plan.n, 1 / plan.n), plan)
        return found


def plan_for(losses: Tensor, model: nn.Module) -> GramPlan:
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
    modules = list(model.modules())
    for module in modules:
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            name = next(name for name, other in model.named_modules() if other is module)
            raise BadRows(
                f"{name or 'the model'} is a {type(module).__name__} in training mode: it mixes the examples "
                "of a batch, so no example has a gradient of its own. Use nn.GroupNorm instead, or put it "
                "into eval mode (module.eval()) to train with the statistics it has."
            )
    return GramPlan(losses, modules)


def measure(plan: GramPlan) -> Tensor:
    """Run the survey and add up the shares of all parameters."""
    if plan.n == 1:
        found = torch.autograd.grad(plan.losses, list(plan.trained.values()), retain_graph=True)
        return torch.tensor([[_squared_length(found, plan)]], dtype=torch.float64, device=plan.losses.device)
    device = plan.losses.device
    tally = GramAccumulator(plan.n, device, piece_for(plan.trained.values(), device))
    plan.run(tally.add)
    total, signs = tally.total(), alternating(plan.n, device, torch.float64)
    return (total + total.T).mul_(signs[:, None]).mul_(signs / 2)


def check_gradient(gradients: Sequence[Tensor | None], table: Array, weights: Array, plan: GramPlan) -> None:
    """The squared length of Σ wᵢ·gᵢ must be what the table says, wᵀGw. It costs one reading of the sum."""
    found = _squared_length([g for g in gradients if g is not None], plan)
    live = np.flatnonzero(weights)
    w, inner = (weights, table) if live.size == plan.n else (weights[live], table[np.ix_(live, live)])
    expected, scale = float(w @ inner @ w), float(w @ np.sqrt(inner.diagonal())) ** 2
    if abs(found - expected) <= RELATIVE_SLACK[plan.itemsize] / math.sqrt(plan.n) * scale:
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


def _squared_length(gradients: Sequence[Tensor], plan: GramPlan) -> float:
    """Of all of them as one vector."""
    dense = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    lengths = torch._foreach_norm([widened(g) for g in dense])
    found = torch.stack([length.to(plan.losses.device) for length in lengths]).tolist()
    return float(sum(length * length for length in found))
