"""The three kinds of attack, what each of them may look at, and how an attack is declared.

- An *update attack* replaces the updates of the Byzantine clients: `craft(view, rng)`. It is shown the
  fields of `AttackerView` that it lists in `sees`, and nothing else.
- A *client attack* trains inside the Byzantine clients, with their data: `updates(clients)`.
- A *data poison* changes a training set before a model is trained on it: `poison(context)`.

An attack declares itself with `@declare(...)` in a module of `updates/`, `clients/` or `poisons/`;
`randeigen.attacks` finds it there, and every command lists it and takes its name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

from numpy.random import Generator

from randeigen.attacks.text import TextInfo
from randeigen.types import Array, Progress, Weights

if TYPE_CHECKING:
    from torch import Tensor as Tensor  # torch types its own; modules of attacks take the name from here

    from randeigen.lab.config import LocalTraining
else:
    Tensor = Any  # attacks on rows are importable without torch
RowsFunction: TypeAlias = Callable[[Array, int, Generator], Array]  # (h, d) honest rows, m, rng: (m, d) rows
# One training step of Byzantine clients: images (clients, batch, ...), labels (clients, batch) and the
# clients' indices (clients,), to the images and labels that they train on instead.
BatchPoison: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
HIDDEN: Any = None  # in place of what an attack does not list in `sees`
# Images and the labels that the attacker wants for them, by the name of the success rate.
SuccessSets: TypeAlias = dict[str, tuple[Tensor, Tensor]]

Kind: TypeAlias = Literal["update", "client", "data"]
Inputs: TypeAlias = Literal["any", "images", "tokens"]
Goal: TypeAlias = Literal["backdoor", "targeted", "untargeted"]
ALL_UPDATES, OWN_UPDATES = "all honest updates", "own honest updates"
ALL_UPDATES_AND_RULE = "all honest updates and the rule"
OWN_DATA, MODEL_ALONE = "own data", "the model alone"
SIMILAR_DATA, CHANGED_DATA = "images like the victim's, the kind of model", "the images it changes"


@dataclass(frozen=True)
class AttackInfo:
    """What is known of an attack without running it, and how to make it."""

    name: str
    kind: Kind
    goal: Goal
    knows: str  # what the attacker has access to
    does: str
    paper: str
    make: Callable[..., Any]  # takes the attack's parameters as keywords
    aliases: tuple[str, ...] = ()  # earlier names, which records and scripts may still use
    inputs: Inputs = "any"  # what it can attack: a trigger of pixels has no place in a sentence


DECLARED: list[AttackInfo] = []
Maker = TypeVar("Maker", bound=Callable[..., Any])


def declare(
    name: str,
    kind: Kind,
    goal: Goal,
    *,
    knows: str,
    does: str,
    paper: str,
    aliases: tuple[str, ...] = (),
    inputs: Inputs = "any",
    **preset: Any,
) -> Callable[[Maker], Maker]:
    """A decorator that adds an attack's class, or a function that makes the attack, to the registry.

    Parameters:
        name: what `--attack` and records call it.
        kind: "update", "client" or "data"; the module docstring says which is which.
        goal: "backdoor", "targeted" or "untargeted".
        knows: what the attacker has access to, in a few words.
        does: what it does, in a few words.
        paper: who published it, where and when.
        aliases: earlier names.
        inputs: what the task's examples must be for it.
        preset: parameters of the class that this name sets; they are no parameters of the name.

    Returns:
        The decorator. What it decorates is returned unchanged.

    Examples:
        >>> from dataclasses import dataclass
        >>> from randeigen.attacks import RowsAttack, declare
        >>> @declare("halved", "update", "untargeted", knows="all", does="half the mean", paper="none")
        ... @dataclass(frozen=True)
        ... class Halved(RowsAttack):
        ...     def __call__(self, honest, m, rng):
        ...         return (honest.mean(axis=0) / 2)[None].repeat(m, axis=0)
    """

    def add(make: Maker) -> Maker:
        maker = partial(make, **preset) if preset else make
        DECLARED.append(AttackInfo(name, kind, goal, knows, does, paper, maker, aliases, inputs))
        return make

    return add


@dataclass(frozen=True, eq=False)
class AttackerView:
    """What an omniscient attacker may use in one round, before any update is replaced: u_i = w - w_i."""

    m: int  # Byzantine clients
    n: int  # clients in all
    honest: Tensor = HIDDEN  # (n - m, d) the honest clients' updates
    own: Tensor = HIDDEN  # (m, d) what the Byzantine clients would have sent, had they trained honestly
    weights: Tensor = HIDDEN  # (d,) the global model
    sizes: tuple[int, ...] = ()  # of the model's tensors, in order
    sigma: float = math.nan  # the variance that a thresholding defence assumes of honest updates
    weigh: Callable[[Any], Weights] | None = None  # the server's rule under another seed: rows to weights

    @property
    def eps(self) -> float:
        return self.m / self.n

    def only(self, sees: tuple[str, ...]) -> AttackerView:
        """The same with everything else hidden. The model and its tensors' sizes are public."""
        hidden = {"honest", "own", "sigma", "weigh"} - set(sees)
        blank: dict[str, Any] = {"honest": HIDDEN, "own": HIDDEN, "sigma": math.nan, "weigh": None}
        return replace(self, **{name: blank[name] for name in hidden})


class UpdateAttack(Protocol):
    """Replaces the Byzantine clients' updates of one round."""

    @property
    def sees(self) -> tuple[str, ...]:
        """The fields of `AttackerView` that it is shown."""

    def craft(self, view: AttackerView, rng: Generator) -> Tensor:
        """(m, d) what the Byzantine clients send."""


class RowsAttack(ABC):
    """An update attack that is a function of rows: also usable on any array, without a federation."""

    sees: ClassVar[tuple[str, ...]] = ("honest",)

    @abstractmethod
    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        """(m, d) Byzantine rows in the dtype of the (h, d) honest ones."""

    def informed(self, view: AttackerView) -> RowsAttack:
        """The attack with what else it needs of this round."""
        return self

    def craft(self, view: AttackerView, rng: Generator) -> Tensor:
        """(m, d) Byzantine rows; an attack that sees only its own clients takes their rows for the honest."""
        rows = view.honest if "honest" in self.sees else view.own
        return rows.new_tensor(self.informed(view)(rows.cpu().numpy(), view.m, rng))


@dataclass(frozen=True, eq=False)
class ModelInfo:
    """What everybody knows: the architecture, the weights of the first round, the range of pixels, words."""

    model: Any  # nn.Module: its layers, not its weights
    split: Callable[[Tensor], list[Tensor]]  # (k, d) weights to one view per parameter
    initial_weights: Tensor  # (d,)
    low: float  # a black pixel as the model sees it
    high: float  # a white one
    classes: int
    target_images: tuple[Tensor, Tensor]  # the images that MPA wants misread, and their wrong labels
    text: TextInfo | None = None  # of a task of token ids


class Restriction(NamedTuple):
    """Training of some parameters alone, each step followed by a projection of them in place."""

    parameters: tuple[int, ...]  # their indices
    project: Callable[[list[Tensor]], None]  # takes those parameters, each (clients, *shape)


class MaliciousClients(Protocol):
    """What the m Byzantine clients of a round can use: their own examples, and the global model."""

    info: ModelInfo
    m: int
    weights: Tensor  # (d,) the global model
    training: LocalTraining  # that of the honest clients
    rng: Generator

    def batches(self, batch: int) -> int:
        """How many batches of this size a client's images make, on average."""

    def train(
        self,
        training: LocalTraining,
        *,
        start: Tensor | None = None,
        poison: BatchPoison | None = None,
        proximal: tuple[Tensor, float] | None = None,
    ) -> Tensor:
        """(m, d) their models, trained on their own images.

        `proximal` is (anchor, rho), and adds rho·|θ - anchor|² to the loss.
        """

    def fit(
        self,
        images: Tensor,
        labels: Tensor,
        training: LocalTraining,
        start: Tensor | None = None,
        restriction: Restriction | None = None,
    ) -> Tensor:
        """(m, d) their models after training on these examples instead: (k, ...) for all, or (m, k, ...)."""

    def draw(self, count: int, *, other_than: int) -> Tensor:
        """(m, count, ...) of each client's own examples, not of this class while it has others."""


@runtime_checkable
class ClientAttack(Protocol):
    """Trains inside the Byzantine clients."""

    def updates(self, clients: MaliciousClients) -> Tensor:
        """(m, d) what the m Byzantine clients send: w - w_i."""

    def success_sets(self, info: ModelInfo, images: Tensor, labels: Tensor) -> SuccessSets:
        """What success is measured on, made of these test images; "asr" is the attack success rate."""


@dataclass(frozen=True, eq=False)
class PoisoningContext:
    """What a poisoner can use. Images are as the model sees them."""

    victim: tuple[Tensor, Tensor]  # the clean training set
    auxiliary: tuple[Tensor, Tensor]  # as many images from the same source
    test: tuple[Tensor, Tensor]  # for measuring success, and to choose a target from
    surrogate: Callable[[], Any]  # an nn.Module trained on clean images; its last layer is linear
    classes: int
    low: float  # a black pixel as the model sees it
    high: float  # a white one
    eps: float  # the largest poisoned fraction of the training set
    rng: Generator
    progress: Progress | None = None


class Poisoned(NamedTuple):
    """A training set in random order, with the truth about it."""

    images: Tensor
    labels: Tensor
    poison: Tensor  # (n,) bool
    success_sets: SuccessSets


class DataPoison(Protocol):
    """Changes a training set."""

    def poison(self, context: PoisoningContext) -> Poisoned:
        """The training set that the victim gets."""


def trigger_success_set(images: Tensor, labels: Tensor, target: int) -> SuccessSets:
    """The images that are not of the target class, each with the target as its label."""
    others = labels != target
    return {"asr": all_labelled(images[others], labels[others], target)}


def all_labelled(images: Tensor, labels: Tensor, target: int) -> tuple[Tensor, Tensor]:
    """The images with one label for all of them."""
    return images, labels * 0 + target


def flipped(labels: Tensor, classes: int) -> Tensor:
    """classes - 1 - y: the label flip of clients and of data sets."""
    return classes - 1 - labels
