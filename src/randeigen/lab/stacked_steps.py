"""Steps of SGD of convolutional models on a GPU, each gradient applied where it is made.

What autograd does by some seventy kernels, for a model of blocks (convolution, ReLU, pooling) and linear
layers, is here about twenty. The weights of a linear layer, most of a model, are read twice in a step and
written once: their gradients are never in memory. Products are of bfloat16 in blocks, of TF32 in linear
layers; sums of float32, in a fixed order: the same seed gives the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from randeigen.lab import stacked_cuda
from randeigen.lab.config import LocalTraining
from randeigen.lab.stacked_blocks import Block, Trained, options
from randeigen.lab.stacked_model import StackedModel, is_block
from randeigen.lab.tasks import Loss, cross_entropy

try:
    import triton

    from randeigen.lab import stacked_step_kernels
except ImportError:  # pragma: no cover - torch ships it wherever it has a GPU
    triton = None

MAX_BATCH = 128  # images of a step, all of whose gradients one program holds
# Outputs and inputs of a linear layer at a time, of its gradients, and warps: with many images, and with few.
MANY_IMAGES = 64
TALL, WIDE, WARPS = {True: 16, False: 32}, {True: 32, False: 64}, {True: 2, False: 4}
FORWARD_WIDE, FORWARD_TALL = 32, 64  # and of what it gives
MAX_CLASSES, LINES = 64, 32  # of one program: classes, and images, of the gradients of the loss


def applies(model: StackedModel, pieces: Sequence[Tensor], images: Tensor, batch: int) -> bool:
    """Whether steps on these (N, 1, height, width) images can be taken here, of this many of them."""
    if triton is None or not model.known or images.ndim != 4 or images.shape[1] != 1 or batch > MAX_BATCH:
        return False
    layers: list[Any] = list(model.model.children())
    x, index = images.new_empty((1, 1, *images.shape[2:], 1)), 0
    while is_block(*layers[:3]):
        (k, _), pad = layers[0].kernel_size, layers[0].padding[0]
        if not stacked_cuda.takes(x, pieces[index], pad) or k % 2 == 0:
            return False
        sides = ((side + 2 * pad - k + 1) // 2 for side in x.shape[2:4])
        x, index = images.new_empty((1, 1, *sides, stacked_cuda.padded(layers[0].out_channels))), index + 2
        del layers[:3]
    expected = [nn.Flatten, *[nn.Linear, nn.ReLU] * (len(layers) // 2)][: len(layers)]
    biased = all(layer.bias is not None for layer in layers if isinstance(layer, nn.Linear))
    return bool(index and biased and len(layers) % 2 == 0 and [type(layer) for layer in layers] == expected)


@dataclass(frozen=True)
class _Linear:
    """A linear layer of all clients."""

    weights: Trained
    bias: Trained
    after_relu: bool  # what its inputs are

    def forward(self, x: Tensor, relu: bool) -> Tensor:
        """(clients, batch, outputs), the larger of it and 0 with `relu`."""
        (g, b, inputs), outputs = x.shape, self.bias.value.shape[1]
        out = torch.empty((g, b, outputs), device=x.device)
        stacked_step_kernels.linear[(triton.cdiv(outputs, FORWARD_TALL), g)](
            x, self.weights.value, self.bias.value, out, b, INPUTS=inputs, OUTPUTS=outputs,
            BATCH=max(16, triton.next_power_of_2(b)), WIDE=FORWARD_WIDE, TALL=FORWARD_TALL, RELU=relu,
            num_warps=4, num_stages=4,
        )  # fmt: skip
        return out

    def backward(self, x: Tensor, grad: Tensor, rates: Tensor, factors: tuple[float, ...]) -> Tensor:
        """A step, and the gradient of the inputs; behind a ReLU that of what the ReLU was given."""
        g, b, inputs = x.shape
        grad_inputs, batch = torch.empty_like(x), max(16, triton.next_power_of_2(b))
        tall, wide, warps = (each[batch >= MANY_IMAGES] for each in (TALL, WIDE, WARPS))
        stacked_step_kernels.linear_backward[(triton.cdiv(inputs, wide), g)](
            x, grad, grad_inputs, *self.weights.parts, *self.bias.parts, rates, b, *factors,
            INPUTS=inputs, OUTPUTS=grad.shape[2], BATCH=batch, WIDE=wide, TALL=tall, RELU=self.after_relu,
            **options(self.weights), num_warps=warps,
        )  # fmt: skip
        return grad_inputs


class FusedSteps:
    """The parameters of a model of blocks and linear layers, and steps of SGD on them.

    Between the last block and the first linear layer a pixel's channels stay beside each other, with the
    zeros that blocks pad them with: the weights of that layer are brought into this order, and back.
    """

    def __init__(
        self,
        model: Any,
        pieces: Sequence[Tensor],
        anchors: Sequence[Tensor],
        training: LocalTraining,
        rho: float,
        loss: Loss,
        images: tuple[int, ...],
    ) -> None:
        """`pieces` and `anchors`, views of the weights, are copied. `images` is (batch, height, width)."""
        self.loss, self.factors = loss, (training.weight_decay, training.momentum, 2 * rho)
        convolutions: list[Any] = [layer for layer in model if isinstance(layer, nn.Conv2d)]
        batch, *sides = images
        for layer in convolutions:
            sides = [(side + 2 * layer.padding[0] - layer.kernel_size[0] + 1) // 2 for side in sides]
        self._first_linear, self._sides = 2 * len(convolutions), tuple(sides)
        self._channels = convolutions[-1].out_channels
        self._trained = []
        for index, piece in enumerate(pieces):
            value = self._inside(index, piece)
            momentum = torch.zeros_like(value) if training.momentum else None
            anchor = self._inside(index, anchors[index]) if anchors else None
            self._trained.append(Trained(value, momentum, anchor))
        pairs = list(zip(self._trained[::2], self._trained[1::2], strict=True))
        self.blocks: list[Block] = []
        sides = list(images[1:])
        for index, layer in enumerate(convolutions):
            block = Block(*pairs[index], batch, (sides[0], sides[1]), int(layer.padding[0]))
            self.blocks.append(block)
            sides = list(block.pooled)
        last = len(convolutions)
        self.linear = [_Linear(*pair, index > 0) for index, pair in enumerate(pairs[last:])]

    @property
    def pieces(self) -> list[Tensor]:
        """The parameters as the model has them."""
        values = [
            each.value.permute(0, 4, 3, 1, 2) if each.value.ndim == 5 else each.value
            for each in self._trained
        ]
        pixels = values[self._first_linear].unflatten(2, (*self._sides, -1))[..., : self._channels]
        values[self._first_linear] = pixels.permute(0, 1, 4, 2, 3).flatten(2)
        return values

    def _inside(self, index: int, piece: Tensor) -> Tensor:
        """A copy of a parameter as it is kept here."""
        if piece.ndim == 5:  # a kernel: neighbours are the outputs, which kernels read together
            return piece.permute(0, 3, 4, 2, 1).clone(memory_format=torch.contiguous_format)
        if index != self._first_linear:
            return piece.clone(memory_format=torch.contiguous_format)
        pixels = piece.unflatten(2, (self._channels, *self._sides)).permute(0, 1, 3, 4, 2)
        zeros = stacked_cuda.padded(self._channels) - self._channels
        return functional.pad(pixels, (0, zeros)).flatten(2).contiguous()

    def step(
        self, images: Tensor, indices: Tensor | None, labels: Tensor, loss_weights: Tensor, rates: Tensor
    ) -> None:
        """One step of the first clients, as many as there are rates.

        Of the images that have these (clients, batch) indices, or of (clients, batch, 1, height, width) ones.
        """
        g = len(rates)
        self.blocks[0].read(images, indices, g)
        sources = []
        for block, after in zip(self.blocks, [*self.blocks[1:], None], strict=True):
            x, source = block.forward(g, after)
            sources.append(source)
        x = x.flatten(2)
        inputs = []
        for layer in self.linear:
            inputs.append(x)
            x = layer.forward(x, relu=layer is not self.linear[-1])
        grad = self._loss_gradient(x, labels, loss_weights)
        for layer, x in zip(reversed(self.linear), reversed(inputs), strict=True):
            grad = layer.backward(x, grad, rates, self.factors)
        for block, source in zip(reversed(self.blocks), reversed(sources), strict=True):
            grad = block.backward(grad.view(source.shape), source, rates, self.factors)

    def _loss_gradient(self, logits: Tensor, labels: Tensor, loss_weights: Tensor) -> Tensor:
        many, classes = labels.numel(), logits.shape[2]
        if self.loss is cross_entropy and classes <= MAX_CLASSES:
            grad = torch.empty_like(logits)
            stacked_step_kernels.cross_entropy_gradient[(triton.cdiv(many, LINES),)](
                logits, labels.contiguous(), loss_weights.contiguous(), grad, many,
                CLASSES=classes, WIDE=triton.next_power_of_2(classes), LINES=LINES,
            )  # fmt: skip
            return grad
        leaf = logits.detach().requires_grad_()
        losses = self.loss(leaf.flatten(0, 1), labels.flatten()).view_as(loss_weights)
        (grad,) = torch.autograd.grad((losses * loss_weights).sum(), leaf)
        return grad.contiguous()
