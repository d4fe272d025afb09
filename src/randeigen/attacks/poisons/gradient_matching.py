"""Gradient matching (Geiping et al., ICLR 2021): poison with true labels that trains like one wrong label."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from randeigen.attacks.base import SIMILAR_DATA, Poisoned, PoisoningContext, Tensor, declare
from randeigen.attacks.poisons.simple import shuffled
from randeigen.errors import BadParameter

LR_MILESTONES = (93 / 250, 156 / 250, 218 / 250)  # fractions of the steps; each divides the rate by 10
LEARNING_RATE = 0.1  # of Adam on the sign of the gradient, in units of what the model sees


@declare(
    "matching",
    "data",
    "targeted",
    knows=SIMILAR_DATA,
    does="images with true labels, changed so that one given image is misread",
    paper="Geiping et al., ICLR 2021",
)
@dataclass(frozen=True)
class GradientMatching:
    """Images of one class, changed a little, train the model as if a target of another class had their label.

    `share` of the training set (all of eps unless given), all of class y_adv, changes within `ball`/255 so
    that the gradient of its mean loss aligns with that of the target with label y_adv, on the surrogate.
    Labels stay true. `target` counts through the test images that the surrogate reads rightly, in random
    order. Success: the target is taken for y_adv; a single image, so rates need many targets.
    """

    share: float | None = None
    ball: float = 64.0  # published for colour images: 16; digits are nearly black and white
    steps: int = 250
    restarts: int = 1
    target: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.ball <= 255 or self.steps < 1 or self.restarts < 1 or self.target < 0:
            raise BadParameter(
                f"ball={self.ball}, steps={self.steps}, restarts={self.restarts}, target={self.target}; "
                "give a ball above 0 and up to 255, at least one step and restart, and which target from 0."
            )

    def poison(self, context: PoisoningContext) -> Poisoned:
        import torch

        (images, labels), (tests, answers) = context.victim, context.test
        model = context.surrogate()
        with torch.no_grad():
            correct = torch.nonzero(model(tests).argmax(1) == answers).flatten()
        if self.target >= len(correct):
            raise BadParameter(f"target={self.target}, but there are {len(correct)} test images to aim at.")
        aim = correct[int(context.rng.permutation(len(correct))[self.target])]
        adverse = (int(answers[aim]) + int(context.rng.integers(1, context.classes))) % context.classes
        share = context.eps if self.share is None else self.share
        pool = torch.nonzero(labels == adverse).flatten()
        count = min(math.ceil(share * len(labels)), len(pool))
        indices = pool[pool.new_tensor(context.rng.permutation(len(pool))[:count])]
        changed = self.brew(context, model, images[indices], adverse, tests[aim])
        images = images.clone()
        images[indices] = changed
        mask = labels != labels
        mask[indices] = True
        success_sets = {"asr": (tests[aim][None], answers[aim][None] * 0 + adverse)}
        return shuffled(context, images, labels, mask, success_sets)

    def brew(
        self, context: PoisoningContext, model: Any, images: Tensor, label: int, target: Tensor
    ) -> Tensor:
        """The changed images: the best of all restarts."""
        import torch

        radius = self.ball / 255 * (context.high - context.low)
        low, high = (images - radius).clamp(min=context.low), (images + radius).clamp(max=context.high)
        target_gradient = _gradient(model, target[None], label, keep=False)
        best, least = images, math.inf
        for attempt in range(self.restarts):
            start = images.new_tensor(context.rng.standard_normal(images.shape) * radius)
            changed = (images + start).clamp(low, high).requires_grad_()
            adam = torch.optim.Adam([changed], lr=LEARNING_RATE)
            for step in range(self.steps):
                adam.param_groups[0]["lr"] = LEARNING_RATE * 0.1 ** sum(
                    step >= milestone * self.steps for milestone in LR_MILESTONES
                )
                dissimilarity = 1 - _cosine(_gradient(model, changed, label, keep=True), target_gradient)
                (changed.grad,) = torch.autograd.grad(dissimilarity, [changed])
                changed.grad.sign_()
                adam.step()
                with torch.no_grad():
                    changed.copy_(changed.clamp(low, high))
                if context.progress:
                    done = attempt * self.steps + step + 1
                    context.progress("making poison", done, self.restarts * self.steps)
            if (value := float(dissimilarity.detach())) < least:
                best, least = changed.detach(), value
        return best


def _gradient(model: Any, images: Tensor, label: int, *, keep: bool) -> list[Tensor]:
    """The gradient of the mean loss of these images under this label."""
    import torch
    from torch.nn import functional

    logits = model(images)
    loss = functional.cross_entropy(logits, torch.full((len(images),), label, device=logits.device))
    return list(torch.autograd.grad(loss, list(model.parameters()), create_graph=keep))


def _cosine(a: list[Tensor], b: list[Tensor]) -> Tensor:
    """The cosine similarity over all parameters together."""
    inner: Any = sum((x * y).sum() for x, y in zip(a, b, strict=True))
    squares: Any = sum(x.square().sum() for x in a) * sum(y.square().sum() for y in b)
    cosine: Tensor = inner / squares.sqrt()
    return cosine
