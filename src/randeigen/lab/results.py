"""What a run is asked, what it found, and where it stopped: plain values that go to JSON and back."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar
from zipfile import BadZipFile

import numpy as np
import torch

from randeigen.errors import BadRows
from randeigen.lab.config import CentralizedConfig, FederatedConfig
from randeigen.lab.stacked_model import Tensor
from randeigen.provenance import versions as core_versions
from randeigen.rows.write import replacing


@dataclass(frozen=True)
class RoundMetrics:
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


Watch: TypeAlias = Callable[[RoundMetrics], None]


S = TypeVar("S")
M = TypeVar("M", bound="Metrics")
Self = TypeVar("Self", bound="RunRecord[Any, Any]")


class Metrics(Protocol):
    """What every moment of every kind of run has."""

    @property
    def accuracy(self) -> float:
        """Correct test images."""

    @property
    def asr(self) -> float | None:
        """Success of the attack, where it wants anything in particular."""


@dataclass(frozen=True)
class RunRecord(Generic[S, M]):
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
class FederatedRecord(RunRecord[FederatedConfig, RoundMetrics]):
    """The record of a federation."""

    kinds = (FederatedConfig, RoundMetrics)


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


@dataclass(frozen=True)
class EpochMetrics:
    """One epoch, after its last step. None: has no meaning here."""

    epoch: int  # from 1
    accuracy: float
    asr: float | None
    weight_honest: float  # mean weight of an honest example, 1 where all count the same
    weight_poison: float | None
    auc: float | None  # how well the defence ranks poison above the rest: 1 is perfectly, 1/2 not at all
    poison: int
    seconds: float  # of the epoch, with whatever the defence costs


@dataclass(frozen=True)
class CentralizedRecord(RunRecord[CentralizedConfig, EpochMetrics]):
    """The record of a training run."""

    kinds = (CentralizedConfig, EpochMetrics)
