"""backward(): the two lines a training loop changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from randeigen.errors import BadRows
from randeigen.rules import Rule
from randeigen.torch.autograd_graph import as_recorded
from randeigen.torch.gradients.factors import PIECE, PerExampleGradient, summed
from randeigen.torch.gram import check_gradient, measure, plan_for
from randeigen.torch.group_verdict import BatchVerdict, as_groups, as_rule, judge
from randeigen.torch.plan import GramPlan
from randeigen.types import Array, OnExcess


def backward(
    losses: Tensor,
    model: nn.Module,
    eps: float | None = None,
    *,
    rule: Rule | None = None,
    groups: Any = None,
    directions: bool = False,
    seed: int | None = None,
    on_excess: OnExcess = "raise",
) -> BatchVerdict:
    """Add the robust average of the examples' gradients to `.grad`, in place of `losses.mean().backward()`.

    `losses` are (n,), one per example; a fraction `eps` of the examples may be poisoned. With all weights
    equal the outcome is that of `losses.mean().backward()`. Give a `rule` instead of `eps` for another than
    RandEigen. `groups` (labels, typically) judges the examples of each label among themselves: `eps` is then
    the fraction in every group, each group keeps its share of the gradient, and groups of fewer than 5 are
    judged together. `directions` judges where gradients point, not how long they are.

    An example whose loss or gradient is not finite has no part in the gradient; more of them than `eps`
    allows is an error, unless `on_excess="drop"`. On any error `.grad` is as before.
    """
    rule = as_rule(eps, rule, on_excess)
    with plan_for(losses, model) as plan:
        labels = as_groups(groups, plan.n)
        # Side by side, so that the device is waited for once.
        found = torch.cat([measure(plan), losses.detach().double()[None]]).cpu().numpy()
        table, finite = found[:-1], np.isfinite(found[-1])
        bad = {int(i): "not finite: its loss is NaN or infinity" for i in np.flatnonzero(~finite)}
        verdict = judge(
            table, rule, labels, directions=directions, seed=seed, on_excess=on_excess, unusable=bad,
            itemsize=plan.itemsize,
        )  # fmt: skip
        _fill(plan, table, verdict)
        return verdict


def _fill(plan: GramPlan, table: Array, verdict: BatchVerdict) -> None:
    """The second pass, checked against the table before anything is added to what `.grad` held."""
    trained, judged = [node.variable for node in plan.graph.leaves.values()], list(plan.trained.values())
    if verdict.unusable and len(judged) < sum(isinstance(leaf, nn.Parameter) for leaf in trained):
        raise BadRows(
            f"examples {list(verdict.unusable)[:8]} are not finite, and the losses depend on parameters "
            "outside the given model, which cannot be given a gradient without them; give the whole model."
        )
    coefficients = torch.as_tensor(verdict.coefficients).to(plan.losses)
    before = [(p, p.grad) for p in trained if p.grad is not None]
    for p, _ in before:
        p.grad = None
    try:
        if verdict.unusable:
            _combine(plan, coefficients * plan.signs, sorted(set(range(plan.n)) - set(verdict.unusable)))
        else:
            with as_recorded(plan.losses):
                plan.losses.backward(coefficients)
        # The caller's hooks may change what comes to .grad, and that is their right.
        if not any(p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None) for p in judged):
            check_gradient([p.grad for p in judged], table, verdict.coefficients, plan)
    except BaseException:
        for p in trained:
            p.grad = None
        for p, old in before:
            p.grad = old
        raise
    for p, old in before:
        p.grad = old if p.grad is None else old.add_(p.grad)


def _combine(plan: GramPlan, coefficients: Tensor, usable: list[int]) -> None:
    """The same without the unusable examples: in an ordinary backward pass 0 · inf would be NaN."""
    index = torch.tensor(usable, device=coefficients.device)

    def spend(parameter: nn.Parameter, factors: Sequence[PerExampleGradient]) -> None:
        pieces = [
            torch.tensordot(coefficients[index].to(rows.dtype), rows[index], 1)
            for rows in summed(factors, parameter.shape, PIECE)
        ]
        parameter.grad = torch.cat(pieces).reshape(parameter.shape).to(parameter.dtype)

    plan.run(spend)
    plan.forget()
