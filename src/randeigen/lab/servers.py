"""Server optimizers: frozen values, whose state is a dict of tensors beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

from randeigen import registry

State: TypeAlias = dict[str, Tensor]  # empty before the first step


class Server(Protocol):
    """A server optimizer."""

    def step(self, weights: Tensor, update: Tensor, state: State) -> tuple[Tensor, State]:
        """The next global weights and the next state, from the aggregate of updates w - w_i."""


@dataclass(frozen=True)
class Sgd:
    """w - eta·g: Algorithm 1; plain federated averaging at eta = 1."""

    eta: float = 1.0

    def step(self, weights: Tensor, update: Tensor, state: State) -> tuple[Tensor, State]:
        return weights - self.eta * update, state


@dataclass(frozen=True)
class Adam:
    """The paper's Algorithm 5: FedAdam whose moments begin with the first aggregate, without correction."""

    eta: float = 1e-3
    b1: float = 0.9
    b2: float = 0.99
    tau: float = 1e-3

    def step(self, weights: Tensor, update: Tensor, state: State) -> tuple[Tensor, State]:
        mom, var = (state["mom"], state["var"]) if state else (update, update * update)
        mom = self.b1 * mom + (1 - self.b1) * update
        var = self.b2 * var + (1 - self.b2) * update * update
        return weights - self.eta * mom / (self.tau + var.sqrt()), {"mom": mom, "var": var}


SERVERS: Mapping[str, Callable[..., Server]] = {"sgd": Sgd, "adam": Adam}  # by the name of --server


def build(text: str) -> Server:
    """The server optimizer that `name` or `name:key=value,key=value` asks for."""
    server: Server = registry.parse(text, SERVERS, "server")
    return server
