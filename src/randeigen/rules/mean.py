"""The plain mean: no defence, the yardstick of all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from randeigen.rules.base import Facts, Rule, default_f_to_zero, normalised
from randeigen.types import Decision, Geometry, Statistic, Stop, Verdict


@dataclass(frozen=True)
class Mean(Rule):
    """Every row counts the same, Byzantine ones included. With eps or f its certificate says what that risks.

    Cost: one reading; the certificate's is another. Breakdown point 0: one row moves it at will.
    """

    name: ClassVar[str] = "mean"
    family: ClassVar[str] = "Centres"
    facts: ClassVar[Facts] = Facts(
        paper="no defence",
        cost="n·d (n²·d with its certificate)",
        breakdown="0",
        blind_to="everything",
    )

    def __post_init__(self) -> None:
        default_f_to_zero(self)
        super().__post_init__()

    def statistic(self) -> Statistic:
        return Statistic.NONE

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        return Decision(Verdict(normalised(geometry.prior_weights), Stop.DIRECT))
