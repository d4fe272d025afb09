"""Configurations: a federation, centralized training, and the local training of a client.

The field names of `FederatedConfig` and `CentralizedConfig` are the JSON keys of records.
"""

from __future__ import annotations

import math
import sys
from dataclasses import InitVar, dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from randeigen.errors import BadFraction, BadParameter
from randeigen.partition import WHOLE
from randeigen.registry import pinned_name, with_sigma
from randeigen.rules.base import NUMBER, is_count

if TYPE_CHECKING:
    from randeigen.lab.tasks import Task

Partition: TypeAlias = Literal["iid", "dirichlet"]
Optimizer: TypeAlias = Literal["sgd", "adamw"]
Defence: TypeAlias = Literal["none", "clean", "backward", "suspects"]
Start: TypeAlias = Literal["scratch", "pretrained"]
PARTITIONS: tuple[str, ...] = get_args(Partition)
OPTIMIZERS: tuple[str, ...] = get_args(Optimizer)
DEFENCES: tuple[str, ...] = get_args(Defence)
STARTS: tuple[str, ...] = get_args(Start)


SHARE = "the Byzantine fraction of the clients, in [0, 0.5)"
POISON = "the fraction of examples that may be poison, in [0, 0.5)"
# The settings that are whole numbers, with the least of each; and that are numbers.
WHOLE_FROM = {"rounds": 1, "clients": 2, "epochs": 1, "batch": 1, "seed": 0, "calm": 0, "steps": 0}
NUMBERS = {
    "eps": SHARE,
    "feared": "the Byzantine fraction of the clients that the rule assumes, in [0, 0.5)",
    "sample": "the fraction of clients in a round, in (0, 1]",
    "rate": "a positive learning rate",
    "alpha": "a positive number, such as 0.3 (uneven) or 100 (almost even)",
}


class FederatedStream(IntEnum):
    """The random streams of a federation. The numbers are part of every record: never renumber them."""

    PARTITION = 0
    INITIAL_WEIGHTS = 1
    PARTICIPANTS = 2
    HONEST_TRAINING = 3
    ATTACK = 4
    RULE = 5


class CentralizedStream(IntEnum):
    """The random streams of centralized training, with fixed numbers as well."""

    SPLIT = 0
    INITIAL_WEIGHTS = 1
    CLEAN_TRAINING = 2
    ATTACK = 3
    BATCH_ORDER = 4


@dataclass(frozen=True)
class FederatedConfig:
    """One federation, one attack, one rule.

    `rule`, `attack` and `server` are names with parameters: `nnm+krum`, `mra:boost=5`, `adam:eta=0.01`.
    A rule or attack of one's own is `file.py:Name`; records have a digest of the file, `file.py@0123…:Name`.
    """

    task: str = "digits"
    attack: str = "none"
    rule: str = "randeigen"
    eps: float = 0.2  # the Byzantine fraction of the clients
    rounds: int = 30
    seed: int = 0
    clients: int = 50
    feared: float | None = None  # the Byzantine fraction that the rule assumes; None: eps
    epochs: int | None = None  # of local training; None: the task's, as for batch and rate
    batch: int | None = None
    rate: float | None = None  # the learning rate of local training
    partition: Partition = "iid"
    alpha: float = 0.3  # of the Dirichlet partition
    sample: float = 1.0  # the fraction of the clients that takes part in a round
    redraw: bool = False  # the Byzantine clients are drawn anew each round; else they are the first ones
    calm: int = 0  # rounds before the attack begins
    server: str = "sgd"
    optimizer: str | None = None  # of local training: sgd or adamw; None: the task's
    steps: int | None = None  # the most local steps of a round; None: the task's; 0: all of the epochs
    parts: str = WHOLE  # what the rule judges on its own, as `partition` of `randeigen.aggregate`
    f: InitVar[int | None] = None  # how many clients are Byzantine, in place of eps, which records hold

    def __post_init__(self, f: int | None) -> None:
        for name, value in (("task", self.task), ("attack", self.attack), ("rule", self.rule)):
            check_is_name(name, value)
        check_is_name("server", self.server)
        _check_numbers(self, NUMBERS)
        if not isinstance(self.redraw, bool):
            raise BadParameter(f"redraw={self.redraw!r:.80}; give True or False, without quotation marks.")
        if not isinstance(self.parts, str):
            raise BadParameter(f'parts={self.parts!r:.80}; give a word, such as "whole" or "tensor".')
        if f is not None:
            _set_eps(self, f, self.clients, "clients")
        for name, fraction in (("eps", self.eps), ("feared", self.feared)):
            if fraction is not None and not 0 <= fraction < 0.5:
                raise BadFraction(f"{name}={fraction}; give {NUMBERS[name]}.")
        for name, number in (("rate", self.rate), ("alpha", self.alpha), ("sample", self.sample)):
            if number is not None and not 0 < number <= (1 if name == "sample" else math.inf):
                raise BadParameter(f"{name}={number}; give {NUMBERS[name]}.")
        if self.partition not in PARTITIONS:
            raise BadParameter(f"partition={self.partition!r}; choose one of {', '.join(PARTITIONS)}.")
        if self.optimizer is not None and self.optimizer not in OPTIMIZERS:
            raise BadParameter(f"optimizer={self.optimizer!r}; choose one of {', '.join(OPTIMIZERS)}.")

    @property
    def participating(self) -> int:
        """How many clients take part in a round: at least one, however small the fraction."""
        return max(1, round(self.sample * self.clients))

    def resolve(self, task: Task) -> FederatedConfig:
        """The same with nothing left to the task: its training, and the variance that some rules assume."""
        return replace(
            self,
            epochs=task.epochs if self.epochs is None else self.epochs,
            batch=task.batch if self.batch is None else self.batch,
            rate=task.rate if self.rate is None else self.rate,
            optimizer=task.optimizer if self.optimizer is None else self.optimizer,
            steps=task.steps if self.steps is None else self.steps,
            feared=self.eps if self.feared is None else self.feared,
            rule=pinned_name(with_sigma(self.rule, task.sigma)),
            attack=pinned_name(self.attack),
        )

    def local_training(self, task: Task) -> LocalTraining:
        """How an honest client trains."""
        resolved = self.resolve(task)
        return LocalTraining(
            resolved.epochs or 0,
            resolved.batch or 0,
            resolved.rate or 0.0,
            optimizer=resolved.optimizer or "sgd",
            steps=resolved.steps or 0,
        )

    def rng(self, stream: FederatedStream, t: int = 0) -> Generator:
        """Random numbers of one stream and one round: a resumed run draws the same."""
        return np.random.default_rng([self.seed, stream, t])


@dataclass(frozen=True)
class LocalTraining:
    """SGD or AdamW of one client: epochs of shuffled batches, of which the last of an epoch may be short.

    AdamW has moments 0.9 and 0.999, which begin anew in every round, and a decoupled weight decay.
    """

    epochs: int = 5
    batch: int = 50
    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_milestones: tuple[float, ...] = ()  # fractions of the epochs; each divides the learning rate by 10
    optimizer: str = "sgd"  # or adamw
    steps: int = 0  # the most steps of a client; 0: all of its epochs

    def lr_factor(self, epochs: NDArray[np.int64]) -> NDArray[np.float64]:
        """What the learning rate is multiplied by in each of these epochs, counted from 0."""
        passed = [epochs >= milestone * self.epochs for milestone in self.lr_milestones]
        return np.asarray(0.1 ** np.sum(passed, axis=0)) if passed else np.ones(epochs.shape)


TRAINED_ON = {"digits": 1_297, "mnist": 60_000, "fashion-mnist": 60_000}  # images to train on
TRUSTED = 0.2  # fraction of the images that is known to be clean and used to pretrain: 12,000 of MNIST's
CLEAN_EPOCHS, CLEAN_BATCH = 8, 64  # of surrogates and in pretraining, on clean images
FINAL_LR_DROP = 0.75  # the learning rate is a tenth in the last quarter of the epochs
MIN_IMAGES_FOR_FEW_EPOCHS = 5_000  # smaller training sets get 20 epochs


@dataclass(frozen=True)
class CentralizedConfig:
    """One data set, one attack, one defence. `attack` is a name with parameters: `subpopulation:alpha=2`."""

    task: str = "mnist"
    attack: str = "subpopulation"
    defence: Defence = "suspects"
    eps: float = 0.05  # the largest poisoned fraction: the attack keeps to it, the defence assumes it
    epochs: int | None = None  # None: 8, or 20 where images are few
    seed: int = 0
    start: Start = "scratch"
    batch: int | None = None  # None: 128, or fewer where images are few
    rate: float = 0.1  # the learning rate
    f: InitVar[int | None] = None  # how many of the victim's images, in place of eps, which records hold

    def __post_init__(self, f: int | None) -> None:
        check_is_name("attack", self.attack)
        for name, value, known in (
            ("task", self.task, TRAINED_ON),
            ("defence", self.defence, DEFENCES),
            ("start", self.start, STARTS),
        ):
            if not isinstance(value, str) or value not in known:
                raise BadParameter(f"there is no {name} {value!r:.80}; choose one of {', '.join(known)}.")
        _check_numbers(self, {**NUMBERS, "eps": POISON})
        if f is not None:
            images = TRAINED_ON[self.task]
            aside = int(TRUSTED * images) if self.start == "pretrained" else 0
            _set_eps(self, f, (images - aside + 1) // 2, "images of the victim")
        if not 0 <= self.eps < 0.5:
            raise BadFraction(f"eps={self.eps}; give {POISON}.")
        if not self.rate > 0:
            raise BadParameter(f"rate={self.rate}; give {NUMBERS['rate']}.")

    def resolve(self, task: Task) -> CentralizedConfig:
        """The same with nothing left to the data set."""
        images = len(task.train[1])
        epochs = self.epochs or (CLEAN_EPOCHS if images > MIN_IMAGES_FOR_FEW_EPOCHS else 20)
        batch = self.batch or fitting_batch(128, images)
        return replace(self, epochs=epochs, batch=batch, attack=pinned_name(self.attack))

    def training(self, task: Task) -> LocalTraining:
        """How the model is trained."""
        resolved = self.resolve(task)
        return LocalTraining(
            resolved.epochs or 0, resolved.batch or 0, resolved.rate, lr_milestones=(FINAL_LR_DROP,)
        )

    def rng(self, stream: CentralizedStream, t: int = 0) -> Generator:
        """Random numbers of one stream and one epoch: a resumed run draws the same."""
        return np.random.default_rng([self.seed, stream, t])


def _check_numbers(config: FederatedConfig | CentralizedConfig, numbers: dict[str, str]) -> None:
    """Refuse what is no number where one belongs, from a file or a caller; numpy's become Python's."""
    for name, value in vars(config).items():
        own = value.item() if isinstance(value, np.generic) else value
        object.__setattr__(config, name, own)
        if own is None and getattr(type(config), name) is None:  # the default
            continue
        if name in WHOLE_FROM and not is_count(own, WHOLE_FROM[name]):
            raise BadParameter(f"{name}={own!r:.80}; give a whole number, {WHOLE_FROM[name]} or more.")
        is_number = isinstance(own, NUMBER) and not isinstance(own, bool)
        if name in numbers and not (is_number and abs(own) <= sys.float_info.max):
            error = BadFraction if name in ("eps", "feared") else BadParameter
            raise error(f"{name}={own!r:.80}; give {numbers[name]}.")


def _set_eps(config: FederatedConfig | CentralizedConfig, f: int, n: int, what: str) -> None:
    """The fraction that f of n are; records hold it."""
    if config.eps is not type(config).eps:  # the default itself: an equal number is somebody's choice
        raise BadFraction(f"give one of eps and f; found eps={config.eps} and f={f}.")
    if not is_count(f, 0) or not 2 * f < n:
        raise BadFraction(f"f={f!r}; give a number from 0, fewer than half of the {n:,} {what}.")
    eps = int(f) / n
    # Attacks poison int(eps * n) images, which must be f of them.
    object.__setattr__(config, "eps", eps if int(eps * n) == f else math.nextafter(eps, 1.0))


def check_is_name(field: str, value: object) -> None:
    """Refuse a rule or an attack where a configuration holds its name."""
    if not isinstance(value, str):
        kind = "class" if isinstance(value, type) else "value"
        raise BadParameter(
            f"{field}={value!r:.80} is a {kind}; a configuration holds names, as the command does "
            f'("nnm+krum", "mra:boost=5", "adam:eta=0.01"). One of your own goes beside it: '
            f"run(config, {field}=...)."
        )


def check_is_own(field: str, value: object) -> None:
    """Refuse a name or a class where `run` takes a rule, an attack, a server or a task of one's own."""
    if isinstance(value, str):
        raise BadParameter(
            f"{field}={value!r} is a name; names go into the configuration, which the record keeps: "
            f"FederatedConfig({field}={value!r})."
        )
    if isinstance(value, type):
        name = value.__name__
        raise BadParameter(f"{field}={name} is a class; make one of it: {name}(...).")


def fitting_batch(batch: int, images: int) -> int:
    """A smaller batch where images are few: an epoch of ten steps teaches little."""
    return max(1, min(batch, images // 80))
