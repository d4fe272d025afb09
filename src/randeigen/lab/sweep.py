"""Sweeps: every combination of tasks, attacks, rules, fractions, seeds and partitions, one record each.

    plan = Sweep({"attack": ["none", "hidra"], "rule": ["mean", "randeigen"], "seed": [0, 1], "rounds": 20})
    run_sweep(plan.configs(), Path("sweep"))
    table = randeigen.lab.load("sweep")

A sweep that was interrupted goes on where it stopped, and a finished run is not run again.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from randeigen.errors import BadFile, BadParameter, MissingExtra
from randeigen.lab import tasks
from randeigen.lab.config import FederatedConfig
from randeigen.lab.devices import device_named
from randeigen.lab.federated import run
from randeigen.lab.preflight import check_federation, earlier_records
from randeigen.lab.processes import in_processes
from randeigen.lab.record_files import earlier_record, federation_words, file_name
from randeigen.lab.results import FederatedRecord, RoundMetrics
from randeigen.provenance import commit
from randeigen.rules.base import is_count

# The words of `randeigen simulate` for fields that records call otherwise.
FIELD_OF = {
    "assumed_eps": "feared",
    "lr": "rate",
    "participation": "sample",
    "resample_attackers": "redraw",
    "attack_start": "calm",
}
SETTINGS = tuple(dict.fromkeys((*(field.name for field in fields(FederatedConfig)), "f", *FIELD_OF)))
MAX_RUNS = 100_000  # of one sweep: more is a mistake


@dataclass(frozen=True)
class Sweep:
    """Settings of federations, each one value or a list; a list means all of its values.

    Settings are those of `FederatedConfig`, or the words that `randeigen simulate` has for them, in the
    singular or the plural; `seeds = 3` means seeds 0, 1 and 2. A partition may carry its parameter:
    `dirichlet:alpha=0.1`.
    """

    settings: Mapping[str, Any]

    @staticmethod
    def from_toml(path: str | os.PathLike[str]) -> Sweep:
        """The sweep that a TOML file describes: `attack = ["hidra", "none"]`, one setting a line."""
        try:
            import tomllib  # type: ignore[import-not-found,unused-ignore]
        except ModuleNotFoundError:
            raise MissingExtra("a sweep in a TOML file needs Python 3.11; give options instead.") from None
        try:
            return Sweep(tomllib.loads(Path(path).read_text()))
        except (FileNotFoundError, IsADirectoryError):
            kind = "is a folder" if Path(path).is_dir() else "is not there"
            raise BadFile(f"{os.fspath(path)} {kind}; give a TOML file that describes a sweep.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadFile(f"{os.fspath(path)} is not a TOML file ({error}).") from error

    def configs(self) -> list[FederatedConfig]:
        """Every combination once, resolved; what cannot be run is refused before anything runs."""
        axes = dict[str, list[Any]]()
        for key, value in self.settings.items():
            name = field_of(key)
            values = list(value) if isinstance(value, list | tuple) else [value]
            if key == "seeds" and not isinstance(value, list | tuple):
                if not is_count(value) or value > MAX_RUNS:
                    raise BadParameter(
                        f"seeds={value!r}; give how many, a whole number from 1 to {MAX_RUNS:,}, or a list."
                    )
                values = list(range(value))
            if not values:
                raise BadParameter(f"{key} is an empty list; give at least one value.")
            if name in axes:
                raise BadParameter(f"{key} is given twice, under two names; give one of them.")
            axes[name] = values
        count = 1
        for values in axes.values():
            count *= len(values)
        if count > MAX_RUNS:
            raise BadParameter(f"this sweep has {count:,} runs; give at most {MAX_RUNS:,}.")
        combinations = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
        configs = list(dict.fromkeys(_config(values) for values in combinations))
        return _with_one_iid(configs) if len(axes.get("alpha", ())) > 1 else configs


def field_of(key: str) -> str:
    """The field that a word of a sweep means: `attack`, `attacks`, `attack-start`."""
    name = key.replace("-", "_")
    if name not in SETTINGS:
        name = name.removesuffix("s")
    if name not in SETTINGS:
        raise BadParameter(f"a sweep has no setting {key!r}; it takes {', '.join(SETTINGS)}.")
    return FIELD_OF.get(name, name)


def _with_one_iid(configs: Sequence[FederatedConfig]) -> list[FederatedConfig]:
    """The runs, without those that would differ in the alpha of a partition that has none."""
    first = configs[0].alpha
    if all(config.partition == "iid" for config in configs):
        raise BadParameter(
            "alpha has several values, but an iid partition has no alpha, so their runs would be the same; "
            'give partition="dirichlet", or leave alpha out.'
        )
    return list(
        dict.fromkeys(
            replace(config, alpha=first) if config.partition == "iid" else config for config in configs
        )
    )


def _config(values: dict[str, Any]) -> FederatedConfig:
    kind, _, rest = str(values.get("partition", "iid")).partition(":alpha=")
    if rest:
        if "alpha" in values:
            raise BadParameter(
                f"partition={values['partition']!r} and alpha={values['alpha']!r} both say what alpha is; "
                "give one of them."
            )
        try:
            values = {**values, "partition": kind, "alpha": float(rest)}
        except ValueError:
            raise BadParameter(
                f"partition={values['partition']!r}; give one like dirichlet:alpha=0.3."
            ) from None
    try:
        config = FederatedConfig(**values)
    except TypeError as error:  # a string where a number belongs
        raise BadParameter(f"{values} is not a federation ({error}).") from error
    task = tasks.build(config.task)
    config = config.resolve(task)
    check_federation(config, task)
    return config


@dataclass(frozen=True)
class SweepStep:
    """One run of a sweep that is over."""

    config: FederatedConfig
    path: Path
    record: FederatedRecord
    reused: bool  # whether an earlier call had left it
    done: int
    total: int
    seconds_left: float | None  # by the runs so far; None where none was run


def run_sweep(
    configs: Sequence[FederatedConfig],
    folder: Path,
    *,
    device: str = "cpu",
    jobs: int = 1,
    command: str = "",
    on_step: Callable[[SweepStep], None] | None = None,
    on_round: Callable[[FederatedConfig, RoundMetrics], None] | None = None,
) -> list[Path]:
    """Run what is missing in the folder, `jobs` runs at a time, and return the paths of all records.

    Parameters:
        configs: one for each run.
        folder: where records go; runs whose record is there are not run again.
        device: "cpu" or "cuda".
        jobs: how many runs are made at a time.
        command: what the user typed, for the records.
        on_step: called when a run is over or its record was found.
        on_round: called with the metrics of every round; in this process, so only with one job.

    Returns:
        The path of each configuration's record, in order.

    Raises:
        BadParameter: fewer than one job, or a configuration or a device that cannot be run.
        BadFile: a file in the folder is in the way of a record; nothing is run or overwritten.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from randeigen.lab import FederatedConfig, run_sweep
        >>> configs = [FederatedConfig(rule=rule, clients=5, rounds=1, epochs=1) for rule in ("mean", "krum")]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     len(run_sweep(configs, Path(folder)))
        2
    """
    if jobs < 1:
        raise BadParameter(f"jobs={jobs}; give how many runs are made at a time, from 1.")
    configs, earlier = checked_runs(configs, folder, device=device)
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[FederatedConfig, Path] = {}
    began, ran = time.monotonic(), 0

    def over(config: FederatedConfig, path: Path, record: FederatedRecord, reused: bool) -> None:
        nonlocal ran
        paths[config], ran = path, ran + (not reused)
        left = (time.monotonic() - began) / ran * (len(configs) - len(paths)) if ran else None
        if on_step:
            on_step(SweepStep(config, path, record, reused, len(paths), len(configs), left))

    missing = []
    for config in configs:
        if config in earlier:
            record, path = earlier[config]
            over(config, path, record, True)
        else:
            missing.append(config)
    provenance = {"command": command, "commit": commit()}
    tasks = [(config, folder, device, provenance) for config in missing]
    runs = (
        (_run_one(task, on_round) for task in tasks)
        if jobs == 1 or len(tasks) < 2
        else in_processes(_run_one, tasks, min(jobs, len(tasks)))
    )
    with closing(runs):
        for config, path, reused in runs:
            over(config, path, FederatedRecord.read(path), reused)
    return [paths[config] for config in configs]


def checked_runs(
    configs: Sequence[FederatedConfig], folder: Path, *, device: str = "cpu"
) -> tuple[list[FederatedConfig], dict[FederatedConfig, tuple[FederatedRecord, Path]]]:
    """The runs, resolved, and the records that are there; refuses what cannot be run or would overwrite."""
    device_named(device)
    resolved = []
    for config in configs:
        task = tasks.build(config.task)
        resolved.append(config.resolve(task))
        check_federation(resolved[-1], task)
    return resolved, earlier_records(resolved, folder)


def _run_one(
    task: tuple[FederatedConfig, Path, str, dict[str, Any]],
    on_round: Callable[[FederatedConfig, RoundMetrics], None] | None = None,
) -> tuple[FederatedConfig, Path, bool]:
    """The configuration, where its record is, and whether another process has made it meanwhile."""
    config, folder, device, provenance = task
    words = federation_words(config)
    name = file_name(config, words)
    checkpoint, path = folder / f"{name}.checkpoint.npz", folder / f"{name}.json"
    if earlier_record(folder, FederatedRecord, config, words):
        return config, path, True
    began = time.monotonic()
    report = None if on_round is None else lambda metrics: on_round(config, metrics)
    record = run(config, device=device, checkpoint=checkpoint, progress=report)
    record = replace(record, made={**provenance, "seconds": round(time.monotonic() - began, 2)})
    meanwhile = FederatedRecord.finished(path, config) is not None
    if not meanwhile:
        record.write(path)
    checkpoint.unlink(missing_ok=True)
    return config, path, meanwhile
