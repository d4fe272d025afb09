"""Whether a file holds the finished record of a cell, so that the cell need not be run, or its checkpoint."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from randeigen.errors import BadFile, MissingExtra
from randeigen.lab import tasks
from randeigen.lab.config import FederatedConfig
from randeigen.lab.paper.cells import SMALL
from randeigen.lab.paper.training import Job
from randeigen.lab.record_checks import check_summary, checked_run, damaged, full_spec, read_json
from randeigen.lab.results import Checkpoint

ROUNDED = 1e-5  # numbers of records have six digits
EARLIER_RULES = {"published:native=true": "published"}  # the same on a CPU


def check_is_record_of(job: Job, path: Path) -> None:
    """Refuse a file that is not the record of this cell, seed and length.

    Settings that a configuration leaves to its task are compared where the task needs no download.
    """
    what = f"{job.cell.name} with seed {job.seed}"
    content = checked_run(path, read_json(path, what), what)
    if "spec" not in content:
        raise damaged(path, "it has no spec", what)
    spec = full_spec(path, content["spec"], what)
    if difference := _difference(job, spec):
        raise damaged(path, difference, what)
    unit, length = ("round", "rounds") if isinstance(job.config, FederatedConfig) else ("epoch", "epochs")
    history = content["history"]
    if len(history) != spec[length]:
        raise damaged(path, f"it has {len(history)} of {spec[length]} {length}", what)
    if [one.get(unit) for one in history] != list(range(1, len(history) + 1)):
        raise damaged(path, f"its {length} are not 1 to {len(history)}", what)
    check_summary(path, content, what)


def check_says_its_cell(job: Job, path: Path, content: Mapping[str, Any]) -> None:
    """Refuse a record whose settings are not those that its file name says; older ones have fewer."""
    spec = content.get("spec", {})
    settings = {name: value for name, value in _plain_settings(job).items() if name in spec}
    if difference := _first_difference(settings, spec):
        raise damaged(path, f"{difference}, which its name says", f"{job.cell.name} with seed {job.seed}")


def check_is_checkpoint_of(job: Job, path: Path) -> None:
    """Refuse a file that is not a checkpoint of this cell, seed and length."""
    if difference := _difference(job, Checkpoint.settings(path)):
        what = f"{job.cell.name} with seed {job.seed}"
        raise BadFile(f"{path} is not a checkpoint of {what}: {difference}; move or delete it.")


def _difference(job: Job, spec: Mapping[str, Any]) -> str:
    """What these settings have that the cell has not; empty if they are its own."""
    return _first_difference(_settings(job), spec)


def _first_difference(settings: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    for name, expected in settings.items():
        if name not in spec:
            return f"its spec has no {name}"
        value = spec[name]
        if not (_same_rule(expected, value) if name == "rule" else _same(expected, value)):
            return f"its {name} is {value!r} and not {expected!r}"
    return ""


def _settings(job: Job) -> dict[str, Any]:
    """What the cell's spec must say; without what only its task knows."""
    config = job.config
    if isinstance(config, FederatedConfig) and config.task == SMALL:
        with suppress(MissingExtra):  # the record can be there without what made it
            config = config.resolve(tasks.build(config.task))
    return _plain_settings(job, config)


def _plain_settings(job: Job, config: Any = None) -> dict[str, Any]:
    """Those that the cell itself says, or this configuration of it."""
    config = config or job.config
    settings = asdict(config)
    if "feared" in settings and settings["feared"] is None:
        settings["feared"] = config.eps
    return {name: value for name, value in settings.items() if value is not None}


def _same(expected: Any, value: Any) -> bool:
    if isinstance(expected, float) and isinstance(value, int | float):
        return math.isclose(expected, value, rel_tol=ROUNDED)
    return bool(expected == value)


def _same_rule(expected: str, value: Any) -> bool:
    """Whether the rule is that of the cell; a record adds the variance that its task states."""
    if value in (expected, EARLIER_RULES.get(expected)):
        return True
    return "sigma=" not in expected and re.sub(r"[:,]sigma=[^:,+]+$", "", str(value)) == expected
