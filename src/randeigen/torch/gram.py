"""The Gram matrix of per-example gradients, without the gradients."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from randeigen.errors import BadModel
from randeigen.torch.batchnorm import GhostBatchNorm, check_ghost_batches
from randeigen.torch.gradients.factors import Dense, PerExampleGradient, gram_of, joint_gram, piece_for
from randeigen.torch.layers import at_least_float32
from randeigen.torch.plan import GramPlan, alternating_signs
from randeigen.types import Array

# Tolerated relative error of the squared norm times √n, by bytes per number of the narrowest gradients. Where
# examples mix, the squared norm is off by about 1/n; rounding is a hundredth of these.
RELATIVE_SLACK = {2: 2e-2, 4: 1e-3, 8: 1e-10}
MAX_WAITING_BYTES = 2**20  # small terms wait for one another, to be added in one operation


def gram(losses: Tensor, model: nn.Module, *, checked: bool = False) -> Tensor:
    """The Gram matrix of the per-example gradients: inner products of the gradients of n losses.

    `.grad` is not touched, and the losses keep their graph, so they can still be sent backward.

    Parameters:
        losses: (n,) one per example, computed by `model` after `randeigen.torch` was imported.
        model: the model, or the part of it whose parameters count.
        checked: send the losses backward once more to see that the model works example by example, as
            `randeigen.torch.backward` always does.

    Returns:
        (n, n) in float64, on the device of the losses.

    Raises:
        BadModel: the losses are no vector, or the model cannot be taken apart example by example.

    Examples:
        >>> import torch, randeigen.torch
        >>> model = torch.nn.Linear(2, 1)
        >>> losses = model(torch.tensor([[1.0, 0.0], [0.0, 2.0]])).squeeze(1)
        >>> randeigen.torch.gram(losses, model).tolist()
        [[2.0, 1.0], [1.0, 5.0]]
    """
    plan = plan_for(losses, model)
    products = measure(plan)
    if checked:
        each = torch.full_like(losses, 1 / plan.n)
        mean = torch.autograd.grad(losses, list(plan.trained.values()), each, retain_graph=True)
        check_gradient(mean, products.cpu().numpy(), np.full(plan.n, 1 / plan.n), plan)
    return products


def plan_for(losses: Tensor, model: nn.Module) -> GramPlan:
    """Refuse what has no gradient of its own for each example, then read the graph and plan."""
    if not isinstance(losses, Tensor) or losses.dim() != 1 or losses.numel() == 0:
        form = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise BadModel(
            f"losses must be a vector with one loss per example, found {form}; give the criterion "
            'reduction="none", and average over positions or outputs within each example.'
        )
    if losses.grad_fn is None:
        raise BadModel(
            "losses need no gradient: nothing that made them is being trained. Compute them with gradients "
            "enabled (no torch.no_grad) from parameters that require them."
        )
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise BadModel(
            f"{type(model).__name__} sums gradients over devices before anyone could judge them; give the "
            "model inside it (model.module) and losses computed with that."
        )
    if not isinstance(model, nn.Module):
        raise BadModel(
            f"model must be the torch.nn.Module that made the losses, found {type(model).__name__}."
        )
    modules = list(model.modules())
    for name, module in model.named_modules():
        is_mixing = isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)
        if is_mixing and not isinstance(module, GhostBatchNorm):
            raise BadModel(
                f"{name or 'the model'} is a {type(module).__name__} in training mode: it mixes the examples "
                "of a batch, so no example has a gradient of its own. randeigen.torch.convert_batchnorm("
                'model, to="group") puts nn.GroupNorm in its place; to="frozen" keeps the statistics it has, '
                "for fine-tuning."
            )
    plan = GramPlan(losses, modules)
    for call, outputs in plan.graph.calls.items():
        if isinstance(call.module, GhostBatchNorm):
            check_ghost_batches(call.module, outputs[0].shape[0], plan.n)
    return plan


def measure(plan: GramPlan) -> Tensor:
    """Make the planned pass and add up the Gram matrices of all parameters."""
    if plan.n == 1:
        gradients = torch.autograd.grad(plan.losses, list(plan.trained.values()), retain_graph=True)
        return torch.tensor(
            [[_squared_norm(gradients, plan)]], dtype=torch.float64, device=plan.losses.device
        )
    device = plan.losses.device
    accumulator = GramAccumulator(plan.n, device, piece_for(plan.trained.values(), device))
    plan.run(accumulator.add)
    total, signs = accumulator.total(), alternating_signs(plan.n, device, torch.float64)
    return (total + total.T).mul_(signs[:, None]).mul_(signs / 2)


class GramAccumulator:
    """Adds up (n, n) Gram matrices, one term per parameter, in float64."""

    def __init__(self, n: int, device: torch.device, piece: int) -> None:
        self.n, self.device, self.piece = n, device, piece
        self.rows: list[Tensor] = []  # dense gradients, to be concatenated and multiplied at once
        self.gram_terms: list[Tensor] = []
        self.waiting_bytes = 0
        self.sum: Tensor | None = None
        self.full_precision = _FullPrecision()
        self.lock = threading.Lock()  # autograd uses a thread per device

    def add(self, parameter: nn.Parameter, gradients: Sequence[PerExampleGradient]) -> None:
        """Add the term of one parameter, whose gradient is the sum of these."""
        with self.lock:
            first = gradients[0]
            rows = first.rows if len(gradients) == 1 and isinstance(first, Dense) else None
            if rows is not None and rows.untyped_storage().nbytes() <= MAX_WAITING_BYTES:
                self._enqueue(self.rows, rows.reshape(self.n, -1))
            else:
                with self.full_precision:
                    self._enqueue(self.gram_terms, joint_gram(gradients, parameter.shape, self.piece))

    def total(self) -> Tensor:
        """(n, n) the sum of all terms."""
        self._add_waiting()
        if self.sum is None:
            return torch.zeros(self.n, self.n, dtype=torch.float64, device=self.device)
        return self.sum

    def _enqueue(self, queue: list[Tensor], values: Tensor) -> None:
        queue.append(values.to(self.device))
        self.waiting_bytes += values.untyped_storage().nbytes()
        if self.waiting_bytes > MAX_WAITING_BYTES:
            self._add_waiting()

    def _add_waiting(self) -> None:
        if self.rows:
            with self.full_precision:
                self.gram_terms.append(gram_of(torch.cat(self.rows, 1)))
        if not self.gram_terms:
            return
        is_single = len(self.gram_terms) == 1
        gram = self.gram_terms[0] if is_single else torch.stack(self.gram_terms).sum(0, dtype=torch.float64)
        self.sum = gram.double() if self.sum is None else self.sum.add_(gram)
        self.rows, self.gram_terms, self.waiting_bytes = [], [], 0


class _FullPrecision:
    """No TF32 for the Gram matrix, whatever the caller trains with: an adversary could use its 2⁻¹¹."""

    def __init__(self) -> None:
        self.flags: Any = torch.backends.cuda.matmul
        is_new = hasattr(self.flags, "fp32_precision")  # since torch 2.9
        self.name = "fp32_precision" if is_new else "allow_tf32"
        self.full: Any = "ieee" if is_new else False
        self.before = getattr(self.flags, self.name)
        self.is_reduced = self.before not in (self.full, "none")

    def __enter__(self) -> None:
        if self.is_reduced:
            setattr(self.flags, self.name, self.full)

    def __exit__(self, *_: object) -> None:
        if self.is_reduced:
            setattr(self.flags, self.name, self.before)


def check_gradient(gradients: Sequence[Tensor | None], gram: Array, weights: Array, plan: GramPlan) -> None:
    """The squared norm of Σ wᵢ·gᵢ must be wᵀGw. Costs one reading of the sum."""
    squared_norm = _squared_norm([g for g in gradients if g is not None], plan)
    live = np.flatnonzero(weights)
    w, inner = (weights, gram) if live.size == plan.n else (weights[live], gram[np.ix_(live, live)])
    expected, scale = float(w @ inner @ w), float(w @ np.sqrt(inner.diagonal())) ** 2
    if abs(squared_norm - expected) <= RELATIVE_SLACK[plan.itemsize] / math.sqrt(plan.n) * scale:
        return
    if not math.isfinite(squared_norm):
        raise BadModel(
            "the gradient is not finite although every example's gradient is: their sum overflows, or an "
            "operation mixes examples. Lower the scale of the losses, and look for the latter."
        )
    raise BadModel(
        f"the gradient's squared norm is {squared_norm:.6g}, but by the examples' own gradients it should be "
        f"{expected:.6g}. Something in the model does not work example by example: a layer that mixes the "
        "examples of a batch (a batch statistic, a contrastive loss), a batch that is not in the first "
        "dimension, a parameter used outside the layer that owns it, or a compiled part. Nothing was "
        "added to .grad."
    )


def _squared_norm(gradients: Sequence[Tensor], plan: GramPlan) -> float:
    """Of all of them as one vector."""
    dense = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    norms = torch._foreach_norm([at_least_float32(g) for g in dense])
    on_host = torch.stack([norm.to(plan.losses.device) for norm in norms]).tolist()
    return float(sum(norm * norm for norm in on_host))
