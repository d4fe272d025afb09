"""The model, the data of each client, training and testing: plain PyTorch."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

Data = tuple[torch.Tensor, torch.Tensor]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def load_data(part: int, parts: int) -> tuple[Data, Data]:
    """One client's digits, and those that are held out for tests; they come with scikit-learn."""
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    test, train = order[:360], order[360:][part::parts]
    return (images[train], labels[train]), (images[test], labels[test])


def train(model: nn.Module, data: Data, epochs: int = 2, rate: float = 0.1) -> float:
    images, labels = data
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    loss = torch.zeros(())
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(32):
            if len(batch) < 2:  # too few for batch normalisation
                continue
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
    return float(loss.detach())


def test(model: nn.Module, data: Data) -> float:
    images, labels = data
    model.eval()
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == labels).float().mean())
