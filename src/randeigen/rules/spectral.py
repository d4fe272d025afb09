"""RandEigen's relatives: rules that score rows by their projections on the top direction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from randeigen.certificate import bound
from randeigen.errors import BadParameter
from randeigen.rules.base import Facts, Rule, mean_of, normalised, smallest
from randeigen.rules.randeigen import far_outliers
from randeigen.rules.zhu import shrunk
from randeigen.types import Decision, Geometry, Stop, Verdict


@dataclass(frozen=True)
class CAF(Rule):
    """Covariance-bound agnostic filter: soft filtering, and the round of least top variance is the answer.

    Each round multiplies weight cᵢ by 1 − τᵢ/max τ, τ being squared distances from the weighted mean along
    the top direction, while Σ c > n − 2f; the mean with the least top variance is returned (Allouah,
    Guerraoui and Stephan 2025). RandEigen goes by the least certificate instead. Directions are exact
    here and max τ is over rows that still have weight; byzfl takes one step of power iteration from a random
    start, lets removed rows set the maximum, so hangs on a far row, and has no answer for f = 0.

    Cost: n²·d for the Gram matrix, then n² a round, at most n rounds. Breaks down at half the rows. Blind to
    Byzantine rows inside the honest spread.
    """

    name: ClassVar[str] = "caf"
    family: ClassVar[str] = "Spectral filters"
    facts: ClassVar[Facts] = Facts(
        "Allouah, Guerraoui, Stephan 2025",
        "n²·d, then n² a round",
        "1/2",
        "Byzantine rows inside the honest spread",
    )

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        far = far_outliers(geometry, f)
        w = best = np.where(far, 0.0, geometry.prior_weights)
        floor = geometry.prior_weights.sum() * (1 - 2 * f / geometry.n)
        variances: list[float] = []
        bounds: list[float] = []
        answer, stop = 0, Stop.DIRECT if f == 0 else Stop.BUDGET
        while w.sum() > floor:  # each round but the last takes all weight of a row, so there are at most n
            top = geometry.top_direction(w)
            variances.append(top.variance)
            bounds.append(bound(geometry, w, f, top.variance + top.allowance))
            if top.variance < variances[answer]:
                answer, best = len(variances) - 1, w
            left = shrunk(w, top.scores, geometry.prior_weights)
            identical = left is w or top.variance <= geometry.rounding_error(w)
            if identical or np.count_nonzero(left) < 2:
                stop = Stop.IDENTICAL_ROWS if identical else Stop.TOO_FEW_ROWS
                break
            w = left
        return Decision(
            Verdict(
                normalised(best),
                stop,
                spreads=tuple(geometry.scale * math.sqrt(variance) for variance in variances),
                bounds=tuple(bounds),
                answer_round=answer,
                far_outliers=far,
            )
        )


@dataclass(frozen=True)
class DnC(Rule):
    """Divide and conquer: the c·f rows furthest out along the top direction are removed, once.

    sᵢ = ⟨xᵢ − mean, v⟩², the n − int(c·f) smallest stay (Shejwalkar and Houmansadr 2021). The paper takes
    b random coordinates, `niters` times, and keeps the rows that stay every time; a Gram matrix has no
    coordinates, so this is b = d, where every time is the same and one is enough. Rows 10,000 times further
    out than the median row go first, and count among the c·f: rounding beside them would hide the others.

    Cost: n²·d for the Gram matrix, then n². Breaks down at half the rows at best: of Byzantine rows in two
    directions one group masks the other. Blind to Byzantine rows inside the honest spread.
    """

    c: float = 1.0
    name: ClassVar[str] = "dnc"
    family: ClassVar[str] = "Spectral filters"
    facts: ClassVar[Facts] = Facts(
        "Shejwalkar, Houmansadr 2021",
        "n²·d, then n²",
        "1/2, if all Byzantine rows are in one direction",
        "all but the top direction: Byzantine rows in several mask each other",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.c < np.inf:
            raise BadParameter(f"c={self.c}; give how many rows go for each corrupt one assumed, above 0.")

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        far = far_outliers(geometry, f)
        w = np.where(far, 0.0, geometry.prior_weights)
        top = geometry.top_direction(w)
        scores = np.where(w > 0, top.scores, np.inf)
        stay = max(geometry.n - int(min(self.c * f + 1e-9, geometry.n)), 1)
        kept = smallest(scores, stay) & (w > 0)
        spreads = (geometry.scale * math.sqrt(top.variance),)
        return Decision(Verdict(mean_of(geometry, kept), Stop.DIRECT, spreads=spreads, far_outliers=far))
