"""What a run is asked: federations, centralized training, local training."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from randeigen.errors import BadFraction
from randeigen.lab.tasks import Task

PARTITIONS = ("iid", "dirichlet")


@dataclass(frozen=True)
class FederatedConfig:
    """One federation, one attack, one rule. Names are those of `TASKS`, `ATTACKS`, `RULES`, `SERVERS`."""

    task: str = "digits"
    attack: str = "none"
    rule: str = "randeigen"
    eps: float = 0.2  # of the clients lie
    rounds: int = 30
    seed: int = 0
    clients: int = 50
    feared: float | None = None  # the fraction the rule is told to fear; None: eps
    epochs: int | None = None  # None: the task's, as are the next two
    batch: int | None = None
    rate: float | None = None
    partition: str = "iid"
    alpha: float = 0.3  # of the Dirichlet partition
    sample: float = 1.0  # of the clients take part in a round
    redraw: bool = False  # liars are drawn anew each round; else they are the first clients
    calm: int = 0  # rounds before the attack begins
    server: str = "sgd"

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        whole = {"rounds": self.rounds, "clients": self.clients, "epochs": self.epochs, "batch": self.batch}
        for name, value in whole.items():
            if value is not None and value < 1:
                raise BadFraction(f"{name}={value}; give 1 or more.")
        for name, share in (("eps", self.eps), ("feared", self.feared)):
            if share is not None and not 0 <= share < 0.5:
                raise BadFraction(f"{name}={share}; give the fraction of clients that lie, in [0, 0.5).")
        if not 0 < self.sample <= 1:
            raise BadFraction(f"sample={self.sample}; give the fraction of clients in a round, in (0, 1].")
        if self.partition not in PARTITIONS:
            raise BadFraction(f"partition={self.partition!r}; choose one of {', '.join(PARTITIONS)}.")
        if self.rate is not None and not self.rate > 0:
            raise BadFraction(f"rate={self.rate}; give a positive step size.")
        if self.calm < 0 or self.seed < 0:
            raise BadFraction(f"calm={self.calm}, seed={self.seed}; neither can be negative.")

    def resolve(self, task: Task) -> FederatedConfig:
        """With nothing left to the task."""
        mine = {
            name: getattr(task, name) for name in ("epochs", "batch", "rate") if getattr(self, name) is None
        }
        return replace(self, **mine, feared=self.eps if self.feared is None else self.feared)


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: epochs of shuffled batches of SGD; the last batch of an epoch may be short."""

    epochs: int = 5
    batch: int = 50
    rate: float = 1e-3
    momentum: float = 0.0
    decay: float = 0.0  # of weights
    drops: tuple[float, ...] = ()  # after each of these shares of the epochs the rate is divided by 10

    def slowed(self, epochs: NDArray[np.int64]) -> NDArray[np.float64]:
        """What the rate is multiplied by in each of these epochs."""
        drops = [epochs >= drop * self.epochs for drop in self.drops]
        return np.asarray(0.1 ** np.sum(drops, axis=0)) if drops else np.ones(epochs.shape)


DEFENCES = ("none", "clean", "backward", "suspects")
STARTS = ("scratch", "pretrained")
TRAINED_ON = ("digits", "mnist", "fashion-mnist")
EPOCHS, BATCH = 8, 64  # on clean images, of surrogates and in pretraining
MIN_IMAGES = 5_000  # images


@dataclass(frozen=True)
class CentralizedConfig:
    """One data set, one attack, one defence."""

    task: str = "mnist"
    attack: str = "subpopulation"
    defence: str = "suspects"
    eps: float = 0.05  # of the training set may be poison; the attack keeps to it, the defence fears it
    epochs: int | None = None  # None: 8, or 20 where images are few
    seed: int = 0
    start: str = "scratch"
    batch: int | None = None  # None: 128, or fewer where images are few
    rate: float = 0.1

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        for name, value, known in (
            ("task", self.task, TRAINED_ON),
            ("defence", self.defence, DEFENCES),
            ("start", self.start, STARTS),
        ):
            if value not in known:
                raise BadFraction(f"there is no {name} {value!r}; choose one of {', '.join(known)}.")
        if not 0 <= self.eps < 0.5:
            raise BadFraction(
                f"eps={self.eps}; give the fraction of examples that may be poison, in [0, 0.5)."
            )
        least = min(*(1 if value is None else value for value in (self.epochs, self.batch)), self.seed + 1)
        if least < 1 or not self.rate > 0:
            raise BadFraction(
                f"epochs={self.epochs}, batch={self.batch}, rate={self.rate}, seed={self.seed}; give at "
                "least one epoch, one image a batch, a positive rate and a seed from 0."
            )

    def resolve(self, task: Task) -> CentralizedConfig:
        """With nothing left to the data set."""
        images = len(task.train[1])
        epochs = self.epochs or (EPOCHS if images > MIN_IMAGES else 20)
        return replace(self, epochs=epochs, batch=self.batch or fitting_batch(128, images))

    def rng(self, purpose: int, t: int = 0) -> Generator:
        """Randomness that depends on the seed, what it is for and the epoch: a resumed run draws the same."""
        return np.random.default_rng([self.seed, purpose, t])


def fitting_batch(batch: int, images: int) -> int:
    """A smaller batch where images are few: an epoch of ten steps teaches little."""
    return max(1, min(batch, images // 80))
