"""Rounds: clients train, some lie, the server aggregates and steps (the paper's Algorithm 1)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.random import Generator

import randeigen
from randeigen.attacks.catalogue import ATTACKS
from randeigen.attacks.sight import Crafting, Sight
from randeigen.attacks.training import Recipe, Scene, TrainingAttack
from randeigen.errors import BadFraction, BadRows, TooManyCorrupt
from randeigen.learn import clients
from randeigen.learn.descent import Data
from randeigen.learn.partition import Index, Shares, dirichlet, iid
from randeigen.learn.records import Checkpoint, Moment, Record, Spec, Watch, number, versions
from randeigen.learn.servers import SERVERS, Server, State
from randeigen.learn.site import OwnSite
from randeigen.learn.stacked import Stacked, Tensor
from randeigen.learn.tasks import TASKS, Task
from randeigen.rules import RULES
from randeigen.types import Aggregate, Rule

Attack: TypeAlias = Crafting | TrainingAttack

SMALL = 50_000  # parameters
PARTITION, START, WHO, HONEST, MALICE, COINS = range(6)  # what randomness is for; each has its own


class Look(NamedTuple):
    """What came in and what became of it, for pictures: liars are the first rows."""

    round: int
    rows: Tensor
    liars: int
    result: Aggregate


def run(
    spec: Spec,
    *,
    task: Task | None = None,
    attack: Attack | None = None,
    rule: Rule | None = None,
    server: Server | None = None,
    device: str = "cpu",
    checkpoint: Path | None = None,
    progress: Watch | None = None,
    look: Callable[[Look], None] | None = None,
) -> Record:
    """Train the federation that `spec` describes, and record it.

    What `spec` names is looked up, unless it is given as a value: one's own task, an attack or a rule with
    parameters. With a `checkpoint` path every round is saved there, and a run that was interrupted goes on
    from it. The same seed gives the same record on a CPU, whether interrupted or not.
    """
    lab = Laboratory.of(spec, task, attack, rule, server, device)
    saved = Checkpoint.read(checkpoint, lab.spec, lab.device, Moment) if checkpoint else None
    now = saved or Checkpoint(lab.scene.first, {}, ())
    with few_threads(lab.model.d):
        for t in range(len(now.history) + 1, spec.rounds + 1):
            weights, state, moment = lab.round(t, now.weights, now.state, look)
            now = Checkpoint(weights, state, (*now.history, moment))
            if checkpoint:
                now.write(checkpoint, lab.spec)
            if progress:
                progress(moment)
    return Record(lab.spec, now.history, versions(device))


@dataclass(frozen=True, eq=False)
class Laboratory:
    """All that stays the same from round to round."""

    spec: Spec
    task: Task
    attack: Attack | None
    rule: Rule
    server: Server
    device: Any
    model: Stacked
    scene: Scene
    shares: Shares
    train: Data
    test: Data
    trials: dict[str, tuple[Tensor, Tensor]]

    @staticmethod
    def of(
        spec: Spec,
        task: Task | None,
        attack: Attack | None,
        rule: Rule | None,
        server: Server | None,
        device: str,
    ) -> Laboratory:
        """Everything looked up, drawn and brought to the device."""
        task = task or _named(spec.task, TASKS, "task")()
        spec = spec.settled(task)
        if attack is None and spec.attack != "none":
            attack = _named(spec.attack, ATTACKS, "attack").make()
        place = device_named(device)
        with torch.random.fork_rng(devices=[]):  # torch knows no other way to draw a model's first weights
            torch.manual_seed(int(_rng(spec, START).integers(2**63)))
            model = Stacked(task.model().to(place))
        scene = Scene(
            model=model.model,
            split=model.split,
            first=model.flat(),
            low=task.normal(0.0),
            high=task.normal(1.0),
            classes=task.classes,
            marked=tuple(as_data(task, task.marked(), place)),
        )
        test = as_data(task, task.test, place)
        labels, coins = task.train[1], _rng(spec, PARTITION)
        split = (
            dirichlet(labels, spec.clients, spec.alpha, coins)
            if spec.partition == "dirichlet"
            else iid(labels, spec.clients, coins)
        )
        return Laboratory(
            spec=spec,
            task=task,
            attack=attack,
            rule=rule or _named(spec.rule, RULES, "rule")(eps=spec.feared),
            server=server or _named(spec.server, SERVERS, "server")(),
            device=place,
            model=model,
            scene=scene,
            shares=split,
            train=as_data(task, task.train, place),
            test=test,
            trials=attack.trials(scene, *test) if isinstance(attack, TrainingAttack) else {},
        )

    def round(
        self, t: int, weights: Tensor, state: State, look: Callable[[Look], None] | None = None
    ) -> tuple[Tensor, State, Moment]:
        """One round: the next weights, the server's next state, and what is to be told of it."""
        chosen, m = self.who(t)
        rows = self.rows(t, weights, chosen, m)
        began = self._clock()
        seed = int(_rng(self.spec, COINS, t).integers(2**63))
        result, note = None, ""
        try:
            result = randeigen.aggregate(rows, rule=self.rule, seed=seed)
        except TooManyCorrupt:  # an earlier round ruined the model: honest clients cannot train it any more
            note = "too many updates are not finite; the model stays as it is"
        seconds = self._clock() - began
        if result is not None:
            weights, state = self.server.step(weights, result.mean, state)
            if look:
                look(Look(t, rows, m, result))
        # A median, say, gives no client a weight: it judges every column on its own.
        weights_of = None if result is None or hasattr(self.rule, "merge") else result.weights
        rates = {name: self.rate(weights, *trial) for name, trial in self.trials.items()}
        moment = Moment(
            round=t,
            accuracy=self.rate(weights, *self.test),
            asr=rates.pop("asr", None),
            weight_honest=None if weights_of is None else float(weights_of[m:].sum()),
            weight_corrupt=None if weights_of is None else float(weights_of[:m].sum()),
            kept=None if weights_of is None else int(np.count_nonzero(weights_of)),
            liars=m,
            certificate=None if result is None else number(result.bias_bound),
            seconds=seconds,
            more=rates,
            note=note,
        )
        return weights, state, moment

    def who(self, t: int) -> tuple[Index, int]:
        """The clients of a round, those who lie first, and how many they are."""
        spec, rng = self.spec, _rng(self.spec, WHO, t)
        many = max(1, round(spec.sample * spec.clients))
        chosen = np.sort(rng.choice(spec.clients, many, replace=False))
        if self.attack is None or t <= spec.calm:
            return chosen, 0
        if spec.redraw:
            return rng.permutation(chosen), _part(spec.eps, many)
        return chosen, int(np.count_nonzero(chosen < _part(spec.eps, spec.clients)))

    def rows(self, t: int, weights: Tensor, chosen: Index, m: int) -> Tensor:
        """(n, d) what the server receives: u_i = w - w_i, or whatever the first m make of it."""
        attack, coins = self.attack, _rng(self.spec, HONEST, t)
        if not m or attack is None:
            return self._honest(weights, chosen, coins)
        malice = _rng(self.spec, MALICE, t)
        if isinstance(attack, TrainingAttack):
            site = OwnSite(self, weights, self.shares.of(chosen[:m]), malice)
            return torch.cat([attack.updates(site), self._honest(weights, chosen[m:], coins)])
        rows = self._honest(weights, chosen, coins)
        sight = Sight(
            m=m,
            n=len(chosen),
            honest=rows[m:],
            own=rows[:m].clone(),
            weights=weights,
            sizes=self.model.sizes,
            sigma=self.task.sigma,
            weigh=lambda tried: randeigen.aggregate(tried, rule=self.rule, seed=t).weights,
        )
        rows[:m] = attack.craft(sight.only(attack.sees), malice)
        return rows

    def recipe(self) -> Recipe:
        """How an honest client trains."""
        spec = self.spec.settled(self.task)
        assert spec.epochs is not None
        assert spec.batch is not None
        assert spec.rate is not None
        return Recipe(spec.epochs, spec.batch, spec.rate)

    def _honest(self, weights: Tensor, chosen: Index, rng: Generator) -> Tensor:
        held = self.shares.of(chosen)
        ended = clients.train(self.model, self.task.loss, self.train, held, weights, self.recipe(), rng)
        return weights - ended

    def rate(self, weights: Tensor, images: Tensor, labels: Tensor) -> float:
        """The share of these images that get these labels."""
        return float((self.model.predict(weights, images) == labels).double().mean())

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


@contextmanager
def few_threads(d: int) -> Iterator[None]:
    """One thread for small models: faster, and the same to the bit however many cores there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if d < SMALL else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _rng(spec: Spec, purpose: int, t: int = 0) -> Generator:
    """Randomness that depends on the seed, what it is for and the round: a resumed run draws the same."""
    return np.random.default_rng([spec.seed, purpose, t])


def _part(eps: float, n: int) -> int:
    """How many of n lie: never more than eps·n."""
    return int(eps * n + 1e-9)


def as_data(task: Task, part: tuple[Any, Any], device: Any) -> Data:
    """Images as the model sees them, and labels, on the device."""
    images, labels = part
    normal = np.ascontiguousarray(task.normal(images), dtype=np.float32)
    return Data(torch.from_numpy(normal).to(device), torch.from_numpy(labels.astype(np.int64)).to(device))


def device_named(name: str) -> Any:
    """A torch device that is there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadRows(f"device={name!r} is not known; give cpu or cuda.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadRows(f"device={name!r}, but torch sees no CUDA device here; use cpu.")
    return device


def _named(name: str, known: Any, kind: str) -> Any:
    if name not in known:
        raise BadFraction(f"there is no {kind} {name!r}; known are {', '.join(known)}.")
    return known[name]
