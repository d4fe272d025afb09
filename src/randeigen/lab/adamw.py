"""AdamW for many clients at once: moments have the shape of the stacked parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BETA1, BETA2, SMALLEST = 0.9, 0.999, 1e-8  # as in torch.optim.AdamW


class StackedAdamW:
    """The moments of all clients, zero at the start of a round; the first rows are those still training."""

    def __init__(self, parameters: Sequence[Tensor], weight_decay: float) -> None:
        self.first = [torch.zeros_like(piece) for piece in parameters]
        self.second = [torch.zeros_like(piece) for piece in parameters]
        self.steps = [torch.zeros((), device=piece.device) for piece in parameters]
        self.weight_decay = weight_decay

    def step(
        self,
        parameters: Sequence[Tensor],
        grads: Sequence[Tensor],
        lr: float,
        lr_factors: Tensor | None = None,
    ) -> None:
        """One step of the clients of these rows; `lr_factors` (clients,) are those of their learning rates.

        The clients have all taken every step before this one.
        """
        active = len(parameters[0])
        before = [piece.clone() for piece in parameters] if lr_factors is not None else []
        torch._foreach_add_(self.steps, 1)
        torch._fused_adamw_(
            list(parameters),
            [grad.contiguous() for grad in grads],
            [piece[:active] for piece in self.first],
            [piece[:active] for piece in self.second],
            [],
            self.steps,
            lr=lr,
            beta1=BETA1,
            beta2=BETA2,
            weight_decay=self.weight_decay,
            eps=SMALLEST,
            amsgrad=False,
            maximize=False,
        )
        if lr_factors is not None:  # a step is proportional to the learning rate
            for piece, old in zip(parameters, before, strict=True):
                piece.copy_(old + lr_factors.view(-1, *(1,) * (piece.ndim - 1)) * (piece - old))
