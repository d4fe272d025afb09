"""Gradient matching (Geiping et al., ICLR 2021): poison with true labels that trains like one wrong label."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from randeigen.attacks.base import Poisoned, PoisoningContext, Tensor
from randeigen.attacks.poisons.simple import shuffled
from randeigen.errors import BadFraction

LR_DROPS = (93 / 250, 156 / 250, 218 / 250)  # of the steps: there the step size is divided by 10
STEP_SIZE = 0.1  # of Adam on the sign of the slope, in units of what the model sees


@dataclass(frozen=True)
class GradientMatching:
    """Images of one class, changed a little, pull the model as if a target of another class had their label.

    `share` of the training set (all of eps unless given), all of class y_adv, moves within `ball`/255 so that
    the gradient of their mean loss points where that of the target with label y_adv does, on the surrogate.
    Labels stay true. `target` counts through the test images that the surrogate reads rightly, in random
    order. Success: the target is taken for y_adv; a single image, so rates need many targets.
    """

    share: float | None = None
    ball: float = 64.0  # published for colour images: 16; digits are nearly black and white
    steps: int = 250
    restarts: int = 1
    target: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be searched."""
        if not 0 < self.ball <= 255 or self.steps < 1 or self.restarts < 1 or self.target < 0:
            raise BadFraction(
                f"ball={self.ball}, steps={self.steps}, restarts={self.restarts}, target={self.target}; "
                "give a ball above 0 and up to 255, at least one step and restart, and which target from 0."
            )

    def poison(self, source: PoisoningContext) -> Poisoned:
        """The training set with some images of one class moved."""
        import torch

        (images, labels), (tests, answers) = source.victim, source.test
        model = source.surrogate()
        with torch.no_grad():
            right = torch.nonzero(model(tests).argmax(1) == answers).flatten()
        if self.target >= len(right):
            raise BadFraction(f"target={self.target}, but there are {len(right)} test images to aim at.")
        aim = right[int(source.rng.permutation(len(right))[self.target])]
        adverse = int((answers[aim] + source.rng.integers(1, source.classes)) % source.classes)
        share = source.eps if self.share is None else self.share
        pool = torch.nonzero(labels == adverse).flatten()
        many = min(math.ceil(share * len(labels)), len(pool))
        places = pool[pool.new_tensor(source.rng.permutation(len(pool))[:many])]
        moved = self.brew(source, model, images[places], adverse, tests[aim])
        images = images.clone()
        images[places] = moved
        mask = labels != labels
        mask[places] = True
        trials = {"asr": (tests[aim][None], answers[aim][None] * 0 + adverse)}
        return shuffled(source, images, labels, mask, trials)

    def brew(
        self, source: PoisoningContext, model: Any, images: Tensor, label: int, target: Tensor
    ) -> Tensor:
        """The images, moved: the best of all restarts."""
        import torch

        radius = self.ball / 255 * (source.high - source.low)
        low, high = (images - radius).clamp(min=source.low), (images + radius).clamp(max=source.high)
        wish = _slope(model, target[None], label, keep=False)
        best, least = images, math.inf
        for attempt in range(self.restarts):
            start = images.new_tensor(source.rng.standard_normal(images.shape) * radius)
            moved = (images + start).clamp(low, high).requires_grad_()
            adam = torch.optim.Adam([moved], lr=STEP_SIZE)
            for step in range(self.steps):
                adam.param_groups[0]["lr"] = STEP_SIZE * 0.1 ** sum(
                    step >= drop * self.steps for drop in LR_DROPS
                )
                apart = 1 - _cosine(_slope(model, moved, label, keep=True), wish)
                (moved.grad,) = torch.autograd.grad(apart, [moved])
                moved.grad.sign_()
                adam.step()
                with torch.no_grad():
                    moved.copy_(moved.clamp(low, high))
                if source.progress:
                    done = attempt * self.steps + step + 1
                    source.progress("making poison", done, self.restarts * self.steps)
            if (far := float(apart.detach())) < least:
                best, least = moved.detach(), far
        return best


def _slope(model: Any, images: Tensor, label: int, *, keep: bool) -> list[Tensor]:
    """The gradient of the mean loss of these images under this label."""
    import torch
    from torch.nn import functional

    logits = model(images)
    loss = functional.cross_entropy(logits, torch.full((len(images),), label, device=logits.device))
    return list(torch.autograd.grad(loss, list(model.parameters()), create_graph=keep))


def _cosine(a: list[Tensor], b: list[Tensor]) -> Tensor:
    """Over all parameters together."""
    inner = sum((x * y).sum() for x, y in zip(a, b, strict=True))
    return inner / (sum(x.square().sum() for x in a) * sum(y.square().sum() for y in b)).sqrt()
