"""The models of the paper. Any `nn.Module` without buffers can be used; these layers train fastest."""

from __future__ import annotations

from torch import nn


def convnet(side: int = 28, kernel: int = 5, channels: int = 30, hidden: int = 200) -> nn.Sequential:
    """Two padded convolutions with pooling, two linear layers; by default the paper's CNN (319,520)."""
    pad, flat = kernel // 2, channels * (side // 4) ** 2
    return nn.Sequential(
        *(nn.Conv2d(1, channels, kernel, padding=pad), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(channels, channels, kernel, padding=pad), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, 10)),
    )


def mnistnet() -> nn.Sequential:
    """DBA's MnistNet (431,080). Its log-softmax is left out: cross-entropy takes one anyway."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )


def small_convnet() -> nn.Sequential:
    """The paper's CNN at the size of scikit-learn's 8×8 digits (2,050)."""
    return convnet(side=8, kernel=3, channels=8, hidden=32)


def subnet() -> nn.Sequential:
    """The paper's net for poisoned data sets (18,224 parameters), for images of 28×28."""
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 10, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(160, 100), nn.ReLU(), nn.Linear(100, 10)),
    )
