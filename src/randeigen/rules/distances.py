"""Rules that choose rows by their distances to other rows, or to one row the caller trusts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from randeigen.errors import BadFraction, BadRows
from randeigen.rules.base import TableRule, normalised
from randeigen.rules.facts import Facts
from randeigen.types import Array, Geometry, Mask, Stop, Verdict, Weights

FLOAT = np.finfo(np.float64)
Trusting = TypeVar("Trusting", bound="TrustingRule")


@dataclass(frozen=True)
class Krum(TableRule):
    """The row whose nearest others are nearest (Blanchard, El Mhamdi, Guerraoui and Stainer 2017).

    Row i scores the sum of its squared distances to its n − f − 2 nearest others; the least score wins, and
    of equal scores the first. `spare=1` counts n − f − 1 others, as byzfl does. Needs n ≥ 2f + 3 (2f + 2
    with `spare=1`): more than f others are counted, so liars cannot vouch for one another.

    Cost: n²·d for the table, then n²·log n. Breaks down just below half the rows. Blind to anything within
    the honest distances, which grow like sqrt(d): a liar at sqrt(d) from the mean is as near as any honest
    row, and the answer is one row, with all of its own noise.
    """

    spare: int = 2
    facts: ClassVar[Facts] = Facts(
        "Blanchard, El Mhamdi, Guerraoui, Stainer 2017",
        "n²·d, then n²·log n",
        "f < (n − 2)/2",
        "a liar no further from the others than honest rows are; the noise of a single row",
    )

    def budget(self, n: int) -> int:
        """Refuses too few rows before any is read."""
        return check_vouching(self, n, super().budget(n), self.spare)

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """All weight on one row."""
        check_vouching(self, geometry.n, f, self.spare)
        scores = scores_of_trusted_rows(geometry, geometry.n - f - self.spare)
        return Verdict(lone(geometry, int(np.argmin(scores))), Stop.DIRECT)


@dataclass(frozen=True)
class MultiKrum(TableRule):
    """The mean of the rows with the best Krum scores (Blanchard et al. 2017; Shejwalkar, Houmansadr 2021).

    Averages the `selected` best (n − f unless given; byzfl's are `spare=1`). With `iterative=True` as in
    the code of Shejwalkar and Houmansadr: the best row moves to the selected set, scores are computed
    afresh on those that remain with one neighbour fewer each time, until 2f + 2 remain.

    Cost: n²·d for the table, then n²·log n (n³·log n iterative). Breaks down just below half the rows.
    Blind to a common shift of all liars by up to sqrt(d) honest deviations, like Krum.
    """

    spare: int = 2
    selected: int | None = None
    iterative: bool = False
    facts: ClassVar[Facts] = Facts(
        "Blanchard, El Mhamdi, Guerraoui, Stainer 2017; iterative: Shejwalkar, Houmansadr 2021",
        "n²·d, then n²·log n",
        "f < (n − 2)/2",
        "liars no further from the others than honest rows are: a shift that grows like sqrt(d)",
    )

    def __post_init__(self) -> None:
        """Refuse to select nothing."""
        super().__post_init__()
        if self.selected is not None and self.selected < 1:
            raise BadFraction(f"selected={self.selected}; give how many rows to average, at least 1.")

    def budget(self, n: int) -> int:
        """Refuses too few rows before any is read."""
        return check_vouching(self, n, super().budget(n), self.spare)

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """Equal weight on the selected rows."""
        n = geometry.n
        check_vouching(self, n, f, self.spare)
        usual = n - 2 * f - 2 if self.iterative else n - f
        count = max(1, min(self.selected or usual, n))
        if self.iterative:
            return Verdict(mean_of(geometry, one_by_one(geometry, f, count)), Stop.DIRECT)
        scores = scores_of_trusted_rows(geometry, n - f - self.spare)
        return Verdict(mean_of(geometry, smallest(scores, count)), Stop.DIRECT)


@dataclass(frozen=True)
class TrustingRule(TableRule):
    """A rule that believes one row: the caller's own, known by its place among the rows given."""

    trusted: int = 0

    def budget(self, n: int) -> int:
        """Refuses a place where no row is."""
        if isinstance(self.trusted, bool) or not 0 <= self.trusted < n:
            raise BadFraction(
                f"trusted={self.trusted!r} of {n} rows; give the place of the row you trust, 0 to {n - 1}."
            )
        return super().budget(n)

    def among(self: Trusting, alive: NDArray[np.intp]) -> Trusting:
        """The same rule for those who see only the rows `alive`, in which the trusted one has moved up."""
        place = np.flatnonzero(alive == self.trusted)
        if place.size == 0:
            raise BadRows(
                f"row {self.trusted} is the trusted one, but it is unusable; "
                "without it this rule has nothing to go by, so find out why."
            )
        return replace(self, trusted=int(place[0]))


@dataclass(frozen=True)
class MoNNA(TrustingRule):
    """The mean of the n − f rows nearest to one the caller trusts, itself among them.

    Farhadkhani, Guerraoui, Gupta, Hoang, Pinot and Stephan 2023; byzfl's `idx` is `trusted`.

    Cost: n·d for the distances from it (n²·d with the certificate), then n. Breaks down at half the rows.
    Blind to liars no further from the trusted row than honest ones are (sqrt(d) honest deviations), and
    wholly at the mercy of that row.
    """

    needs: ClassVar[str] = "line"
    facts: ClassVar[Facts] = Facts(
        "Farhadkhani, Guerraoui, Gupta, Hoang, Pinot, Stephan 2023",
        "n·d (n²·d with its certificate)",
        "1/2, if the trusted row is honest",
        "liars no further from the trusted row than honest rows are; a trusted row that lies",
    )

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """Equal weight on the nearest."""
        kept = smallest(geometry.distances_from(self.trusted), geometry.n - f)
        if not geometry.prior[kept].any():
            return Verdict(lone(geometry, self.trusted), Stop.DIRECT)
        return Verdict(mean_of(geometry, kept), Stop.DIRECT)


@dataclass(frozen=True)
class FLTrust(TrustingRule):
    """Trust by direction: rows that point the server's way, made as long as the server's row.

    With x₀ the row the server computed itself (`trusted`), row i counts max(0, cos(xᵢ, x₀)) and is rescaled
    to ‖x₀‖: Σ tᵢ·(‖x₀‖/‖xᵢ‖)·xᵢ / Σ tᵢ over the other rows (Cao, Fang, Liu and Gong 2021). If nobody is
    trusted the answer is the server's row. Neither eps nor f enters the answer, only its certificate.

    Cost: n²·d for the table, then n³. No breakdown point: any number of liars is held to the server's
    length and half-space. Blind to whatever the server's row is wrong about, and to liars at right angles
    minus a little. Rows must be updates, not models: angles are measured from the origin.
    """

    facts: ClassVar[Facts] = Facts(
        "Cao, Fang, Liu, Gong 2021",
        "n²·d, then n³",
        "none, if the server's row is honest",
        "whatever the server's own row is wrong about; liars almost at right angles to it",
    )

    def __post_init__(self) -> None:
        """Without eps or f nobody is assumed to lie."""
        assume_nobody_lies(self)
        super().__post_init__()

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """Trust times the stretch to the server's length."""
        lengths = np.sqrt(geometry.lengths())
        own = lengths[self.trusted]
        stretch = np.divide(own, lengths, out=np.zeros(geometry.n), where=lengths > 0)
        # Cosines are read off rows already of equal length: beside a row of 1e30 they would drown.
        level = geometry.mix(np.column_stack((np.diag(stretch), 1 - stretch)))
        between = level.distances()[self.trusted] / max(2 * own**2, FLOAT.tiny)
        trust = np.where(stretch > 0, np.maximum(1 - between, 0.0) * geometry.prior, 0.0)
        trust[self.trusted] = 0.0
        if not trust.any():
            nobody = "no other row points the trusted row's way, so it is the answer"
            return Verdict(lone(geometry, self.trusted), Stop.DIRECT, notes=(nobody,))
        share = normalised(trust) * stretch
        return Verdict(normalised(share), Stop.DIRECT, scale=float(share.sum()))


def krum_scores(between: Array, counted: int) -> Array:
    """(n,) the sum of each row's `counted` least entries, itself not counted; of at least one if there is."""
    n = between.shape[0]
    others = between[~np.eye(n, dtype=bool)].reshape(n, n - 1)
    return np.asarray(np.sort(others, axis=1)[:, : max(counted, 1)].sum(axis=1))


def scores_of_trusted_rows(geometry: Geometry, counted: int) -> Array:
    """Krum's scores; a row that the caller gave no mass is never chosen."""
    return np.where(geometry.prior > 0, krum_scores(geometry.distances(), counted), np.inf)


def one_by_one(geometry: Geometry, f: int, count: int) -> Mask:
    """The iterative selection: the best of those that remain, `count` times."""
    between = geometry.distances()
    remaining = np.arange(geometry.n)
    for _ in range(count):
        scores = krum_scores(between[np.ix_(remaining, remaining)], remaining.size - f - 3)
        remaining = np.delete(remaining, np.argmin(scores))
    return ~np.isin(np.arange(geometry.n), remaining)


def smallest(values: Array, count: int) -> Mask:
    """(n,) which are the `count` smallest; of equal ones the first."""
    kept = np.zeros(values.size, dtype=bool)
    kept[np.argsort(values, kind="stable")[:count]] = True
    return kept


def mean_of(geometry: Geometry, kept: Mask) -> Weights:
    """The weights of the mean of these rows by their mass; of all rows where none of these has any."""
    mass = np.where(kept, geometry.prior, 0.0)
    return normalised(mass if mass.any() else geometry.prior)


def lone(geometry: Geometry, row: int) -> Weights:
    """All weight on one row."""
    return np.where(np.arange(geometry.n) == row, 1.0, 0.0)


def middle_row(between: Array) -> int:
    """The row with the least median distance to the others: no minority decides which, nor how far out."""
    return int(np.argmin(np.median(between, axis=1)))


def check_vouching(rule: TableRule, n: int, f: int, spare: int) -> int:
    """f, if more than f others are counted in a score. Without liars any number of rows will do."""
    if f and n - f - spare <= f:
        need = 2 * f + 1 + spare
        raise BadFraction(
            f"{type(rule).__name__} with f={f} needs at least {need} rows, found n={n}: liars could vouch "
            f"for one another; give f at most {max((n - 1 - spare) // 2, 0)}, or {need} rows."
        )
    return f


def assume_nobody_lies(rule: TableRule) -> None:
    """For rules that work without knowing how many lie: f = 0 unless eps or f is given."""
    if rule.eps is None and rule.f is None:
        object.__setattr__(rule, "f", 0)
