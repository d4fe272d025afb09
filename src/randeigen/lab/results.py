"""Records of runs, the metrics in them, and checkpoints: plain values that go to JSON and back."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from randeigen.backend import native
from randeigen.backend.openblas import kernels
from randeigen.errors import BadFile
from randeigen.lab.config import CentralizedConfig, FederatedConfig
from randeigen.lab.record_checks import UNWRITTEN
from randeigen.provenance import processor
from randeigen.provenance import versions as core_versions
from randeigen.rows.write import replacing


@dataclass(frozen=True)
class RoundMetrics:
    """One round, after its step. None where a metric has no meaning or could not be measured."""

    round: int  # from 1
    accuracy: float
    asr: float | None
    weight_honest: float | None
    weight_corrupt: float | None
    liars: int  # Byzantine clients of this round
    certificate: float | None  # how far f corrupt clients can have moved the aggregate at its weights
    seconds: float  # of aggregation
    more: dict[str, float] = field(default_factory=dict)  # other rates of success
    note: str = ""
    kept: int | None = None  # clients with a positive weight, where clients have weights


Config = TypeVar("Config")
M = TypeVar("M", bound="Metrics")
Self = TypeVar("Self", bound="RunRecord[Any, Any]")


class Metrics(Protocol):
    """The metrics of one round or epoch, whatever the kind of run."""

    @property
    def accuracy(self) -> float:
        """The fraction of test images that are classified correctly."""

    @property
    def asr(self) -> float | None:
        """The attack success rate, where the attack has a target."""


@dataclass(frozen=True)
class RunRecord(Generic[Config, M]):
    """What a results file holds: the configuration, the metrics of every round or epoch, and versions."""

    spec: Config
    history: tuple[M, ...]
    versions: dict[str, str]
    made: dict[str, Any] = field(default_factory=dict)  # how: command, commit, seconds; empty where not known
    kinds: ClassVar[tuple[type[Any], type[Any]]]  # of the configuration and of the metrics
    unwritten: ClassVar[Mapping[str, Any]] = {}  # what records from before a key was added were run with

    @property
    def accuracy(self) -> float:
        """The final model's accuracy on the test set."""
        return self.history[-1].accuracy

    @property
    def asr(self) -> float | None:
        """The final attack success rate."""
        return self.history[-1].asr

    def as_json(self) -> str:
        """Strict JSON: what is not a number is null."""
        spec: Any = self.spec  # a dataclass, as are the metrics
        history: tuple[Any, ...] = self.history
        content = {"spec": asdict(spec), "accuracy": self.accuracy, "asr": self.asr}
        content |= {"history": [asdict(metrics) for metrics in history], "versions": self.versions}
        content |= {"made": self.made} if self.made else {}
        return json.dumps(content, indent=1, allow_nan=False)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file whole or not at all."""
        with replacing(path) as file:
            file.write(self.as_json().encode())

    @classmethod
    def read(cls: type[Self], path: str | os.PathLike[str]) -> Self:
        """The record in this file."""
        config, metrics = cls.kinds
        try:
            content = json.loads(Path(path).read_text())
            history = tuple(metrics(**one) for one in content["history"])
            spec = config(**{**cls.unwritten, **content["spec"]})
            return cls(spec, history, content["versions"], content.get("made", {}))
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise BadFile(f"{os.fspath(path)} is not the record of a run ({error}); delete it.") from error

    @classmethod
    def finished(cls: type[Self], path: str | os.PathLike[str], spec: Any) -> Self | None:
        """The record of this very configuration, if the file holds it."""
        with suppress(OSError, BadFile):
            record = cls.read(path)
            return record if record.spec == spec else None
        return None


@dataclass(frozen=True)
class FederatedRecord(RunRecord[FederatedConfig, RoundMetrics]):
    """The record of a federation."""

    kinds = (FederatedConfig, RoundMetrics)
    unwritten: ClassVar[Mapping[str, Any]] = UNWRITTEN


def number(value: float) -> float | None:
    """A finite number, which JSON can hold, or None."""
    return float(value) if math.isfinite(value) else None


def versions(device: str) -> dict[str, str]:
    """Versions, processor, device and threads, for a record."""
    used = {**core_versions(), "processor": processor(), "blas kernels": kernels()}
    used["loops"] = native.processor()
    used |= {"device": device, "threads": str(torch.get_num_threads())}
    if device.startswith("cuda"):
        used["gpu"] = torch.cuda.get_device_name(device)
    return used


# What reading a file that is no checkpoint can end in.
NO_CHECKPOINT = (
    AttributeError,
    BadZipFile,
    EOFError,
    IsADirectoryError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class Checkpoint(Generic[M]):
    """A run after some of its rounds or epochs: enough to continue it to the same record."""

    weights: Tensor
    state: dict[str, Tensor]
    history: tuple[M, ...]

    def write(self, path: Path, spec: Any) -> None:
        """Arrays and JSON in one .npz file, replaced as a whole."""
        history: tuple[Any, ...] = self.history
        # The key `told` is part of the file format.
        text = json.dumps([asdict(spec), [asdict(metrics) for metrics in history]]).encode()
        arrays: dict[str, Any] = {f"state.{name}": value.cpu().numpy() for name, value in self.state.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.savez(file, told=np.frombuffer(text, np.uint8), weights=self.weights.cpu().numpy(), **arrays)

    @staticmethod
    def read(path: Path, spec: Any, device: Any, metrics: type[M]) -> Checkpoint[M] | None:
        """The checkpoint of this configuration; None if there is no file, or it is another run's."""
        if not path.exists():
            return None
        with _opened(path) as (written, history, file):
            if {f.name for f in fields(spec)} != set(written) or type(spec)(**written) != spec:
                return None
            arrays = {name: torch.from_numpy(file[name]).to(device) for name in file.files[1:]}
            past = tuple(metrics(**one) for one in history)
            weights = arrays.pop("weights")
        return Checkpoint(weights, {name.removeprefix("state."): a for name, a in arrays.items()}, past)

    @staticmethod
    def settings(path: Path) -> dict[str, Any]:
        """The settings of the run whose checkpoint this is."""
        with _opened(path) as (written, _, _):
            return dict(written)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]], Any]]:
    """Settings, history and arrays; BadFile for a file that is no checkpoint."""
    try:
        with np.load(path, allow_pickle=False) as file:
            yield (*json.loads(bytes(file["told"])), file)
    except NO_CHECKPOINT as error:
        why = "it is a folder" if path.is_dir() else str(error).rstrip(".")
        raise BadFile(f"{path} is not the checkpoint of a run ({why}); move or delete it.") from error


@dataclass(frozen=True)
class EpochMetrics:
    """One epoch, after its last step. None where a metric has no meaning."""

    epoch: int  # from 1
    accuracy: float
    asr: float | None
    weight_honest: float  # mean weight of an honest example, 1 where all have the same
    weight_poison: float | None
    auc: float | None  # how well the defence ranks poison above the rest: 1 perfect, 1/2 chance
    poison: int
    seconds: float  # of the epoch, the defence included


@dataclass(frozen=True)
class CentralizedRecord(RunRecord[CentralizedConfig, EpochMetrics]):
    """The record of a training run."""

    kinds = (CentralizedConfig, EpochMetrics)
