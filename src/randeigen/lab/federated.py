"""Rounds: clients train, some lie, the server aggregates and steps (the paper's Algorithm 1)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.random import Generator

import randeigen
from randeigen.attacks.base import AttackerView, ClientAttack, ModelInfo, UpdateAttack
from randeigen.attacks.catalogue import ATTACKS
from randeigen.errors import BadFraction, TooManyCorrupt
from randeigen.lab import clients
from randeigen.lab.clients import SimulatedClients
from randeigen.lab.config import FederatedConfig, LocalTraining
from randeigen.lab.devices import as_data, device_named, few_threads
from randeigen.lab.partition import Index, Shares, dirichlet, iid
from randeigen.lab.results import Checkpoint, FederatedRecord, RoundMetrics, Watch, number, versions
from randeigen.lab.servers import SERVERS, Server, State
from randeigen.lab.stacked_model import StackedModel, Tensor
from randeigen.lab.stacked_sgd import Data
from randeigen.lab.tasks import TASKS, Task
from randeigen.rules import RULES, Rule
from randeigen.types import Aggregate

Attack: TypeAlias = UpdateAttack | ClientAttack
PARTITION, START, WHO, HONEST, MALICE, COINS = range(6)  # what randomness is for; each has its own


class RoundSnapshot(NamedTuple):
    """What came in and what became of it, for pictures: liars are the first rows."""

    round: int
    rows: Tensor
    liars: int
    result: Aggregate


def run(
    spec: FederatedConfig,
    *,
    task: Task | None = None,
    attack: Attack | None = None,
    rule: Rule | None = None,
    server: Server | None = None,
    device: str = "cpu",
    checkpoint: Path | None = None,
    progress: Watch | None = None,
    look: Callable[[RoundSnapshot], None] | None = None,
) -> FederatedRecord:
    """Train the federation that `spec` describes, and record it.

    What `spec` names is looked up, unless it is given as a value: one's own task, an attack or a rule with
    parameters. With a `checkpoint` path every round is saved there, and a run that was interrupted goes on
    from it. The same seed gives the same record on a CPU, whether interrupted or not.
    """
    lab = Federation.of(spec, task, attack, rule, server, device)
    saved = Checkpoint.read(checkpoint, lab.spec, lab.device, RoundMetrics) if checkpoint else None
    now = saved or Checkpoint(lab.scene.first, {}, ())
    with few_threads(lab.model.d):
        for t in range(len(now.history) + 1, spec.rounds + 1):
            weights, state, moment = lab.round(t, now.weights, now.state, look)
            now = Checkpoint(weights, state, (*now.history, moment))
            if checkpoint:
                now.write(checkpoint, lab.spec)
            if progress:
                progress(moment)
    return FederatedRecord(lab.spec, now.history, versions(device))


@dataclass(frozen=True, eq=False)
class Federation:
    """All that stays the same from round to round."""

    spec: FederatedConfig
    task: Task
    attack: Attack | None
    rule: Rule
    server: Server
    device: Any
    model: StackedModel
    scene: ModelInfo
    shares: Shares
    train: Data
    test: Data
    success_sets: dict[str, tuple[Tensor, Tensor]]

    @staticmethod
    def of(
        spec: FederatedConfig,
        task: Task | None,
        attack: Attack | None,
        rule: Rule | None,
        server: Server | None,
        device: str,
    ) -> Federation:
        """Everything looked up, drawn and brought to the device."""
        task = task or _named(spec.task, TASKS, "task")()
        spec = spec.resolve(task)
        if attack is None and spec.attack != "none":
            attack = _named(spec.attack, ATTACKS, "attack").make()
        place = device_named(device)
        with torch.random.fork_rng(devices=[]):  # torch knows no other way to draw a model's first weights
            torch.manual_seed(int(_rng(spec, START).integers(2**63)))
            model = StackedModel(task.model().to(place))
        scene = ModelInfo(
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
        return Federation(
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
            success_sets=attack.success_sets(scene, *test) if isinstance(attack, ClientAttack) else {},
        )

    def round(
        self, t: int, weights: Tensor, state: State, look: Callable[[RoundSnapshot], None] | None = None
    ) -> tuple[Tensor, State, RoundMetrics]:
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
                look(RoundSnapshot(t, rows, m, result))
        # A median, say, gives no client a weight: it judges every column on its own.
        weights_of = None if result is None or not result.is_weighted_mean else result.weights
        rates = {name: self.rate(weights, *trial) for name, trial in self.success_sets.items()}
        moment = RoundMetrics(
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
        if isinstance(attack, ClientAttack):
            site = SimulatedClients(self, weights, self.shares.of(chosen[:m]), malice)
            return torch.cat([attack.updates(site), self._honest(weights, chosen[m:], coins)])
        rows = self._honest(weights, chosen, coins)
        sight = AttackerView(
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

    def recipe(self) -> LocalTraining:
        """How an honest client trains."""
        spec = self.spec.resolve(self.task)
        assert spec.epochs is not None
        assert spec.batch is not None
        assert spec.rate is not None
        return LocalTraining(spec.epochs, spec.batch, spec.rate)

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


def _rng(spec: FederatedConfig, purpose: int, t: int = 0) -> Generator:
    """Randomness that depends on the seed, what it is for and the round: a resumed run draws the same."""
    return np.random.default_rng([spec.seed, purpose, t])


def _part(eps: float, n: int) -> int:
    """How many of n lie: never more than eps·n."""
    return int(eps * n + 1e-9)


def _named(name: str, known: Any, kind: str) -> Any:
    if name not in known:
        raise BadFraction(f"there is no {kind} {name!r}; known are {', '.join(known)}.")
    return known[name]
