"""The larger nets of `robust_step_costs`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """ResNet's basic block, with GroupNorm."""

    def __init__(self, wide: int, out: int, stride: int) -> None:
        super().__init__()
        self.one, self.norm_one = nn.Conv2d(wide, out, 3, stride, 1, bias=False), nn.GroupNorm(32, out)
        self.two, self.norm_two = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.GroupNorm(32, out)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or wide != out:
            self.skip = nn.Sequential(nn.Conv2d(wide, out, 1, stride, bias=False), nn.GroupNorm(32, out))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm_one(self.one(x)).relu()
        out: Tensor = (self.norm_two(self.two(inner)) + self.skip(x)).relu()
        return out


def resnet() -> nn.Module:
    """ResNet-18 as it is used on 32×32 images, with GroupNorm in place of BatchNorm."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(32, 64), nn.ReLU()]
    wide = 64
    for out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(wide, out, stride), Block(out, out, 1)]
        wide = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Encoder(nn.Module):
    """Six layers of BERT's size with a two-way head. No dropout: the full matrix could not follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(30522, 768), nn.Embedding(512, 768)
        self.norm = nn.LayerNorm(768)
        one = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(one, 6, enable_nested_tensor=False)
        self.head = nn.Linear(768, 2)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device).expand_as(x)
        out: Tensor = self.head(self.layers(self.norm(self.tokens(x) + self.positions(positions)))[:, 0])
        return out
