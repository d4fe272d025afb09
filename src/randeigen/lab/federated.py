"""Federated rounds: clients train, Byzantine ones attack, the server aggregates and steps (Algorithm 1)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

import randeigen
from randeigen import attacks
from randeigen.attacks.base import AttackerView, ClientAttack, ModelInfo, SuccessSets, UpdateAttack
from randeigen.errors import BadParameter, TooManyCorrupt
from randeigen.geometry.chunk_variances import chunk_variances
from randeigen.lab import clients, servers, tasks
from randeigen.lab.clients import SimulatedClients
from randeigen.lab.config import FederatedConfig, FederatedStream, LocalTraining, check_is_own
from randeigen.lab.devices import as_data, device_named, few_threads
from randeigen.lab.partition import Index, Shares, dirichlet, iid
from randeigen.lab.results import Checkpoint, FederatedRecord, RoundMetrics, number, versions
from randeigen.lab.servers import Server, State
from randeigen.lab.stacked_model import StackedModel
from randeigen.lab.stacked_sgd import Data
from randeigen.lab.tasks import Task
from randeigen.partition import WHOLE, Partition
from randeigen.registry import build_rule
from randeigen.rules import Rule
from randeigen.rules.chunked import ChunkedRule
from randeigen.types import Aggregate, Weights

Attack: TypeAlias = UpdateAttack | ClientAttack


class RoundSnapshot(NamedTuple):
    """The updates of one round and their aggregate, for pictures; Byzantine clients are the first rows."""

    round: int
    rows: Tensor
    liars: int  # Byzantine clients; the field of records has this name
    result: Aggregate
    client_weights: Weights | None  # None where the rule gives clients no weights


def run(
    spec: FederatedConfig,
    *,
    task: Task | None = None,
    attack: Attack | None = None,
    rule: Rule | None = None,
    server: Server | None = None,
    device: str = "cpu",
    checkpoint: Path | None = None,
    progress: Callable[[RoundMetrics], None] | None = None,
    look: Callable[[RoundSnapshot], None] | None = None,
) -> FederatedRecord:
    """Train the federation that `spec` describes, and record it.

    The same seed gives the same record on a CPU, interrupted or not; `run(record.spec)` gives it again.

    Parameters:
        spec: what to train. Task, attack, rule and server that it names are built.
        task: one's own task, in place of the one that `spec` names; likewise the next three.
        attack: one's own attack.
        rule: one's own rule.
        server: one's own server optimizer.
        device: "cpu" or "cuda".
        checkpoint: where every round is saved; an interrupted run continues from there.
        progress: called with the metrics of every round.
        look: called with the updates of every round.

    Returns:
        The record: configuration, metrics of every round, versions.

    Raises:
        BadParameter: a name or parameter that does not exist, or an attack that does not fit the task.
        BadFile: the data set or the checkpoint cannot be read.

    Examples:
        >>> from randeigen.lab import FederatedConfig, run
        >>> record = run(FederatedConfig(attack="ipm:q=2", rule="nnm+krum", clients=10, rounds=2, epochs=1))
        >>> len(record.history), record.history[-1].liars
        (2, 2)
    """
    federation = Federation.of(spec, task=task, attack=attack, rule=rule, server=server, device=device)
    spec = federation.spec
    saved = Checkpoint.read(checkpoint, spec, federation.device, RoundMetrics) if checkpoint else None
    now = saved or Checkpoint(federation.info.initial_weights, {}, ())
    with few_threads(federation.model.d):
        for t in range(len(now.history) + 1, spec.rounds + 1):
            weights, state, metrics = federation.round(t, now.weights, now.state, look)
            now = Checkpoint(weights, state, (*now.history, metrics))
            if checkpoint:
                now.write(checkpoint, spec)
            if progress:
                progress(metrics)
    return FederatedRecord(spec, now.history, {**versions(device), **federation.task.about})


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
    info: ModelInfo
    shares: Shares
    train: Data
    test: Data
    success_sets: SuccessSets
    parts: Partition | None  # what the rule judges on its own; None: whole updates

    @staticmethod
    def of(
        spec: FederatedConfig,
        *,
        task: Task | None = None,
        attack: Attack | None = None,
        rule: Rule | None = None,
        server: Server | None = None,
        device: str = "cpu",
    ) -> Federation:
        """Build what `spec` names and is not given, split the data and bring everything to the device."""
        for name, own in (("task", task), ("attack", attack), ("rule", rule), ("server", server)):
            check_is_own(name, own)
        task = task or tasks.build(spec.task)
        spec = spec.resolve(task)
        attack = attacks.build(spec.attack) if attack is None else attack
        check_inputs(spec.attack, task)
        torch_device = device_named(device)
        with torch.random.fork_rng(devices=[]):  # initial weights come from torch's global generator alone
            torch.manual_seed(int(spec.rng(FederatedStream.INITIAL_WEIGHTS).integers(2**63)))
            model = StackedModel(task.model().to(torch_device), pad=task.text.pad if task.text else None)
        targets = as_data(task, task.target_images(), torch_device)
        info = ModelInfo(
            model=model.model,
            split=model.split,
            initial_weights=model.flat(),
            low=task.normalise(0.0),
            high=task.normalise(1.0),
            classes=task.classes,
            target_images=(targets.images, targets.labels),
            text=task.text,
        )
        test = as_data(task, task.test, torch_device)
        labels, rng = task.train[1], spec.rng(FederatedStream.PARTITION)
        uneven = spec.partition == "dirichlet"
        return Federation(
            spec=spec,
            task=task,
            attack=attack,
            rule=rule or build_rule(spec.rule, spec.feared),
            server=server or servers.build(spec.server),
            device=torch_device,
            model=model,
            info=info,
            shares=dirichlet(labels, spec.clients, spec.alpha, rng)
            if uneven
            else iid(labels, spec.clients, rng),
            train=as_data(task, task.train, torch_device),
            test=test,
            success_sets=attack.success_sets(info, *test) if isinstance(attack, ClientAttack) else {},
            parts=None if spec.parts == WHOLE else Partition.of(spec.parts, model.leaves, model.d),
        )

    def round(
        self, t: int, weights: Tensor, state: State, look: Callable[[RoundSnapshot], None] | None = None
    ) -> tuple[Tensor, State, RoundMetrics]:
        """One round: the next weights, the server's next state, and the metrics."""
        participants, m = self.participants(t)
        rows = self.rows(t, weights, participants, m)
        start = self._clock()
        seed = int(self.spec.rng(FederatedStream.RULE, t).integers(2**63))
        result, note = None, ""
        try:
            result = self.aggregate(rows, self.informed_rule(rows[m:]), seed)
        except TooManyCorrupt:  # an earlier round ruined the model: honest clients cannot train it any more
            note = "too many updates are not finite; the model stays as it is"
        seconds = self._clock() - start
        # A median, say, gives no client a weight: it treats every column on its own.
        weighs = result is not None and (result.is_weighted_mean or result.parts is not None)
        client_weights = result.weights if result is not None and weighs else None
        if result is not None:
            weights, state = self.server.step(weights, result.mean, state)
            if look:
                look(RoundSnapshot(t, rows, m, result, client_weights))
        rates = {name: self.agreement(weights, *pair) for name, pair in self.success_sets.items()}
        metrics = RoundMetrics(
            round=t,
            accuracy=self.agreement(weights, *self.test),
            asr=rates.pop("asr", None),
            weight_honest=None if client_weights is None else float(client_weights[m:].sum()),
            weight_corrupt=None if client_weights is None else float(client_weights[:m].sum()),
            kept=None if client_weights is None else int(np.count_nonzero(client_weights)),
            liars=m,
            certificate=None if result is None else number(result.bias_bound),
            seconds=seconds,
            more=rates,
            note=note,
        )
        return weights, state, metrics

    def participants(self, t: int) -> tuple[Index, int]:
        """The participating clients of a round, Byzantine first, and the number of Byzantine ones."""
        spec, rng = self.spec, self.spec.rng(FederatedStream.PARTICIPANTS, t)
        count = spec.participating
        participants = np.sort(rng.choice(spec.clients, count, replace=False))
        if self.attack is None or t <= spec.calm:
            return participants, 0
        if spec.redraw:
            return rng.permutation(participants), byzantine_count(spec.eps, count)
        return participants, int(np.count_nonzero(participants < byzantine_count(spec.eps, spec.clients)))

    def rows(self, t: int, weights: Tensor, participants: Index, m: int) -> Tensor:
        """(n, d) the updates that the server receives: u_i = w - w_i, the first m of them Byzantine."""
        attack, rng = self.attack, self.spec.rng(FederatedStream.HONEST_TRAINING, t)
        if not m or attack is None:
            return self._honest_updates(weights, participants, rng)
        attack_rng = self.spec.rng(FederatedStream.ATTACK, t)
        if isinstance(attack, ClientAttack):
            byzantine = SimulatedClients(self, weights, self.shares.of(participants[:m]), attack_rng)
            honest = participants[m:]
            return torch.cat([attack.updates(byzantine), self._honest_updates(weights, honest, rng)])
        rows = self._honest_updates(weights, participants, rng)
        rule = self.informed_rule(rows[m:])
        view = AttackerView(
            m=m,
            n=len(participants),
            honest=rows[m:],
            own=rows[:m].clone(),
            weights=weights,
            sizes=self.model.sizes,
            sigma=self.task.sigma,
            weigh=lambda candidate: self.aggregate(candidate, rule, t).weights,
        )
        with suppress(TooManyCorrupt, np.linalg.LinAlgError):  # a ruined model leaves nothing to attack with
            rows[:m] = _fitting(attack.craft(view.only(attack.sees), attack_rng), rows[:m])
        return rows

    def aggregate(self, rows: Tensor, rule: Rule, seed: int) -> Aggregate[Tensor]:
        """What the server makes of these updates."""
        return randeigen.aggregate(rows, rule=rule, seed=seed, partition=self.parts or WHOLE)

    def informed_rule(self, honest: Tensor) -> Rule:
        """The rule; an adaptive filter is told the honest variance of every chunk, as its authors do."""
        if not (isinstance(self.rule, ChunkedRule) and self.rule.adaptive):
            return self.rule
        return replace(self.rule, sigma=chunk_variances(honest, self.rule.chunk))

    def local_training(self) -> LocalTraining:
        """How an honest client trains."""
        return self.spec.local_training(self.task)

    def agreement(self, weights: Tensor, images: Tensor, labels: Tensor) -> float:
        """The fraction of these images to which the model gives these labels."""
        return float((self.model.predict(weights, images) == labels).double().mean())

    def _honest_updates(self, weights: Tensor, participants: Index, rng: Generator) -> Tensor:
        own, training = self.shares.of(participants), self.local_training()
        trained = clients.train(self.model, self.task.loss, self.train, own, weights, training, rng)
        return torch.sub(weights, trained, out=trained)  # in place: rows of a large model fill the memory

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def check_inputs(attack: str, task: Task) -> None:
    """Refuse an attack on sentences where the task has images, and the other way round."""
    info = attacks.info_of(attack)
    if info is not None and info.inputs not in ("any", task.inputs):
        fitting = [one.name for one in attacks.ATTACKS.values() if one.inputs in ("any", task.inputs)]
        mismatch = f"attack {info.name!r} is made for {info.inputs}; task {task.name!r} has {task.inputs}"
        raise BadParameter(f"{mismatch}. Choose one of {', '.join(fitting)}.")


def _fitting(crafted: Any, rows: Tensor) -> Tensor:
    """What an attack made, like these rows; one row stands for all."""
    try:
        return torch.as_tensor(crafted, dtype=rows.dtype, device=rows.device).expand_as(rows)
    except (RuntimeError, TypeError, ValueError):
        shape = getattr(crafted, "shape", type(crafted).__name__)
        raise BadParameter(f"the attack crafted {shape}; return {tuple(rows.shape)} numbers.") from None


def byzantine_count(eps: float, n: int) -> int:
    """How many of n clients are Byzantine: never more than eps·n."""
    return int(eps * n + 1e-9)
