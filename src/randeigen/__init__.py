"""Average vectors that some of their senders may have corrupted; know how far these can have moved it.

result = randeigen.aggregate(rows, eps=0.1)
result.mean, result.kept, result.bias_bound, result.distance_to_mean
"""

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
from randeigen.rules import RandEigen
from randeigen.types import Aggregate, Verdict

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "BadFile",
    "BadFraction",
    "BadModel",
    "BadParameter",
    "BadRows",
    "MissingExtra",
    "RandEigen",
    "RandEigenError",
    "TooManyCorrupt",
    "Verdict",
    "aggregate",
    "certify",
    "rules",
]
