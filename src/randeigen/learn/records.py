"""What a run is asked, what it found, and where it stopped: plain values that go to JSON and back."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar
from zipfile import BadZipFile

import numpy as np
import torch

from randeigen.errors import BadFraction, BadRows
from randeigen.learn.stacked import Tensor
from randeigen.learn.tasks import Task
from randeigen.rows.save import replacing
from randeigen.versions import versions as core_versions

PARTITIONS = ("iid", "dirichlet")


@dataclass(frozen=True)
class Spec:
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

    def settled(self, task: Task) -> Spec:
        """With nothing left to the task."""
        mine = {
            name: getattr(task, name) for name in ("epochs", "batch", "rate") if getattr(self, name) is None
        }
        return replace(self, **mine, feared=self.eps if self.feared is None else self.feared)


@dataclass(frozen=True)
class Moment:
    """One round, after its step. None: has no meaning here, or could not be had."""

    round: int  # from 1
    accuracy: float
    asr: float | None
    weight_honest: float | None
    weight_corrupt: float | None
    liars: int
    certificate: float | None  # how far f corrupt clients can have moved the aggregate at its weights
    seconds: float  # of aggregation
    more: dict[str, float] = field(default_factory=dict)  # other rates of success
    note: str = ""
    kept: int | None = None  # clients with any part in the aggregate, where clients have one


Watch: TypeAlias = Callable[[Moment], None]


S = TypeVar("S")
M = TypeVar("M", bound="Seen")
Self = TypeVar("Self", bound="Course[Any, Any]")


class Seen(Protocol):
    """What every moment of every kind of run has."""

    @property
    def accuracy(self) -> float:
        """Correct test images."""

    @property
    def asr(self) -> float | None:
        """Success of the attack, where it wants anything in particular."""


@dataclass(frozen=True)
class Course(Generic[S, M]):
    """What a results file holds: what was asked, what happened moment by moment, what it was made with."""

    spec: S
    history: tuple[M, ...]
    versions: dict[str, str]
    kinds: ClassVar[tuple[type[Any], type[Any]]]  # of the spec and of a moment

    @property
    def accuracy(self) -> float:
        """Of the final model on the test set."""
        return self.history[-1].accuracy

    @property
    def asr(self) -> float | None:
        """The final attack success rate."""
        return self.history[-1].asr

    def as_json(self) -> str:
        """Strict JSON: what is not a number is null."""
        spec: Any = self.spec  # a dataclass, as are moments
        found = {"spec": asdict(spec), "accuracy": self.accuracy, "asr": self.asr}
        history: tuple[Any, ...] = self.history
        found |= {"history": [asdict(moment) for moment in history], "versions": self.versions}
        return json.dumps(found, indent=1, allow_nan=False)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Whole or not at all."""
        with replacing(path) as file:
            file.write(self.as_json().encode())

    @classmethod
    def read(cls: type[Self], path: str | os.PathLike[str]) -> Self:
        """A record that was written."""
        asked, seen = cls.kinds
        try:
            found = json.loads(Path(path).read_text())
            history = tuple(seen(**moment) for moment in found["history"])
            return cls(asked(**found["spec"]), history, found["versions"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadRows(f"{os.fspath(path)} is not the record of a run ({error}); delete it.") from error

    @classmethod
    def finished(cls: type[Self], path: str | os.PathLike[str], spec: Any) -> Self | None:
        """The record of this very run, if it is there."""
        with suppress(FileNotFoundError, BadRows):
            record = cls.read(path)
            return record if record.spec == spec else None
        return None


@dataclass(frozen=True)
class Record(Course[Spec, Moment]):
    """The record of a federation."""

    kinds = (Spec, Moment)


def number(value: float) -> float | None:
    """What JSON can hold."""
    return float(value) if math.isfinite(value) else None


def versions(device: str) -> dict[str, str]:
    """What made a record."""
    made = {**core_versions(), "device": device, "threads": str(torch.get_num_threads())}
    if device.startswith("cuda"):
        made["gpu"] = torch.cuda.get_device_name(device)
    return made


@dataclass(frozen=True)
class Checkpoint(Generic[M]):
    """A run after some of its rounds: enough to go on as if nothing had happened."""

    weights: Tensor
    state: dict[str, Tensor]
    history: tuple[M, ...]

    def write(self, path: Path, spec: Any) -> None:
        """Arrays and JSON in one .npz file, put in place whole."""
        history: tuple[Any, ...] = self.history
        told = json.dumps([asdict(spec), [asdict(moment) for moment in history]]).encode()
        arrays = {f"state.{name}": value.cpu().numpy() for name, value in self.state.items()}
        with replacing(path) as file:
            np.savez(file, told=np.frombuffer(told, np.uint8), weights=self.weights.cpu().numpy(), **arrays)

    @staticmethod
    def read(path: Path, spec: Any, device: Any, seen: type[M]) -> Checkpoint[M] | None:
        """Where the same run stopped; None if there is nothing, or it is another run's."""
        if not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as file:
                asked, history = json.loads(bytes(file["told"]))
                if {f.name for f in fields(spec)} != set(asked) or type(spec)(**asked) != spec:
                    return None
                arrays = {name: torch.from_numpy(file[name]).to(device) for name in file.files[1:]}
            moments = tuple(seen(**moment) for moment in history)
        except (KeyError, TypeError, ValueError, EOFError, BadZipFile) as error:
            raise BadRows(f"{path} is not the checkpoint of a run ({error}); delete it.") from error
        weights = arrays.pop("weights")
        return Checkpoint(weights, {name.removeprefix("state."): a for name, a in arrays.items()}, moments)
