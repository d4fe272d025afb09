"""Robust aggregation in Flower: `strategy = robust(FedAdam(eta=0.01), eps=0.2)`."""

from randeigen.errors import MissingExtra

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise MissingExtra("randeigen.flower needs flwr; install randeigen[flower].") from error

from randeigen.bridges.verdicts import NodeHistory, NodeVerdict, RoundVerdict
from randeigen.flower.wrap import RobustFedAvg, robust

__all__ = ["NodeHistory", "NodeVerdict", "RobustFedAvg", "RoundVerdict", "robust"]
