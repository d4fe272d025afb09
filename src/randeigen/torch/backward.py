"""backward(): the two lines a training loop changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from randeigen.api import RuleLike
from randeigen.errors import BadModel
from randeigen.torch.autograd_graph import forward_precision
from randeigen.torch.gradients.factors import PIECE, PerExampleGradient, summed_blocks
from randeigen.torch.gram import check_gradient, measure, plan_for
from randeigen.torch.group_verdict import BatchVerdict, as_groups, judge, rule_for
from randeigen.torch.plan import GramPlan
from randeigen.types import Array, OnExcess


def backward(
    losses: Tensor,
    model: nn.Module,
    eps: float | None = None,
    *,
    f: int | None = None,
    rule: RuleLike | None = None,
    groups: Any = None,
    directions: bool = False,
    seed: int | None = None,
    on_excess: OnExcess = "raise",
) -> BatchVerdict:
    """Add the robust average of the per-example gradients to `.grad`, in place of `losses.mean().backward()`.

    With all weights equal the outcome is that of `losses.mean().backward()`, so learning rates stay as they
    are. An example whose loss or gradient is not finite has no part in the gradient and counts as one of the
    corrupt. On any error `.grad` is as before.

    Parameters:
        losses: (n,) one per example, computed by `model` after `randeigen.torch` was imported.
        model: the model, or the part of it whose gradients are to be judged; all of `.grad` is filled.
        eps: the fraction of examples that may be poisoned, below 0.5; RandEigen judges.
        f: their number, in place of `eps`.
        rule: any rule that weighs rows; with `eps` or `f` also its name, such as "nnm+krum", or a function of
            the Gram matrix.
        groups: (n,) labels, typically the classes. The examples of each label are judged among themselves:
            `eps` is then the fraction in every group, each group keeps its share of the gradient, and groups
            of fewer than 5 examples are judged together.
        directions: judge where gradients point and not their norms. There is then no `bias_bound`.
        seed: makes the judgement reproducible; None draws one, which the verdict names.
        on_excess: what to do where more examples are not finite than may be corrupt: "raise", or "drop" to
            go on without them.

    Returns:
        The weight of every example, and a bound on what the corrupt ones can have done.

    Raises:
        BadModel: the losses are no vector, or the model cannot be taken apart example by example.
        BadParameter: an option cannot be used; `BadFraction` where it is `eps`.
        TooManyCorrupt: more examples are not finite than may be corrupt.

    Examples:
        >>> import torch, randeigen.torch
        >>> model = torch.nn.Linear(4, 3)
        >>> x, y = torch.randn(20, 4), torch.randint(0, 3, (20,))
        >>> losses = torch.nn.functional.cross_entropy(model(x), y, reduction="none")
        >>> verdict = randeigen.torch.backward(losses, model, eps=0.1)
        >>> verdict.weights.shape, model.weight.grad.shape
        ((20,), torch.Size([3, 4]))
    """
    chosen = rule_for(eps, f, rule, on_excess)
    plan = plan_for(losses, model)
    labels = as_groups(groups, plan.n)
    # In one tensor, so that the host waits for the device once.
    on_host = torch.cat([measure(plan), losses.detach().double()[None]]).cpu().numpy()
    gram, is_finite = on_host[:-1], np.isfinite(on_host[-1])
    bad = {int(i): "not finite: its loss is NaN or infinity" for i in np.flatnonzero(~is_finite)}
    verdict = judge(
        gram, chosen, labels, directions=directions, seed=seed, on_excess=on_excess, unusable=bad,
        itemsize=plan.itemsize, columns=sum(p.numel() for p in plan.trained.values()),
    )  # fmt: skip
    _fill_grad(plan, gram, verdict)
    return verdict


def _fill_grad(plan: GramPlan, gram: Array, verdict: BatchVerdict) -> None:
    """The second pass, checked against the Gram matrix before anything is added to what `.grad` held."""
    leaves, judged = [node.variable for node in plan.graph.leaves.values()], list(plan.trained.values())
    if verdict.unusable and len(judged) < sum(isinstance(leaf, nn.Parameter) for leaf in leaves):
        raise BadModel(
            f"examples {list(verdict.unusable)[:8]} are not finite, and the losses depend on parameters "
            "outside the given model, which cannot be given a gradient without them; give the whole model."
        )
    coefficients = torch.as_tensor(verdict.coefficients).to(plan.losses)
    before = [(p, p.grad) for p in leaves if p.grad is not None]
    for p, _ in before:
        p.grad = None
    try:
        if verdict.unusable:
            _combine(plan, coefficients * plan.signs, sorted(set(range(plan.n)) - set(verdict.unusable)))
        else:
            with forward_precision(plan.losses):
                plan.losses.backward(coefficients)
        # The caller's own hooks may change what comes to .grad; then there is nothing to check it against.
        if not any(p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None) for p in judged):
            check_gradient([p.grad for p in judged], gram, verdict.coefficients, plan)
    except BaseException:
        for p in leaves:
            p.grad = None
        for p, old in before:
            p.grad = old
        raise
    for p, old in before:
        p.grad = old if p.grad is None else old.add_(p.grad)


def _combine(plan: GramPlan, coefficients: Tensor, usable: list[int]) -> None:
    """The weighted sum without the unusable examples: in an ordinary backward pass 0 · inf would be NaN."""
    index = torch.tensor(usable, device=coefficients.device)

    def spend(parameter: nn.Parameter, gradients: Sequence[PerExampleGradient]) -> None:
        blocks = [
            torch.tensordot(coefficients[index].to(rows.dtype), rows[index], 1)
            for rows in summed_blocks(gradients, parameter.shape, PIECE)
        ]
        parameter.grad = torch.cat(blocks).reshape(parameter.shape).to(parameter.dtype)

    plan.run(spend)
    plan.forget_inputs()
