"""Average vectors that some of their senders may have corrupted; know how far these can have moved it.

result = randeigen.aggregate(rows, eps=0.1)
result.mean, result.kept, result.bias_bound, result.distance_to_mean
"""

import importlib
import typing

from randeigen import rules
from randeigen.api import aggregate
from randeigen.certificate import certify
from randeigen.errors import (
    BadFile,
    BadFraction,
    BadModel,
    BadParameter,
    BadRows,
    MissingExtra,
    RandEigenError,
    TooManyCorrupt,
)
from randeigen.partials import Partial, SharedDecision, Spent, partial, spend
from randeigen.rules import RandEigen
from randeigen.types import Aggregate, Verdict

if typing.TYPE_CHECKING:  # imported on first use, below
    from randeigen import distributed as distributed
    from randeigen import lab as lab
    from randeigen import torch as torch
    from randeigen.inspection import inspect as inspect

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "BadFile",
    "BadFraction",
    "BadModel",
    "BadParameter",
    "BadRows",
    "MissingExtra",
    "Partial",
    "RandEigen",
    "RandEigenError",
    "SharedDecision",
    "Spent",
    "TooManyCorrupt",
    "Verdict",
    "aggregate",
    "certify",
    "partial",
    "rules",
    "spend",
]

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> "typing.Any":
        """Import `randeigen.distributed`, `lab`, `torch` and `inspect` on first use."""
        if name in ("distributed", "lab", "torch"):
            return importlib.import_module(f"randeigen.{name}")
        if name == "inspect":
            return importlib.import_module("randeigen.inspection").inspect
        raise AttributeError(f"module 'randeigen' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), "distributed", "inspect", "lab", "torch"})
