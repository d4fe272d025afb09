"""Which ranks were left out over time: a rank that is left out again and again has a fault."""

from __future__ import annotations

import numpy as np

from randeigen.distributed.exchange import Exchange
from randeigen.types import Array

TRUST_STEPS = 1000  # steps over which trust is a mean; older ones fade
MAX_BROKEN = 2  # times a rank's columns may be wrong before it owns none


class Trust:
    """A running mean for each of n ranks of n·weight."""

    def __init__(self, n: int) -> None:
        self.mean: Array = np.ones(n)
        self._steps = 0
        self._broken = np.zeros(n, dtype=int)

    def update(self, exchange: Exchange) -> None:
        n = self.mean.size
        parts = n * exchange.weights
        if exchange.skipped:
            if len(exchange.unusable) == n:  # all overflowed together: a loss scaler at work
                return
            parts = np.ones(n)
            parts[list(exchange.unusable)] = 0.0
        self._steps += 1
        self.mean = self.mean + (parts - self.mean) / min(self._steps, TRUST_STEPS)
        self._broken[list(exchange.broken)] += 1

    def below(self, least: float) -> list[int]:
        """The ranks whose mean is below this, the least first."""
        return [int(rank) for rank in np.argsort(self.mean, kind="stable") if self.mean[rank] < least]

    def owners(self) -> list[bool]:
        """Which ranks may own columns of the mean: those whose columns added up."""
        sound: list[bool] = (self._broken < MAX_BROKEN).tolist()
        return sound if any(sound) else [True] * len(sound)
