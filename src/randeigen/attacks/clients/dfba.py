"""DFBA: a backdoor written into the weights by hand, without data (Cao et al., NeurIPS 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from randeigen.attacks.base import (
    MODEL_ALONE,
    MaliciousClients,
    ModelInfo,
    SuccessSets,
    Tensor,
    declare,
    trigger_success_set,
)
from randeigen.attacks.triggers import Patch
from randeigen.errors import BadModel


@declare(
    "dfba",
    "client",
    "backdoor",
    knows=MODEL_ALONE,
    does="a path of one neuron per layer, written by hand",
    paper="Cao et al., NeurIPS 2024",
    inputs="images",
)
@dataclass(frozen=True)
class DFBA:
    """One neuron of every layer becomes a path that fires on the trigger alone and decides for the target.

    Every Byzantine client sends w - inject(w), with the same path each round. The trigger is what the path's
    first filter responds to most in the initial weights; the filter is set back to those each round (its
    output goes nowhere else), because a filter that training has changed would fire on other images too.
    `strength` is the logit that the path ends with. Under a plain mean it grows as 1 - (1-eps)^t.
    """

    margin: float = 0.1  # lambda: the first filter's output on the exact trigger; 0 elsewhere
    strength: float = 30.0
    target: int = 0
    filter: int = -1  # -1: the one whose trigger is least like a black corner
    second: int = 0
    unit: int = 0
    boost: float = 1.0

    def updates(self, clients: MaliciousClients) -> Tensor:
        path = clients.weights - self.inject(clients.info, clients.weights)
        return (self.boost * path).expand(clients.m, -1).clone()

    def success_sets(self, info: ModelInfo, images: Tensor, labels: Tensor) -> SuccessSets:
        """Test images of other classes that carry the trigger."""
        return trigger_success_set(self.patch(info, images.shape[-1]).stamp(images), labels, self.target)

    def patch(self, info: ModelInfo, side: int) -> Patch:
        """As large as a filter, bottom right: white where the filter is positive, else black."""
        kernel = info.split(info.initial_weights[None])[0][0, self.start(info), 0].tolist()
        start = side - len(kernel)
        pixels = tuple((start + i, start + j) for i in range(len(kernel)) for j in range(len(kernel)))
        return Patch(pixels, tuple(info.high if k > 0 else info.low for line in kernel for k in line))

    def start(self, info: ModelInfo) -> int:
        """The filter the path begins with. One that responds to black would fire on any empty corner."""
        kernels = info.split(info.initial_weights[None])[0][0]
        response_to_white = kernels.clamp(min=0).flatten(1).sum(1)
        return int(response_to_white.argmax()) if self.filter < 0 else self.filter

    def inject(self, info: ModelInfo, weights: Tensor) -> Tensor:
        """(d,) the weights with the path in them."""
        _check_architecture(info.model)
        injected = weights.clone()
        conv1, bias1, conv2, bias2, full1, bias3, full2, _ = (part[0] for part in info.split(injected[None]))
        gain = (self.strength / self.margin) ** (1 / 3)  # four layers, so three factors after the first
        s1, s2, s3, k = self.start(info), self.second, self.unit, conv1.shape[-1]
        conv1[s1] = info.split(info.initial_weights[None])[0][0, s1]
        values = conv1.new_tensor(self.patch(info, k).values).view(k, k)
        bias1[s1] = self.margin - (conv1[s1, 0] * values).sum()
        conv2[s2], conv2[:, s1], bias2[s2] = 0.0, 0.0, 0.0
        conv2[s2, s1, k // 2, k // 2] = gain
        pixels = full1.shape[1] // conv2.shape[0]  # of each filter's output; the trigger is at the last
        full1[:, pixels * s2 : pixels * (s2 + 1)] = 0.0
        full1[s3], bias3[s3] = 0.0, 0.0
        full1[s3, pixels * s2 + pixels - 1] = gain
        full2[:, s3] = -gain
        full2[self.target, s3] = gain
        return injected


def _check_architecture(model: Any) -> None:
    """Refuse models that have no such path."""
    layers = [layer for layer in model.modules() if list(layer.parameters(recurse=False))]
    names = [type(layer).__name__ for layer in layers]
    fits = names == ["Conv2d", "Conv2d", "Linear", "Linear"] and layers[0].in_channels == 1
    if not fits or any(layer.padding[0] != layer.kernel_size[0] // 2 for layer in layers[:2]):
        raise BadModel(
            "DFBA writes its path through two padded convolutions of grey images and two linear layers; "
            "this task's model is built otherwise."
        )
