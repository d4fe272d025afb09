"""Steps of many clients at once, SGD or AdamW: one forward pass, one backward pass, one update for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from randeigen.attacks.base import BatchPoison, Restriction
from randeigen.lab.adamw import StackedAdamW
from randeigen.lab.config import LocalTraining
from randeigen.lab.stacked_model import StackedModel
from randeigen.lab.tasks import Loss

if TYPE_CHECKING:
    from randeigen.lab.stacked_steps import FusedSteps

MIN_RECORDED_STEPS = 8  # shorter runs of equal steps are not worth a CUDA graph
MIN_ACTIVE_FRACTION = 0.7  # re-record the CUDA graph when fewer of its clients are still training

# (steps, clients) factors of the learning rate; 0 once a client has finished.
LrFactors: TypeAlias = NDArray[np.float32]


class Data(NamedTuple):
    """Images as the model sees them, or token ids, and labels, on the device that trains."""

    images: Tensor
    labels: Tensor


class StackedSGD:
    """SGD or AdamW on (clients, d) weights, kept as one tensor per parameter for all clients while it runs.

    Parameters that a `restriction` leaves out are views of the weights, and are not trained.
    """

    def __init__(
        self,
        model: StackedModel,
        loss: Loss,
        data: Data,
        weights: Tensor,
        training: LocalTraining,
        members: Tensor,
        poison: BatchPoison | None = None,
        proximal: tuple[Tensor, float] | None = None,
        restriction: Restriction | None = None,
        batch: int = 0,
    ) -> None:
        """`members`: (clients,) the clients' indices. `batch`, where it is known, is that of every step."""
        self.model, self.loss, self.data, self.training = model, loss, data, training
        self.members, self.poison = members, poison
        self.lr = training.lr
        self.restriction = restriction
        self.trained = range(len(model.sizes)) if restriction is None else restriction.parameters
        adaptive = training.optimizer == "adamw"
        self.rho = proximal[1] if proximal is not None else 0.0
        pieces = model.split(weights)
        self.fused: FusedSteps | None = None
        if data.images.is_cuda and restriction is None and not adaptive and batch:
            from randeigen.lab import stacked_steps

            if stacked_steps.applies(model, pieces, data.images, batch):
                anchors = model.split(proximal[0]) if proximal else []
                shape = (batch, *data.images.shape[2:])
                self.fused = stacked_steps.FusedSteps(
                    model.model, pieces, anchors, training, self.rho, loss, shape
                )
                return
        self.parameters = [
            piece.clone(memory_format=torch.contiguous_format) if index in self.trained else piece
            for index, piece in enumerate(pieces)
        ]
        trained = [self.parameters[index] for index in self.trained]
        self.adamw = StackedAdamW(trained, training.weight_decay) if adaptive else None
        keeps_momentum = training.momentum and not adaptive
        self.momentum = [torch.zeros_like(piece) for piece in trained] if keeps_momentum else []
        self.anchors = [model.split(proximal[0])[index] for index in self.trained] if proximal else []

    def run(
        self, indices: Tensor, loss_weights: Tensor, lr_factors: LrFactors, active: Sequence[int]
    ) -> Tensor:
        """(clients, d) after all steps of a schedule, each by the clients that still train: the first."""
        if self.fused is not None:
            rates = torch.from_numpy(self.training.lr * lr_factors).to(indices.device)
            for steps, width in bands(active, np.ones_like(lr_factors)):
                self._run_band(indices[steps, :width], loss_weights[steps, :width], rates[steps, :width])
            return torch.cat([piece.flatten(1) for piece in self.fused.pieces], dim=1)
        for steps, width in bands(active, lr_factors) if self._recordable(indices) else _one_by_one(active):
            factors, self.lr = lr_factors[steps, :width], self.training.lr
            per_client = None
            if (factors == factors[0, 0]).all():
                self.lr *= float(factors[0, 0])
            else:
                per_client = torch.from_numpy(factors).to(indices.device)
            self._run_band(indices[steps, :width], loss_weights[steps, :width], per_client)
        return torch.cat([piece.flatten(1) for piece in self.parameters], dim=1)

    def step(self, indices: Tensor, loss_weights: Tensor, lr_factors: Tensor | None) -> None:
        """One step of the first clients, one for each row of indices; `lr_factors` (clients,) or None.

        Of fused steps they are the learning rates themselves.
        """
        active, training = len(indices), self.training
        if self.fused is not None and self.poison is None:
            assert lr_factors is not None
            labels = self.data.labels[indices]
            self.fused.step(self.data.images, indices, labels, loss_weights, lr_factors)
            return
        images, labels = self.data.images[indices], self.data.labels[indices]
        if self.poison is not None:
            images, labels = self.poison(images, labels, self.members[:active])
        if self.fused is not None:
            assert lr_factors is not None
            self.fused.step(images, None, labels, loss_weights, lr_factors)
            return
        stacked = [piece[:active] for piece in self.parameters]
        parameters = [stacked[index] for index in self.trained]
        leaves = [piece.detach().requires_grad_() for piece in parameters]
        for index, leaf in zip(self.trained, leaves, strict=True):
            stacked[index] = leaf
        logits = self.model.logits(stacked, images).flatten(0, 1)
        losses = self.loss(logits, labels.flatten()).view_as(loss_weights)
        grads = list(torch.autograd.grad((losses * loss_weights).sum(), leaves))
        with torch.no_grad():
            if training.weight_decay and self.adamw is None:
                torch._foreach_add_(grads, parameters, alpha=training.weight_decay)
            for grad, piece, anchor in zip(grads, parameters, self.anchors, strict=False):
                grad.add_(piece - anchor[:active], alpha=2 * self.rho)
            if self.adamw is not None:
                self.adamw.step(parameters, grads, self.lr, lr_factors)
            else:
                self._sgd_step(parameters, grads, lr_factors)
            if self.restriction is not None:
                self.restriction.project(parameters)

    def _sgd_step(self, parameters: list[Tensor], grads: list[Tensor], lr_factors: Tensor | None) -> None:
        if self.momentum:
            buffers = [piece[: len(parameters[0])] for piece in self.momentum]
            torch._foreach_mul_(buffers, self.training.momentum)
            torch._foreach_add_(buffers, grads)
            grads = buffers
        if lr_factors is not None:
            grads = [_times_factor(lr_factors, grad) for grad in grads]
        torch._foreach_add_(parameters, grads, alpha=-self.lr)

    def _recordable(self, indices: Tensor) -> bool:
        """Whether steps may be recorded as a CUDA graph: not if their shapes depend on the sentences."""
        return bool(indices.is_cuda) and self.training.optimizer == "sgd" and not self.model.trims

    def _run_band(self, indices: Tensor, loss_weights: Tensor, lr_factors: Tensor | None) -> None:
        """Steps of the same clients. On a GPU, one is recorded after the first, and replayed.

        A step is dozens of small kernels, which the host would otherwise launch more slowly than they run.
        """
        plan = [part for part in (indices, loss_weights, lr_factors) if part is not None]
        if len(indices) < MIN_RECORDED_STEPS or not self._recordable(indices):
            for step in range(len(indices)):
                factors = None if lr_factors is None else lr_factors[step]
                self.step(indices[step], loss_weights[step], factors)
            return
        inputs = [part[0].clone() for part in plan]  # the graph reads these; they are overwritten per step
        factors = None if lr_factors is None else inputs[2]
        side = _side_stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step(inputs[0], inputs[1], factors)
            graph = _record(lambda: self.step(inputs[0], inputs[1], factors))
            for step in range(1, len(indices)):
                torch._foreach_copy_(inputs, [part[step] for part in plan])
                graph.replay()
        torch.cuda.current_stream().wait_stream(side)


def bands(active: Sequence[int], lr_factors: LrFactors) -> Iterator[tuple[slice, int]]:
    """Consecutive steps that are taken together, and with how many clients.

    Few clients are idle in any of them, and where all have one learning rate, it is the same throughout.
    """
    common = [
        lr_factors[s, 0] if (lr_factors[s, :a] == lr_factors[s, 0]).all() else None
        for s, a in enumerate(active)
    ]
    first = 0
    for step in range(1, len(active) + 1):
        if (
            step == len(active)
            or active[step] < MIN_ACTIVE_FRACTION * active[first]
            or common[step] != common[first]
        ):
            yield slice(first, step), active[first]
            first = step


def _one_by_one(active: Sequence[int]) -> Iterator[tuple[slice, int]]:
    return ((slice(step, step + 1), width) for step, width in enumerate(active))


@cache
def _side_stream() -> Any:
    """The stream that records steps. Always the same: torch does not share memory between streams."""
    return torch.cuda.Stream()


_LAST: list[Any] = []  # the graph recorded last: its memory pool serves the next one, which replaces it


def _record(step: Callable[[], None]) -> Any:
    """A CUDA graph of this step. Only the newest graph may be replayed."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(*(last.pool() for last in _LAST))
    try:
        step()
    finally:
        graph.capture_end()
    _LAST[:] = [graph]
    return graph


def _times_factor(factors: Tensor, grad: Tensor) -> Tensor:
    return factors.view(-1, *(1,) * (grad.ndim - 1)) * grad
