"""Robust aggregation in NVIDIA FLARE: `RobustFedAvg(eps=0.2, num_clients=10)` in place of `FedAvg(...)`."""

from randeigen.errors import MissingExtra

try:
    import nvflare  # noqa: F401
except ImportError as error:
    raise MissingExtra("randeigen.nvflare needs nvflare; install randeigen[nvflare].") from error

from randeigen.nvflare.aggregator import RobustAggregator
from randeigen.nvflare.controller import RobustFedAvg

__all__ = ["RobustAggregator", "RobustFedAvg"]
