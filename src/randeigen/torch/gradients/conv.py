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

from randeigen.torch.gradients.factors import by_pairs, pairwise, ranges, sum_of_products


@dataclass(frozen=True, eq=False)
class ConvWindows:
    """What a convolution's weight gets: each window of the input times the slope at its place."""

    layer: Any  # nn.Conv1d, 2d or 3d
    inputs: Tensor  # (n, times, channels, ...)
    slopes: Tensor  # (n, times, outputs, ...); times is 1 unless an example is several images

    def gram(self, piece: int) -> Tensor:
        """By pairs of windows where these are few; else written out, some channels at a time."""
        n, times, outputs = self.slopes.shape[:3]
        places = times * math.prod(self.slopes.shape[3:])
        wide = self.layer.in_channels * math.prod(self.layer.kernel_size)
        if self.layer.groups == 1 and by_pairs(n, places, wide, outputs):
            return pairwise(self.windows(0, self.layer.in_channels).mT, self.slopes_of(0, outputs).mT, piece)
        return sum_of_products(self._pieces(piece))

    def block(self, lo: int, hi: int) -> Tensor:
        """The gradients of these output channels."""
        per_group = self.layer.out_channels // self.layer.groups
        deep = self.layer.in_channels // self.layer.groups
        found = []
        for group in range(lo // per_group, (hi - 1) // per_group + 1):
            start, stop = max(lo, group * per_group), min(hi, (group + 1) * per_group)
            windows = self.windows(group * deep, (group + 1) * deep)
            found.append(self.slopes_of(start, stop) @ windows.mT)
        return torch.cat(found, 1).unflatten(2, (deep, *self.layer.kernel_size))

    def _pieces(self, piece: int) -> Iterator[Tensor]:
        n, groups = self.inputs.shape[0], self.layer.groups
        deep, outputs = self.layer.in_channels // groups, self.layer.out_channels // groups
        size, places = math.prod(self.layer.kernel_size), math.prod(self.slopes.shape[3:])
        places *= self.slopes.shape[1]
        if groups == 1:
            slopes = self.slopes_of(0, outputs)
            for lo, hi in ranges(deep, n * size * (places + outputs), piece):
                yield torch.bmm(self.windows(lo, hi), slopes.mT)  # this way round is the faster one
            return
        for lo, hi in ranges(groups, n * deep * size * (places + outputs), piece):
            slopes = self.slopes_of(lo * outputs, hi * outputs).unflatten(1, (hi - lo, outputs))
            yield self.windows(lo * deep, hi * deep).unflatten(1, (hi - lo, deep * size)) @ slopes.mT

    def slopes_of(self, lo: int, hi: int) -> Tensor:
        """(n, hi − lo, places) the slopes of these output channels."""
        slopes = self.slopes if hi - lo == self.slopes.shape[2] else self.slopes[:, :, lo:hi]
        if slopes.shape[1] > 1:
            slopes = slopes.transpose(1, 2)
        return slopes.reshape(slopes.shape[0], hi - lo, -1)

    def windows(self, lo: int, hi: int) -> Tensor:
        """(n, (hi − lo)·kernel, places) the windows of these input channels, at every place."""
        layer, n = self.layer, self.inputs.shape[0]
        x = self._padded(self.inputs if hi - lo == layer.in_channels else self.inputs[:, :, lo:hi])
        example, time, channel, *lines = x.stride()
        reach = [far * (size - 1) + 1 for far, size in zip(layer.dilation, layer.kernel_size, strict=True)]
        steps = zip(x.shape[3:], reach, layer.stride, strict=True)
        places = [(size - far) // step + 1 for size, far, step in steps]
        seen = x.as_strided(
            (n, hi - lo, *layer.kernel_size, x.shape[1], *places),
            (example, channel, *map(mul, lines, layer.dilation), time, *map(mul, lines, layer.stride)),
        )
        return seen.reshape(n, (hi - lo) * math.prod(layer.kernel_size), -1)

    def _padded(self, x: Tensor) -> Tensor:
        layer, around = self.layer, self.layer._reversed_padding_repeated_twice
        if not any(around):
            return x
        if layer.padding_mode == "zeros":
            return F.pad(x, around)
        return F.pad(x.flatten(0, 1), around, layer.padding_mode).unflatten(0, x.shape[:2])
