"""The laboratory: federations and centralized training under attack, their tasks, records and pictures.

    from randeigen.lab import CentralizedConfig, FederatedConfig, run, train
    record = run(FederatedConfig(task="digits", attack="mra:boost=5", rule="nnm+krum", rounds=5))
    record = train(CentralizedConfig(task="digits", attack="subpopulation:alpha=2", defence="suspects"))

Names are loaded when they are first used, so that data sets and clouds need numpy alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from randeigen.errors import MissingExtra

if TYPE_CHECKING:
    from randeigen.lab.centralized import train
    from randeigen.lab.config import CentralizedConfig, FederatedConfig, LocalTraining
    from randeigen.lab.federated import Federation, RoundSnapshot, run
    from randeigen.lab.plots import draw_course
    from randeigen.lab.poison_plots import draw_gradients
    from randeigen.lab.poisoned_setup import PoisonedSetup, prepare
    from randeigen.lab.results import CentralizedRecord, EpochMetrics, FederatedRecord, RoundMetrics
    from randeigen.lab.servers import SERVERS, Adam, Sgd
    from randeigen.lab.sweep import Sweep, run_sweep
    from randeigen.lab.tasks import TASKS, Task
    from randeigen.lab.tidy import load, records
    from randeigen.lab.trigger_plots import draw_trigger

__all__ = [
    "SERVERS",
    "TASKS",
    "Adam",
    "CentralizedConfig",
    "CentralizedRecord",
    "EpochMetrics",
    "FederatedConfig",
    "FederatedRecord",
    "Federation",
    "LocalTraining",
    "PoisonedSetup",
    "RoundMetrics",
    "RoundSnapshot",
    "Sgd",
    "Sweep",
    "Task",
    "draw_course",
    "draw_gradients",
    "draw_trigger",
    "load",
    "prepare",
    "records",
    "run",
    "run_sweep",
    "train",
]

_HOMES = {
    "centralized": ("train",),
    "config": ("CentralizedConfig", "FederatedConfig", "LocalTraining"),
    "federated": ("Federation", "RoundSnapshot", "run"),
    "plots": ("draw_course",),
    "poison_plots": ("draw_gradients",),
    "poisoned_setup": ("PoisonedSetup", "prepare"),
    "results": ("CentralizedRecord", "EpochMetrics", "FederatedRecord", "RoundMetrics"),
    "servers": ("SERVERS", "Adam", "Sgd"),
    "sweep": ("Sweep", "run_sweep"),
    "tasks": ("TASKS", "Task"),
    "tidy": ("load", "records"),
    "trigger_plots": ("draw_trigger",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            try:
                value = getattr(import_module(f"randeigen.lab.{home}"), name)
            except ModuleNotFoundError as error:
                if error.name != "torch":
                    raise
                needs = "randeigen.lab needs torch: pip install 'randeigen[experiments]'"
                raise MissingExtra(needs) from None
            globals()[name] = value  # so that it is looked up once
            return value
    raise AttributeError(f"module 'randeigen.lab' has no attribute {name!r}")
