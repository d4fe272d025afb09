"""Runs the cells: each with its seed to one record, found again, resumed, and never overwritten."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from randeigen import attacks
from randeigen.attacks.base import ClientAttack, SuccessSets
from randeigen.lab.centralized import train
from randeigen.lab.config import FederatedConfig
from randeigen.lab.devices import few_threads
from randeigen.lab.federated import Federation
from randeigen.lab.paper.cells import POISONS, SENTENCES, SMALL, Cell
from randeigen.lab.record_files import described
from randeigen.lab.results import (
    CentralizedRecord,
    Checkpoint,
    EpochMetrics,
    FederatedRecord,
    RoundMetrics,
    versions,
)
from randeigen.provenance import commit

RATES_EVERY = 10  # rounds between measurements of every attack's success on an unattacked model
FEWEST_ROUNDS = 5  # of a run that time cut short: fewer are not kept

Record = FederatedRecord | CentralizedRecord


@dataclass(frozen=True)
class Job:
    """A cell with its seed; `rounds` may be fewer than the paper's."""

    cell: Cell
    seed: int
    rounds: int | None = None

    @property
    def config(self) -> Any:
        if self.cell.attack in POISONS:
            return self.cell.training(self.seed)
        config = self.cell.config(self.seed)
        return config if self.rounds is None else replace(config, rounds=min(self.rounds, config.rounds))

    @property
    def folder(self) -> str:
        """Below the folder of all experiments."""
        return self.cell.experiment.replace(":", "-")

    @property
    def file(self) -> str:
        """The name of the record, without its ending: within an experiment no two jobs share it."""
        cell, config = self.cell, self.config
        length = f"rounds{config.rounds}" if isinstance(config, FederatedConfig) else "trained"
        return described([cell.dataset, cell.attack, cell.rule, f"eps{cell.eps}", length, f"seed{self.seed}"])

    @property
    def command(self) -> str:
        """What runs this cell again."""
        words = ["randeigen reproduce", self.cell.experiment, f"--cell '{self.cell.name}' --seed {self.seed}"]
        return " ".join(words + ([f"--rounds {self.rounds}"] if self.rounds is not None else []))

    def path(self, out: Path) -> Path:
        """Where the record goes."""
        return out / self.folder / f"{self.file}.json"


def run_job(
    job: Job,
    *,
    device: str = "cpu",
    checkpoint: Path | None = None,
    until: float = math.inf,
    progress: Callable[[str], None] | None = None,
) -> Record | None:
    """The record of a job. It has fewer rounds if `until`, of time.time(), passes; None with hardly any."""
    began = time.monotonic()
    config = job.config
    record: Record | None
    if isinstance(config, FederatedConfig):
        record = _federation(job, config, device, checkpoint, until, progress)
    else:

        def report(metrics: EpochMetrics) -> None:
            if progress:
                progress(f"epoch {metrics.epoch}: accuracy {metrics.accuracy:.3f}")

        record = train(config, device=device, checkpoint=checkpoint, progress=report)
    if record is None:
        return None
    if isinstance(record, FederatedRecord) and len(record.history) < config.rounds:
        job = replace(job, rounds=len(record.history))  # the time was over
    command = job.command + ("" if device == "cpu" else f" --device {device}")
    provenance = {"command": command, "commit": commit(), "seconds": round(time.monotonic() - began, 2)}
    return replace(record, made=provenance)


def _federation(
    job: Job,
    config: FederatedConfig,
    device: str,
    checkpoint: Path | None,
    until: float,
    progress: Callable[[str], None] | None,
) -> FederatedRecord | None:
    lab = Federation.of(config, device=device)
    spec, unattacked = lab.spec, _unattacked_sets(lab, job.cell) if lab.attack is None else {}
    saved = Checkpoint.read(checkpoint, spec, lab.device, RoundMetrics) if checkpoint else None
    now = saved or Checkpoint(lab.info.initial_weights, {}, ())
    with few_threads(lab.model.d):
        for t in range(len(now.history) + 1, spec.rounds + 1):
            if progress:
                so_far = f", accuracy {now.history[-1].accuracy:.3f}" if now.history else ""
                progress(f"round {t}/{spec.rounds}{so_far}")
            weights, state, metrics = lab.round(t, now.weights, now.state)
            late = time.time() > until
            if unattacked and (t % RATES_EVERY == 0 or t == spec.rounds or late):
                rates = {name: lab.agreement(weights, *pair) for name, pair in unattacked.items()}
                metrics = replace(metrics, more={**metrics.more, **rates})
            now = Checkpoint(weights, state, (*now.history, metrics))
            if checkpoint:
                now.write(checkpoint, spec)
            if late:
                break
    if len(now.history) < min(FEWEST_ROUNDS, spec.rounds):
        return None
    return FederatedRecord(replace(spec, rounds=len(now.history)), now.history, versions(device))


def _unattacked_sets(lab: Federation, cell: Cell) -> SuccessSets:
    """What each attack on this model would count as success: its rate where nobody attacks."""
    names: tuple[str, ...] = ("mra", "mpa", "dfba", *(("dba",) if cell.dataset == SMALL else ()))
    if lab.spec.task.endswith("-dba"):
        names = ("dba",)
    elif cell.dataset == SENTENCES:
        names = ("ep",)
    built = {name: attacks.build(name) for name in names}
    return {
        f"unattacked {name}": attack.success_sets(lab.info, *lab.test)["asr"]
        for name, attack in built.items()
        if isinstance(attack, ClientAttack)
    }
