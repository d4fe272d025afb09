"""What attacks are: on updates, inside clients, on training data; and what each may look at."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from numpy.random import Generator

from randeigen.attacks.directions import Attack
from randeigen.attacks.updates.search import Search
from randeigen.types import Progress, Weights

if TYPE_CHECKING:
    from randeigen.lab.config import LocalTraining


Tensor: TypeAlias = Any  # torch.Tensor


@dataclass(frozen=True, eq=False)
class AttackerView:
    """One round as a perfect spy would see it: u_i = w - w_i for everyone, before anybody lied."""

    m: int  # malicious clients
    n: int  # clients in all
    honest: Tensor = None  # (n - m, d) what honest clients send
    own: Tensor = None  # (m, d) what the malicious ones would have sent
    weights: Tensor = None  # (d,) the global model sent out
    sizes: tuple[int, ...] = ()  # of the model's tensors, in order
    sigma: float = math.nan  # the variance a thresholding defence takes for honest
    weigh: Callable[[Tensor], Weights] | None = None  # the server's rule with other coins: rows to weights

    @property
    def eps(self) -> float:
        """The fraction that lies."""
        return self.m / self.n

    def only(self, sees: tuple[str, ...]) -> AttackerView:
        """The same with everything else hidden; the model and its form are public."""
        hidden = {"honest", "own", "sigma", "weigh"} - set(sees)
        blank: dict[str, Any] = {"honest": None, "own": None, "sigma": math.nan, "weigh": None}
        return replace(self, **{name: blank[name] for name in hidden})


class UpdateAttack(Protocol):
    """An attack on one round, all of which it may have seen."""

    @property
    def sees(self) -> tuple[str, ...]:
        """The fields of `Sight` it looks at."""

    def craft(self, sight: AttackerView, rng: Generator) -> Tensor:
        """(m, d) what the malicious clients send instead."""


@dataclass(frozen=True)
class RowsAttack:
    """An attack on rows alone, brought into the laboratory."""

    attack: Attack
    knows: str = "honest"  # or "own": then its own clients' rows are all the honest rows it has seen

    @property
    def sees(self) -> tuple[str, ...]:
        """Honest rows, everyone's or its own."""
        return (self.knows,)

    def craft(self, sight: AttackerView, rng: Generator) -> Tensor:
        """(m, d) corrupt rows."""
        seen = getattr(sight, self.knows)
        rows = self.attack(seen.cpu().numpy(), sight.m, rng)
        return seen.new_tensor(rows)


@dataclass(frozen=True)
class Searching:
    """The same by CMA-ES in every round: at most `budget` runs of the server's rule."""

    budget: int = 200
    sees = ("honest", "weigh")

    def craft(self, sight: AttackerView, rng: Generator) -> Tensor:
        """(m, d) corrupt rows."""
        assert sight.weigh is not None
        return RowsAttack(Search(sight.weigh, self.budget)).craft(sight, rng)


SuccessSets: TypeAlias = dict[
    str, tuple[Tensor, Tensor]
]  # images, and the labels the attacker wants for them
# Images (clients, batch, ...), labels (clients, batch) and the clients' numbers (clients,), for one step
Poison: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class ModelInfo:
    """What everybody knows: the model's form, the first weights sent out, what pixels can be."""

    model: Any  # nn.Module: its layers, not its weights
    split: Callable[[Tensor], list[Tensor]]  # (k, d) weights to one view per parameter
    first: Tensor  # (d,) the weights of the first round
    low: float  # a black pixel as the model sees it
    high: float  # a white one
    classes: int
    marked: tuple[Tensor, Tensor]  # images MPA wants misread, and as what


class MaliciousClients(Protocol):
    """What m malicious clients have to work with in one round."""

    scene: ModelInfo
    m: int
    weights: Tensor  # (d,) the global model they were sent
    recipe: LocalTraining  # the honest one
    rng: Generator

    def batches(self, batch: int) -> int:
        """How many batches of this size a client's images make, on average."""

    def train(
        self,
        recipe: LocalTraining,
        *,
        start: Tensor | None = None,
        poison: Poison | None = None,
        pull: tuple[Tensor, float] | None = None,
    ) -> Tensor:
        """(m, d) their models, trained on their own images; `pull` (anchor, rho) adds rho·|θ-anchor|²."""

    def fit(
        self, images: Tensor, labels: Tensor, recipe: LocalTraining, start: Tensor | None = None
    ) -> Tensor:
        """(m, d) their models after training on these images instead."""


@runtime_checkable
class ClientAttack(Protocol):
    """See the head of this file."""

    def updates(self, site: MaliciousClients) -> Tensor:
        """(m, d) what the m malicious clients send: w - w_i."""

    def success_sets(self, scene: ModelInfo, images: Tensor, labels: Tensor) -> SuccessSets:
        """What success is measured on."""


def trigger_success_set(images: Tensor, labels: Tensor, target: int) -> SuccessSets:
    """Images that are not of the target class, all wanted to be."""
    others = labels != target
    return {"asr": _all_wanted(images[others], target, labels[others])}


def _all_wanted(images: Tensor, target: int, labels: Tensor) -> tuple[Tensor, Tensor]:
    return images, labels * 0 + target


@dataclass(frozen=True, eq=False)
class PoisoningContext:
    """What a poisoner has to work with. Images are as the model sees them."""

    victim: tuple[Tensor, Tensor]  # the training set, clean
    auxiliary: tuple[Tensor, Tensor]  # as many images from where those came
    test: tuple[Tensor, Tensor]  # for measuring success, and for a target
    surrogate: Callable[[], Any]  # an nn.Module trained on clean images; its last layer is linear
    classes: int
    low: float  # a black pixel as the model sees it
    high: float  # a white one
    eps: float  # of the training set may be poison
    rng: Generator
    progress: Progress | None = None  # told of what takes long


class Poisoned(NamedTuple):
    """A training set in random order, with the truth about it."""

    images: Tensor
    labels: Tensor
    poison: Tensor  # (n,) bool
    success_sets: SuccessSets


class DataPoison(Protocol):
    """See the head of this file."""

    def poison(self, source: PoisoningContext) -> Poisoned:
        """The training set the victim gets."""
