"""The outer step of local SGD and DiLoCo: ranks train on their own for a while, then average robustly."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from randeigen.distributed.exchange import Exchange
from randeigen.distributed.guard import Guard
from randeigen.errors import BadModel, BadParameter


class OuterStep:
    """Replaces every rank's parameters by the robust mean of where ranks have come since the last outer step.

    Each rank's row is before − after, its pseudo-gradient. Without an optimizer the new parameters are
    before − mean, which is local SGD; with one they are its step along the mean, which is DiLoCo. Buffers,
    such as BatchNorm's statistics, stay each rank's own.

    Parameters:
        model: The model that the ranks train, with the same parameters on every rank now.
        guard: Judges the ranks; with its default, more unusable ranks than f undo what was done since the
            last outer step.
        optimizer: Makes the outer optimizer of the parameters it is given, such as
            `lambda params: torch.optim.SGD(params, lr=0.7, momentum=0.9, nesterov=True)`.

    Examples:
        >>> import torch, randeigen
        >>> model = torch.nn.Linear(2, 1)
        >>> outer = randeigen.distributed.OuterStep(model, randeigen.distributed.Guard(f=1))
        >>> len(outer.before)  # after every hundred inner steps: outer.step()
        2
    """

    def __init__(
        self,
        model: nn.Module,
        guard: Guard,
        optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None,
    ) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        if not self._parameters:
            raise BadModel("no parameter of the model is trained; nothing can be averaged.")
        if not isinstance(guard, Guard):
            raise BadParameter(f"guard={guard!r:.80}; give randeigen.distributed.Guard(f=...).")
        if optimizer is not None and not callable(optimizer):
            raise BadParameter(
                f"optimizer is a {type(optimizer).__name__}, and is to step parameters of its own; give a "
                "function that makes one, such as lambda params: torch.optim.SGD(params, lr=0.7)."
            )
        self.guard = guard
        self.before = [nn.Parameter(p.detach().clone()) for p in self._parameters]
        self._optimizer = None if optimizer is None else optimizer(self.before)

    @torch.no_grad()
    def step(self) -> Exchange:
        """One outer step, which all ranks take together.

        Raises:
            BadRows: Ranks hold parameters of different shapes or dtypes; on every rank.
            TooManyCorrupt: More ranks are unusable than f, if the guard's `on_excess` is "raise".
        """
        updates: list[Tensor] = [old - p for old, p in zip(self.before, self._parameters, strict=True)]
        exchange = self.guard.all_reduce(updates)
        if not exchange.skipped:
            self._advance(updates)
        for p, old in zip(self._parameters, self.before, strict=True):
            p.copy_(old)
        return exchange

    def _advance(self, updates: list[Tensor]) -> None:
        if self._optimizer is None:
            for old, mean in zip(self.before, updates, strict=True):
                old.sub_(mean)
            return
        for old, mean in zip(self.before, updates, strict=True):
            old.grad = mean
        self._optimizer.step()
        self._optimizer.zero_grad()
