"""Rules that look for the best n − f rows among all choices, without listing them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from randeigen.errors import BadFraction
from randeigen.rules.base import Facts, Rule, mean_of
from randeigen.rules.geometric_median import products
from randeigen.rules.krum import krum_scores
from randeigen.rules.randeigen import far_outliers
from randeigen.types import Array, Decision, Geometry, Mask, Stop, Verdict

MAX_SEARCH_SECONDS = 60.0  # a search that is foreseen to take longer is refused
SO_FAR = "the best choice seen, since "
MIN_SCATTER_RATIO = 1e-14  # of all scatter: less is rounding, so no set can be narrower


@dataclass(frozen=True)
class MDA(Rule):
    """The mean of the n − f rows with the least diameter (Rousseeuw 1985; El Mhamdi et al. 2018).

    Exact. Whether n − f rows lie within t of one another asks for f rows that touch every pair further
    apart than t: a vertex cover, whose search grows with f and hardly with n; t is found by bisection among
    the distances. Of several such sets, and there often are, the one that keeps the most central rows;
    `ties="first"` keeps the first rows instead, as byzfl does.

    Cost: n²·d for the Gram matrix, then at worst 1.47^f·n² and in practice 1.1^f·n² (n = 30, f = 6:
    milliseconds); refused where that is more than `patience` seconds, and ended there with the tightest set
    so far where the rows make it so. Breaks down at half the rows. Blind to Byzantine rows within the honest
    diameter, which grows like sqrt(d).
    """

    ties: Literal["central", "first"] = "central"
    patience: float = MAX_SEARCH_SECONDS
    name: ClassVar[str] = "mda"
    family: ClassVar[str] = "Distances"
    only_small: ClassVar[str] = "its search among subsets takes seconds a cell at n = 100"
    facts: ClassVar[Facts] = Facts(
        "Rousseeuw 1985; El Mhamdi, Guerraoui, Rouault 2018",
        "n²·d, then about 1.1^f·n²",
        "1/2",
        "Byzantine rows within the honest diameter, which grows like sqrt(d)",
    )

    def assumed_corrupt(self, n: int) -> int:
        f = super().assumed_corrupt(n)
        self._clock(n, f)
        return f

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        between, n = geometry.squared_distances(), geometry.n
        central = np.argsort(krum_scores(between, n - f - 1), kind="stable")
        order = central if self.ties == "central" else np.arange(n)
        search = TightSearch(between, f, self._clock(n, f))
        try:
            return Decision(Verdict(mean_of(geometry, search.run(order)), Stop.DIRECT))
        except Unfinished as unfinished:  # the rows are at fault, not the caller
            kept = np.isin(np.arange(n), central[: n - f]) if search.tightest is None else search.tightest
            note = f"{SO_FAR}{unfinished}"
            return Decision(Verdict(mean_of(geometry, kept), Stop.MAX_ROUNDS, notes=(note,)))

    def _clock(self, n: int, f: int) -> Clock:
        # Distances drawn without any geometry are the hardest met: 20,000 steps at f = 50, a million at 100.
        return Clock(type(self).__name__, n, f, self.patience, 1e-6 * n, 300 * 1.09 ** min(f, 8000))


@dataclass(frozen=True)
class SMEA(Rule):
    """The mean of the n − f rows whose top variance is least (Allouah et al. 2023).

    Exact, by branch and bound. Removing rows R from m with scatter λₖ along direction k leaves at least
    λₖ − m/(m − |R|)·Σ_R s there, s being squared distances from the mean along it; choices that cannot get
    below the best set found are not looked at. Rows 10,000 times further out than the median row are
    removed first: no set that holds one is narrow.

    Cost: n²·d for the Gram matrix, then up to C(n, f)·n³ (n = 30, f = 6: seconds); refused, or ended, beyond
    `patience` seconds as MDA is. Breaks down at half the rows. Blind to Byzantine rows inside the honest
    spread.
    """

    patience: float = MAX_SEARCH_SECONDS
    name: ClassVar[str] = "smea"
    family: ClassVar[str] = "Distances"
    only_small: ClassVar[str] = "its search among subsets is refused at n = 100"
    facts: ClassVar[Facts] = Facts(
        "Allouah, Guerraoui, Gupta, Pinot, Stephan 2023",
        "n²·d, then up to C(n, f)·n³",
        "1/2",
        "Byzantine rows inside the honest spread",
    )

    def assumed_corrupt(self, n: int) -> int:
        f = super().assumed_corrupt(n)
        self._clock(n, f)
        return f

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        far, clock = far_outliers(geometry, f), self._clock(geometry.n, f)
        near = np.flatnonzero(~far)
        search = NarrowSearch(products(geometry)[np.ix_(near, near)], f - int(far.sum()), clock)
        stop, notes = Stop.DIRECT, tuple[str, ...]()
        try:
            search.run()
        except Unfinished as unfinished:
            stop, notes = Stop.MAX_ROUNDS, (f"{SO_FAR}{unfinished}",)
        kept = np.isin(np.arange(geometry.n), near[search.narrowest])
        return Decision(Verdict(mean_of(geometry, kept), stop, far_outliers=far, notes=notes))

    def _clock(self, n: int, f: int) -> Clock:
        # A shapeless cloud in many dimensions is the hardest met: one choice in 60 has to be looked at.
        choices = float(math.comb(n, f)) if n < 1000 or f == 0 else math.inf
        return Clock(type(self).__name__, n, f, self.patience, 1e-4 + 2e-7 * n**2, choices / 20)


class Unfinished(BadFraction):
    """A search took longer than n and f let foresee."""


@dataclass
class Clock:
    """Counts the steps of a search, so that neither size nor a hostile row can make it run for ever."""

    name: str
    n: int
    f: int
    patience: float  # seconds
    step: float  # seconds a step takes, about
    likely: float  # steps that a hard but ordinary cloud takes
    steps: int = 0

    def __post_init__(self) -> None:
        if self.likely * self.step > self.patience:
            raise BadFraction(self._message(f"may take {in_words(self.likely * self.step)}"))

    def tick(self) -> None:
        self.steps += 1
        if self.steps * self.step > self.patience:
            raise Unfinished(self._message(f"is not done after {self.steps:,} steps"))

    def _message(self, what: str) -> str:
        return (
            f"{self.name} of n={self.n} rows with f={self.f} {what}, and patience is "
            f"{in_words(self.patience)}; give fewer rows, a smaller f, or a longer patience=, in seconds."
        )


@dataclass
class TightSearch:
    """The rows with the least diameter: bisection over it, a search for a vertex cover at each."""

    between: Array  # (n, n) squared distances
    f: int
    clock: Clock
    tightest: Mask | None = None  # the set of least diameter so far

    def run(self, order: NDArray[np.intp]) -> Mask:
        """(n,) which rows; of several choices the one that keeps the first in `order`."""
        n, radii = self.between.shape[0], np.unique(self.between)
        low, high = 0, radii.size - 1  # a diameter of radii[high] can be had
        while low < high:
            middle = (low + high) // 2
            cover = self._cover(conflicts(self.between, radii[middle]), (1 << n) - 1, self.f)
            if cover is None:
                low = middle + 1
            else:
                high, self.tightest = middle, ~np.isin(np.arange(n), bits(cover))
        return ~np.isin(np.arange(n), bits(self._sparing(conflicts(self.between, radii[high]), order)))

    def _cover(self, edges: list[int], alive: int, budget: int) -> int | None:
        """At most `budget` rows that touch every conflict among those alive; None if no such rows exist.

        Takes what must be taken; then branches: either v, the row with most conflicts, or all it conflicts
        with, three at least. So the tree has at most 1.47^budget leaves.
        """
        taken = 0
        while True:
            self.clock.tick()
            degrees = {v: (edges[v] & alive).bit_count() for v in bits(alive)}
            total = sum(degrees.values()) // 2
            if total == 0:
                return taken
            v = max(degrees, key=degrees.__getitem__)
            if total > budget * degrees[v]:
                return None
            single = next((u for u, degree in degrees.items() if degree == 1), None)
            if single is not None:  # its only partner serves as well, and may serve others
                v = (edges[single] & alive).bit_length() - 1
            elif budget >= degrees[v] >= 3:
                break
            taken, alive, budget = taken | 1 << v, alive & ~(1 << v), budget - 1
        without, partners = alive & ~(1 << v), edges[v] & alive
        rest = self._cover(edges, without, budget - 1)
        if rest is not None:
            return taken | 1 << v | rest
        rest = self._cover(edges, without & ~partners, budget - partners.bit_count())
        return None if rest is None else taken | partners | rest

    def _sparing(self, edges: list[int], order: NDArray[np.intp]) -> int:
        """Of all covers the one that spares the first rows in `order`."""
        alive, removed, budget = (1 << len(edges)) - 1, 0, self.f
        for v in order.tolist():
            partners = edges[v] & alive
            without, left = alive & ~partners & ~(1 << v), budget - partners.bit_count()
            if not alive >> v & 1:
                continue
            if partners and (left < 0 or self._cover(edges, without, left) is None):
                continue  # no cover spares v and the rows already spared: v goes, with all that stay alive
            alive, removed, budget = without, removed | partners, left
        return removed | alive


def conflicts(between: Array, radius: float) -> list[int]:
    """For every row, as the bits of one number, the rows further away than `radius`."""
    n = between.shape[0]
    packed = np.packbits(between > radius, axis=1, bitorder="little")
    return [int.from_bytes(packed[i].tobytes(), "little") for i in range(n)]


def bits(number: int) -> list[int]:
    """The positions of the ones."""
    positions = []
    while number:
        low = number & -number
        positions.append(low.bit_length() - 1)
        number ^= low
    return positions


@dataclass
class NarrowSearch:
    """Branch and bound for the n − f rows with the least top variance."""

    inner: Array  # (n, n) products
    f: int
    clock: Clock
    best: float = math.inf  # the least scatter along the top direction of any set so far
    narrowest: list[int] = field(default_factory=list)

    def run(self) -> list[int]:
        self._greedy()
        if self.best > MIN_SCATTER_RATIO * float(self.inner.trace()):
            self._search(list(range(self.inner.shape[0])), list(range(self.inner.shape[0])), self.f)
        return self.narrowest

    def _greedy(self) -> None:
        """A first set, to prune by: remove the row furthest out along the top direction, f times."""
        rows = list(range(self.inner.shape[0]))
        for _ in range(self.f):
            rows.pop(int(np.argmax(self._spectrum(rows)[1][:, -1])))
        self.best, self.narrowest = float(self._spectrum(rows)[0][-1]), rows

    def _search(self, rows: list[int], free: list[int], left: int) -> None:
        """Try to remove `left` of the rows `free`; those not free stay."""
        self.clock.tick()
        scatter, scores = self._spectrum(rows)
        if left == 0:
            if scatter[-1] < self.best:
                self.best, self.narrowest = float(scatter[-1]), rows
            return
        position = {row: i for i, row in enumerate(rows)}
        open_scores = scores[[position[row] for row in free]]
        grows = len(rows) / (len(rows) - left)
        gains = np.sort(open_scores, axis=0)[-left:].sum(axis=0)
        if (scatter - grows * gains).max() >= self.best:
            return
        order = np.argsort(-open_scores[:, -1], kind="stable")
        falling = open_scores[order, -1]
        for i in range(len(free) - left + 1):
            if scatter[-1] - grows * falling[i : i + left].sum() >= self.best:
                return  # removing any of the rows still free would not lower the top variance enough
            gone = free[order[i]]
            self._search([row for row in rows if row != gone], [free[j] for j in order[i + 1 :]], left - 1)

    def _spectrum(self, rows: list[int]) -> tuple[Array, Array]:
        """Scatter along each principal direction, and every row's share of it (rows × directions)."""
        inner = self.inner[np.ix_(rows, rows)]
        to_mean = inner.mean(axis=0)
        values, vectors = np.linalg.eigh(inner - to_mean[:, None] - to_mean + to_mean.mean())
        values = np.maximum(values, 0.0)
        return values, values * vectors**2


def in_words(seconds: float) -> str:
    """A duration to the nearest sensible unit."""
    for unit, size in (("years", 3.15e7), ("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}" if seconds < 1e6 * size else f"{seconds / size:.0e} {unit}"
    return f"{seconds:.0f} seconds"
