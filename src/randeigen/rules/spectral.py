"""RandEigen's relatives: rules that judge rows by how far out they stand along the widest direction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from randeigen.certificate import bound
from randeigen.errors import BadFraction
from randeigen.rules.base import Facts, TableRule, mean_of, normalised, smallest
from randeigen.rules.randeigen import far_outliers
from randeigen.rules.zhu import shrunk
from randeigen.types import Geometry, Stop, Verdict


@dataclass(frozen=True)
class CAF(TableRule):
    """Covariance-bound agnostic filter: soft filtering, and of all rounds the narrowest is the answer.

    Each round multiplies weight cᵢ by 1 − τᵢ/max τ, τ being squared distances from the weighted mean along
    the widest direction, while Σ c > n − 2f; the mean with the least widest variance is returned (Allouah,
    Guerraoui and Stephan 2025). RandEigen goes by the least certificate instead. Directions are exact
    here and max τ is over rows that still have weight; byzfl takes one step of power iteration from a random
    start, lets removed rows set the maximum, so hangs on a far row, and has no answer for f = 0.

    Cost: n²·d for the table, then n² a round, at most n rounds. Breaks down at half the rows. Blind to liars
    that hide inside the honest spread.
    """

    facts: ClassVar[Facts] = Facts(
        "Allouah, Guerraoui, Stephan 2025",
        "n²·d, then n² a round",
        "1/2",
        "liars that hide inside the honest spread",
    )

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """Filter round by round; return the narrowest."""
        wild = far_outliers(geometry, f)
        mass = best = np.where(wild, 0.0, geometry.prior_weights)
        floor = geometry.prior_weights.sum() * (1 - 2 * f / geometry.n)
        variances: list[float] = []
        bounds: list[float] = []
        chosen, stop = 0, Stop.DIRECT if f == 0 else Stop.BUDGET
        while mass.sum() > floor:  # each round but the last silences a row, so there are n at most
            spread = geometry.top_direction(mass)
            variances.append(spread.variance)
            bounds.append(bound(geometry, mass, f, spread.variance + spread.allowance))
            if spread.variance < variances[chosen]:
                chosen, best = len(variances) - 1, mass
            left = shrunk(mass, spread.scores, geometry.prior_weights)
            agree = left is mass or spread.variance <= geometry.rounding_error(mass)
            if agree or np.count_nonzero(left) < 2:
                stop = Stop.AGREE if agree else Stop.LONE
                break
            mass = left
        spreads = tuple(geometry.unit * math.sqrt(variance) for variance in variances)
        return Verdict(
            normalised(best), stop, spreads=spreads, bounds=tuple(bounds), chosen=chosen, far_outliers=wild
        )


@dataclass(frozen=True)
class DnC(TableRule):
    """Divide and conquer: one look along the widest direction, and the c·f rows furthest out are gone.

    sᵢ = ⟨xᵢ − mean, v⟩², the n − int(c·f) smallest stay (Shejwalkar and Houmansadr 2021). The paper looks at
    b random coordinates, `niters` times, and keeps the rows that stay every time; the table has no
    coordinates, so this is b = d, where every look is the same and one is enough. Rows 10,000 times
    further out than the median row go first, on the same account: beside them nothing else is seen.

    Cost: n²·d for the table, then n². Breaks down at half the rows at best: liars in two directions mask each
    other, one look sees one. Blind to liars that hide inside the honest spread.
    """

    c: float = 1.0
    facts: ClassVar[Facts] = Facts(
        "Shejwalkar, Houmansadr 2021",
        "n²·d, then n²",
        "1/2, if all liars stand in one direction",
        "all but the widest direction: liars in several mask each other",
    )

    def __post_init__(self) -> None:
        """Refuse to add rows."""
        super().__post_init__()
        if not 0 < self.c < np.inf:
            raise BadFraction(f"c={self.c}; give how many rows go for each liar feared, above 0.")

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """Equal weight on the rows nearest the mean along the widest direction."""
        wild = far_outliers(geometry, f)
        mass = np.where(wild, 0.0, geometry.prior_weights)
        spread = geometry.top_direction(mass)
        scores = np.where(mass > 0, spread.scores, np.inf)
        stay = max(geometry.n - int(min(self.c * f + 1e-9, geometry.n)), 1)
        kept = smallest(scores, stay) & (mass > 0)
        spreads = (geometry.unit * math.sqrt(spread.variance),)
        return Verdict(mean_of(geometry, kept), Stop.DIRECT, spreads=spreads, far_outliers=wild)
