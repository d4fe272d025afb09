"""Bulyan: Krum picks the rows, then every column is judged among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from randeigen.errors import BadFraction
from randeigen.rules._columns import by_strips, mean_of_nearest, median
from randeigen.rules.base import TableRule
from randeigen.rules.facts import Facts
from randeigen.types import Array, Geometry, Stop, Verdict


@dataclass(frozen=True)
class Bulyan(TableRule):
    """Krum θ = n−2f times, each time on the rows not yet picked; then MeaMed of the picked with β = θ−2f.

    El Mhamdi, Guerraoui, Rouault 2018. Krum's score of a row is the sum of its squared distances to the
    r−f−2 nearest of the r rows left. The weights are even over the picked rows, and the certificate leans on
    their mean. Cost: n²·d for the table, θ·n² for the picks, then a sort of each column. Needs n ≥ 4f+3.
    Breaks down at a quarter of the rows. Blind to a shift of every column within the honest spread of the
    picked rows.
    """

    facts: ClassVar[Facts] = Facts(
        paper="El Mhamdi, Guerraoui, Rouault 2018, arXiv:1802.07927",
        cost="n²·d + n³",
        breakdown="1/4 (n ≥ 4f+3)",
        blind_to="a shift of every column within the spread of the picked rows",
    )

    def budget(self, n: int) -> int:
        """How many of n rows may be corrupt: Bulyan needs 4f+3 rows, unless nobody lies."""
        f = super().budget(n)
        _demand(n, f)
        return f

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """Even weights on the rows that Krum picks."""
        _demand(geometry.n, f)
        live = np.flatnonzero(geometry.prior)  # a row that the caller gave no mass is never picked
        apart = geometry.distances()[np.ix_(live, live)]
        picked = live[_picks(apart, f, min(geometry.n - 2 * f, live.size))]
        weights = np.zeros(geometry.n)
        weights[picked] = 1 / picked.size
        return Verdict(weights, Stop.DIRECT, notes=(f"Krum picked {picked.size} of {geometry.n} rows",))

    def merge(self, columns: slice, block: Any, f: int, verdict: Verdict) -> Any:
        """(b,) of each column the β numbers nearest the median of the picked rows, averaged."""
        picked = np.flatnonzero(verdict.weights).tolist()
        beta = max(len(picked) - 2 * f, 1)
        return by_strips(block, lambda lines: mean_of_nearest(lines, median(lines), beta), picked)


def _demand(n: int, f: int) -> None:
    if f and n < 4 * f + 3:
        raise BadFraction(
            f"Bulyan with f={f} needs at least {4 * f + 3} rows, found {n}; "
            f"give f of at most {max((n - 3) // 4, 0)}, more rows, or use RandEigen, which takes up to half."
        )


def _picks(apart: Array, f: int, count: int) -> NDArray[np.intp]:
    """The rows Krum picks, one at a time from those left."""
    left = np.arange(apart.shape[0])
    picked = []
    for _ in range(count):
        near = max(left.size - f - 2, 1)
        # The row itself, at distance 0, is among the nearest and adds nothing.
        among = apart[np.ix_(left, left)]
        scores = np.partition(among, min(near, left.size - 1), axis=1)[:, : near + 1].sum(axis=1)
        best = int(np.argmin(scores))
        picked.append(left[best])
        left = np.delete(left, best)
    return np.sort(np.array(picked, dtype=np.intp))
