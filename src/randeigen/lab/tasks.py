"""Tasks: images or token ids, labels, a model, a loss. A user's own task is one `Task(...)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from randeigen import registry
from randeigen.attacks.text import TextInfo
from randeigen.errors import BadParameter
from randeigen.lab import datasets, sentences
from randeigen.lab.models import convnet, mnistnet, small_convnet
from randeigen.lab.tiny_bert import TinyBert
from randeigen.lab.vocabulary import Vocabulary

Images: TypeAlias = NDArray[
    Any
]  # (N, channels, height, width) float32 pixels, or (N, length) int64 token ids
Labels: TypeAlias = NDArray[np.int64]
TINY_TRAIN, TINY_TEST = 12_000, 1_000  # generated sentences
TINY_WORDS, TINY_LENGTH = 6_000, 50  # rows of the embedding tables of words and of positions
Loss: TypeAlias = Callable[[Any, Any], Any]  # logits (N, classes), labels (N,): one loss each, (N,)


def cross_entropy(logits: Any, labels: Any) -> Any:
    """One loss per example."""
    return functional.cross_entropy(logits, labels, reduction="none")


@dataclass(frozen=True, eq=False)
class Task:
    """Data, model and loss, and how clients train on them by default.

    Images are (N, channels, height, width) with pixels from 0 to 1; the model sees (pixel - mean) / std. With
    `text` they are (N, length) token ids instead, which the model sees as they are.

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
    text: TextInfo | None = None  # the vocabulary, where the inputs are token ids
    optimizer: str = "sgd"  # of local training, or adamw
    steps: int = 0  # the most local steps of a round; 0: all of the epochs
    clients: int = 50  # unless the command is given another number; as for rounds
    rounds: int = 30
    about: Mapping[str, str] = field(default_factory=dict)  # what else a record is to say: the encoder

    def __post_init__(self) -> None:
        for part, (images, labels) in (("train", self.train), ("test", self.test)):
            axes, shape = (4, "(N, channels, height, width)") if self.text is None else (2, "(N, length)")
            if images.ndim != axes or len(images) != len(labels) or not len(images):
                raise BadParameter(
                    f"task {self.name!r}: {part} {self.inputs} have shape {images.shape}, labels "
                    f"{labels.shape}; give {shape} and (N,)."
                )
            if self.text is not None and not 0 <= images.min() <= images.max() < len(self.text.vocabulary):
                raise BadParameter(
                    f"task {self.name!r}: {part} token ids are from {images.min()} to {images.max()}; the "
                    f"vocabulary has {len(self.text.vocabulary):,}."
                )
            if labels.min() < 0 or labels.max() >= self.classes:
                raise BadParameter(f"task {self.name!r}: {part} labels must be from 0 to {self.classes - 1}.")

    @property
    def inputs(self) -> Literal["images", "tokens"]:
        """What the model takes."""
        return "images" if self.text is None else "tokens"

    def normalise(self, pixels: Any) -> Any:
        """Pixels from 0 to 1 as the model sees them; token ids as they are."""
        return (pixels - self.mean) / self.std if self.text is None else pixels

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


@cache
def sst2_tiny(data: Literal["generated", "glue", "sentences"] = "generated") -> Task:
    """Sentiment of sentences with a BERT of one layer, trained from nothing: 420,802 parameters.

    The sentences are generated, so that nothing need be downloaded; `data` names a form of SST-2 instead.
    """
    if data == "generated":
        train, test = sentences.generate(TINY_TRAIN, seed=0), sentences.generate(TINY_TEST, seed=1)
    else:
        train, test = datasets.sst2("train", data), datasets.sst2("dev", data)
    vocabulary = Vocabulary.of(train[0], TINY_WORDS)

    def part(split: tuple[list[str], Any]) -> tuple[Images, Labels]:
        return vocabulary.encode(split[0], TINY_LENGTH), split[1].astype(np.int64)

    return Task(
        "sst2-tiny" if data == "generated" else f"sst2-tiny:data={data}",
        part(train),
        part(test),
        lambda: TinyBert(TINY_WORDS, TINY_LENGTH),
        classes=2,
        text=vocabulary.info(embedding=0),
        optimizer="adamw",
        epochs=1,
        batch=32,
        steps=32,
        rate=5e-3,
        sigma=0.4,
        clients=20,
        rounds=10,
    )


def sst2(
    encoder: str = "minilm",
    update: Literal["full", "head", "lora"] = "full",
    form: Literal["glue", "sentences"] = "glue",
) -> Task:
    """SST-2 with a pretrained encoder; `randeigen.lab.sst2` needs transformers."""
    from randeigen.lab import sst2 as home

    return home.sst2(encoder, update, form)


TASKS: dict[str, Callable[..., Task]] = {  # by the name of --task
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "mnist-dba": mnist_dba,
    "fashion-mnist-dba": fashion_mnist_dba,
    "sst2-tiny": sst2_tiny,
    "sst2": sst2,
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
