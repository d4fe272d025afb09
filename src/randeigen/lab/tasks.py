"""Tasks: images, labels, a model, a loss. A user's own task is one `Task(...)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from randeigen import registry
from randeigen.errors import BadParameter
from randeigen.lab import datasets
from randeigen.lab.models import convnet, mnistnet, small_convnet

Images: TypeAlias = NDArray[np.float32]
Labels: TypeAlias = NDArray[np.int64]
Loss: TypeAlias = Callable[[Any, Any], Any]  # logits (N, classes), labels (N,): one loss each, (N,)


def cross_entropy(logits: Any, labels: Any) -> Any:
    """One loss per example."""
    return functional.cross_entropy(logits, labels, reduction="none")


@dataclass(frozen=True, eq=False)
class Task:
    """Data, model and loss, and how clients train on them by default.

    Images are (N, channels, height, width) with pixels from 0 to 1; the model sees (pixel - mean) / std.

        Task("mine", (x, y), (x_test, y_test), lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    """

    name: str
    train: tuple[Images, Labels]
    test: tuple[Images, Labels]
    model: Callable[[], nn.Module]
    classes: int = 10
    mean: float = 0.0
    std: float = 1.0
    loss: Loss = cross_entropy
    epochs: int = 5
    batch: int = 50
    rate: float = 1e-3  # the learning rate
    sigma: float = 1e-5  # honest variance of 1,000 coordinates, as known to FILTERING and to its attackers
    targets: tuple[Images, Labels] | None = None  # images that MPA wants misread, and their wrong labels

    def __post_init__(self) -> None:
        for part, (images, labels) in (("train", self.train), ("test", self.test)):
            if images.ndim != 4 or len(images) != len(labels) or not len(images):
                raise BadParameter(
                    f"task {self.name!r}: {part} images have shape {images.shape}, labels {labels.shape}; "
                    "give (N, channels, height, width) and (N,)."
                )
            if labels.min() < 0 or labels.max() >= self.classes:
                raise BadParameter(f"task {self.name!r}: {part} labels must be from 0 to {self.classes - 1}.")

    def normalise(self, pixels: Any) -> Any:
        """Pixels from 0 to 1 as the model sees them."""
        return (pixels - self.mean) / self.std

    def target_images(self) -> tuple[Images, Labels]:
        """The images that MPA wants misread, and as what: the task's own, or ten of the test set."""
        if self.targets is not None:
            return self.targets
        images, labels = self.test
        first = [int(np.flatnonzero(labels == label)[0]) for label in np.unique(labels)[:10]]
        return images[first], (labels[first] + 3) % self.classes


@cache
def digits() -> Task:
    """scikit-learn's 1,797 digits of 8×8 pixels: 1,297 for training, 500 for testing."""
    images, labels = datasets.digits()
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order].reshape(-1, 1, 8, 8), labels[order]
    train, test = slice(0, 1297), slice(1297, None)
    return Task(
        "digits",
        (images[train], labels[train].astype(np.int64)),
        (images[test], labels[test].astype(np.int64)),
        small_convnet,
        mean=0.3055,
        std=0.3761,
        batch=10,
        rate=0.2,
        sigma=0.25,
    )


@cache
def mnist() -> Task:
    """MNIST with the paper's CNN."""
    return _pictures("mnist", convnet, mean=0.1307, std=0.3081)


@cache
def fashion_mnist() -> Task:
    """Fashion-MNIST with the paper's CNN."""
    return _pictures("fashion-mnist", convnet)


@cache
def mnist_dba() -> Task:
    """MNIST as DBA has it: MnistNet, pixels from 0 to 1, a large honest learning rate."""
    return _pictures("mnist", mnistnet, suffix="-dba", batch=10, rate=0.1)


@cache
def fashion_mnist_dba() -> Task:
    """Fashion-MNIST as DBA has it."""
    return _pictures("fashion-mnist", mnistnet, suffix="-dba", batch=10, rate=0.1)


TASKS: dict[str, Callable[[], Task]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "mnist-dba": mnist_dba,
    "fashion-mnist-dba": fashion_mnist_dba,
}


def build(name: str) -> Task:
    """The task of this name. Its data is read, or downloaded, on the first call."""
    task: Task = registry.parse(name, TASKS, "task")
    return task


# The ten images of the published targeted attack, as indices into the test set, and the label that each is
# to get; `datasets.mpa` reads the arrays that were published with it.
TARGETS = {
    "mnist": (
        (9207, 770, 663, 6468, 8349, 4683, 7251, 9159, 2472, 9361),
        (4, 3, 9, 6, 4, 5, 7, 1, 4, 4),
    ),
    "fashion-mnist": (
        (7401, 2767, 4121, 3, 5402, 5959, 6203, 6028, 2447, 3901),
        (5, 7, 9, 4, 7, 3, 8, 4, 3, 4),
    ),
}


def _pictures(name: str, model: Callable[[], nn.Module], *, suffix: str = "", **more: Any) -> Task:
    load = datasets.mnist if name == "mnist" else datasets.fashion_mnist

    def part(split: str) -> tuple[Images, Labels]:
        images, labels = load(split)
        return (images[:, None] / np.float32(255)).astype(np.float32), labels.astype(np.int64)

    test = part("test")
    rows, wrong = TARGETS[name]
    targets = test[0][list(rows)], np.array(wrong, dtype=np.int64)
    return Task(name + suffix, part("train"), test, model, targets=targets, **more)
