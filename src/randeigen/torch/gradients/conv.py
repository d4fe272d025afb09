"""Convolutions are linear layers on windows; the windows are laid out a few channels at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from operator import mul
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from randeigen.torch.gradients.factors import gram_by_pairs, pairs_are_cheaper, ranges, sum_of_grams


@dataclass(frozen=True, eq=False)
class ConvWindows:
    """Gradients of a convolution's weight: Σ over positions of gradient at the output ⊗ window of the input.

    `images` is 1 unless an example consists of several images (microbatches as rows).
    """

    layer: Any  # nn.Conv1d, 2d or 3d
    inputs: Tensor  # (n, images, in_channels, ...)
    grad_outputs: Tensor  # (n, images, out_channels, ...)

    def gram(self, piece: int) -> Tensor:
        """By pairs of windows where these are few; else written out, some channels at a time."""
        n, images, outputs = self.grad_outputs.shape[:3]
        positions = images * math.prod(self.grad_outputs.shape[3:])
        width = self.layer.in_channels * math.prod(self.layer.kernel_size)
        if self.layer.groups == 1 and pairs_are_cheaper(n, positions, width, outputs):
            windows = self.windows(0, self.layer.in_channels)
            return gram_by_pairs(windows.mT, self.grad_outputs_of(0, outputs).mT, piece)
        return sum_of_grams(self._blocks(piece))

    def block(self, lo: int, hi: int) -> Tensor:
        """The gradients of the output channels lo to hi."""
        per_group = self.layer.out_channels // self.layer.groups
        depth = self.layer.in_channels // self.layer.groups
        parts = []
        for group in range(lo // per_group, (hi - 1) // per_group + 1):
            start, stop = max(lo, group * per_group), min(hi, (group + 1) * per_group)
            windows = self.windows(group * depth, (group + 1) * depth)
            parts.append(self.grad_outputs_of(start, stop) @ windows.mT)
        gradients: Tensor = torch.cat(parts, 1).unflatten(2, (depth, *self.layer.kernel_size))
        return gradients

    def _blocks(self, piece: int) -> Iterator[Tensor]:
        n, groups = self.inputs.shape[0], self.layer.groups
        depth, outputs = self.layer.in_channels // groups, self.layer.out_channels // groups
        size, positions = math.prod(self.layer.kernel_size), math.prod(self.grad_outputs.shape[3:])
        positions *= self.grad_outputs.shape[1]
        if groups == 1:
            grads = self.grad_outputs_of(0, outputs)
            for lo, hi in ranges(depth, n * size * (positions + outputs), piece):
                yield torch.bmm(self.windows(lo, hi), grads.mT)  # this way round is the faster one
            return
        for lo, hi in ranges(groups, n * depth * size * (positions + outputs), piece):
            grads = self.grad_outputs_of(lo * outputs, hi * outputs).unflatten(1, (hi - lo, outputs))
            yield self.windows(lo * depth, hi * depth).unflatten(1, (hi - lo, depth * size)) @ grads.mT

    def grad_outputs_of(self, lo: int, hi: int) -> Tensor:
        """(n, hi − lo, positions) the gradients at the output channels lo to hi."""
        grads = self.grad_outputs if hi - lo == self.grad_outputs.shape[2] else self.grad_outputs[:, :, lo:hi]
        if grads.shape[1] > 1:
            grads = grads.transpose(1, 2)
        return grads.reshape(grads.shape[0], hi - lo, -1)

    def windows(self, lo: int, hi: int) -> Tensor:
        """(n, (hi − lo)·kernel, positions) the windows of the input channels lo to hi."""
        layer, n = self.layer, self.inputs.shape[0]
        x = self._padded(self.inputs if hi - lo == layer.in_channels else self.inputs[:, :, lo:hi])
        example, image, channel, *lines = x.stride()
        extents = [d * (size - 1) + 1 for d, size in zip(layer.dilation, layer.kernel_size, strict=True)]
        axes = zip(x.shape[3:], extents, layer.stride, strict=True)
        positions = [(size - extent) // stride + 1 for size, extent, stride in axes]
        windows = x.as_strided(
            (n, hi - lo, *layer.kernel_size, x.shape[1], *positions),
            (example, channel, *map(mul, lines, layer.dilation), image, *map(mul, lines, layer.stride)),
        )
        return windows.reshape(n, (hi - lo) * math.prod(layer.kernel_size), -1)

    def _padded(self, x: Tensor) -> Tensor:
        layer, padding = self.layer, self.layer._reversed_padding_repeated_twice
        if not any(padding):
            return x
        if layer.padding_mode == "zeros":
            return F.pad(x, padding)
        padded: Tensor = F.pad(x.flatten(0, 1), padding, layer.padding_mode).unflatten(0, x.shape[:2])
        return padded
