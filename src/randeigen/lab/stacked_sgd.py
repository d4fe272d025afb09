"""Gradient steps of many clients at once: one forward, one backward, one update for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from randeigen.attacks.base import Poison
from randeigen.lab.config import LocalTraining
from randeigen.lab.stacked_model import StackedModel, Tensor
from randeigen.lab.tasks import Loss

MIN_RECORDED_STEPS = 8  # steps
MIN_ACTIVE_FRACTION = 0.7  # of the clients of a recorded step may be all that still work


LrFactors: TypeAlias = NDArray[np.float32]  # (steps, clients) what multiplies the rate; 0 for who is done


class Data(NamedTuple):
    """Images as the model sees them, and labels, on the device where all happens."""

    images: Tensor
    labels: Tensor


class StackedSGD:
    """Plain SGD on (clients, d) weights. Meanwhile each parameter of all clients lies by itself."""

    def __init__(
        self,
        model: StackedModel,
        loss: Loss,
        data: Data,
        weights: Tensor,
        recipe: LocalTraining,
        who: Tensor,
        poison: Poison | None = None,
        pull: tuple[Tensor, float] | None = None,
    ) -> None:
        self.model, self.loss, self.data, self.recipe = model, loss, data, recipe
        self.who, self.poison = who, poison
        self.rate = recipe.rate
        self.now = [piece.clone(memory_format=torch.contiguous_format) for piece in model.split(weights)]
        self.speed = [torch.zeros_like(piece) for piece in self.now] if recipe.momentum else []
        self.anchors = model.split(pull[0]) if pull is not None else []
        self.strength = pull[1] if pull is not None else 0.0

    def follow(self, places: Tensor, parts: Tensor, pace: LrFactors, active: Sequence[int]) -> Tensor:
        """(clients, d) after all steps of a plan, each by the clients still at work, which come first."""
        for steps, width in bands(active, pace) if places.is_cuda else _one_by_one(active):
            factors, self.rate = pace[steps, :width], self.recipe.rate
            changing = None
            if (factors == factors[0, 0]).all():
                self.rate *= float(factors[0, 0])
            else:
                changing = torch.from_numpy(factors).to(places.device)
            self._walk(places[steps, :width], parts[steps, :width], changing)
        return torch.cat([piece.flatten(1) for piece in self.now], dim=1)

    def step(self, places: Tensor, parts: Tensor, pace: Tensor | None) -> None:
        """One step of the first clients, one for each line of places; `pace` multiplies the rate."""
        active, recipe = len(places), self.recipe
        images, labels = self.data.images[places], self.data.labels[places]
        if self.poison is not None:
            images, labels = self.poison(images, labels, self.who[:active])
        mine = [piece[:active] for piece in self.now]
        leaves = [piece.detach().requires_grad_() for piece in mine]
        losses = self.loss(self.model.logits(leaves, images).flatten(0, 1), labels.flatten()).view_as(parts)
        slopes = list(torch.autograd.grad((losses * parts).sum(), leaves))
        with torch.no_grad():
            if recipe.decay:
                torch._foreach_add_(slopes, mine, alpha=recipe.decay)
            for slope, piece, anchor in zip(slopes, mine, self.anchors, strict=False):
                slope.add_(piece - anchor[:active], alpha=2 * self.strength)
            if self.speed:
                moving = [piece[:active] for piece in self.speed]
                torch._foreach_mul_(moving, recipe.momentum)
                torch._foreach_add_(moving, slopes)
                slopes = moving
            if pace is not None:
                slopes = [_by_client(pace, slope) for slope in slopes]
            torch._foreach_add_(mine, slopes, alpha=-self.rate)

    def _walk(self, places: Tensor, parts: Tensor, pace: Tensor | None) -> None:
        """Steps of the same clients. On a GPU, one is recorded after the first, and replayed.

        A step is dozens of small kernels, which the host would otherwise launch more slowly than they run.
        """
        plan = [part for part in (places, parts, pace) if part is not None]
        if len(places) < MIN_RECORDED_STEPS or not places.is_cuda:
            for step in range(len(places)):
                self.step(places[step], parts[step], None if pace is None else pace[step])
            return
        held = [part[0].clone() for part in plan]
        held_pace = None if pace is None else held[2]
        aside = _aside()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self.step(held[0], held[1], held_pace)
            graph = _recorded(lambda: self.step(held[0], held[1], held_pace))
            for step in range(1, len(places)):
                torch._foreach_copy_(held, [part[step] for part in plan])
                graph.replay()
        torch.cuda.current_stream().wait_stream(aside)


def bands(active: Sequence[int], pace: LrFactors) -> Iterator[tuple[slice, int]]:
    """Steps in a row that are taken together, and with how many clients.

    Few clients stand idle in any of them, and where all go at one pace, it is the same throughout.
    """
    common = [pace[s, 0] if (pace[s, :a] == pace[s, 0]).all() else None for s, a in enumerate(active)]
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
def _aside() -> Any:
    """Where steps are recorded. Always the same: the memory of one stream is not given to another."""
    return torch.cuda.Stream()


_LAST: list[Any] = []  # the graph recorded last: its memory serves the next, which replaces it


def _recorded(step: Callable[[], None]) -> Any:
    """A graph of this step. Only the newest may be replayed."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(*(last.pool() for last in _LAST))
    try:
        step()
    finally:
        graph.capture_end()
    _LAST[:] = [graph]
    return graph


def _by_client(factors: Tensor, slope: Tensor) -> Tensor:
    return factors.view(-1, *(1,) * (slope.ndim - 1)) * slope
