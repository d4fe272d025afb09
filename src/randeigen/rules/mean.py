"""The plain mean: no defence, the yardstick of all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from randeigen.rules.base import Facts, TableRule, normalised
from randeigen.types import Geometry, Stop, Verdict


@dataclass(frozen=True)
class Mean(TableRule):
    """Every row counts the same, liars included. With eps or f its certificate says what that risks.

    Cost: one reading; the certificate's is another. Breakdown point 0: one row moves it at will.
    """

    needs: ClassVar[str] = "nothing"
    facts: ClassVar[Facts] = Facts(
        paper="no defence",
        cost="n·d (n²·d with its certificate)",
        breakdown="0",
        blind_to="everything",
    )

    def __post_init__(self) -> None:
        """Without eps or f nobody is assumed to lie."""
        if self.eps is None and self.f is None:
            object.__setattr__(self, "f", 0)
        super().__post_init__()

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """The prior itself."""
        return Verdict(normalised(geometry.prior_weights), Stop.DIRECT)
