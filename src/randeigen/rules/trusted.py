"""Rules that go by one row the caller trusts: MoNNA and FLTrust."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from randeigen.errors import BadFraction, BadRows
from randeigen.rules.base import (
    Facts,
    TableRule,
    default_f_to_zero,
    mean_of,
    normalised,
    single_row,
    smallest,
)
from randeigen.types import Geometry, Stop, Verdict

FLOAT = np.finfo(np.float64)
Trusting = TypeVar("Trusting", bound="TrustingRule")


@dataclass(frozen=True)
class TrustingRule(TableRule):
    """A rule that believes one row: the caller's own, known by its place among the rows given."""

    trusted: int = 0

    def assumed_corrupt(self, n: int) -> int:
        """Refuses a place where no row is."""
        if isinstance(self.trusted, bool) or not 0 <= self.trusted < n:
            raise BadFraction(
                f"trusted={self.trusted!r} of {n} rows; give the place of the row you trust, 0 to {n - 1}."
            )
        return super().assumed_corrupt(n)

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
        kept = smallest(geometry.squared_distances_from(self.trusted), geometry.n - f)
        if not geometry.prior_weights[kept].any():
            return Verdict(single_row(geometry, self.trusted), Stop.DIRECT)
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
        default_f_to_zero(self)
        super().__post_init__()

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """Trust times the stretch to the server's length."""
        lengths = np.sqrt(geometry.squared_norms())
        own = lengths[self.trusted]
        stretch = np.divide(own, lengths, out=np.zeros(geometry.n), where=lengths > 0)
        # Cosines are read off rows already of equal length: beside a row of 1e30 they would drown.
        level = geometry.combine_rows(np.column_stack((np.diag(stretch), 1 - stretch)))
        with np.errstate(over="ignore"):  # beside rows far out a faint trusted row has no direction
            between = level.squared_distances()[self.trusted] / max(2 * own**2, FLOAT.tiny)
        trust = np.where(stretch > 0, np.maximum(1 - between, 0.0) * geometry.prior_weights, 0.0)
        trust[self.trusted] = 0.0
        if not trust.any():
            nobody = "no other row points the trusted row's way, so it is the answer"
            return Verdict(single_row(geometry, self.trusted), Stop.DIRECT, notes=(nobody,))
        share = normalised(trust) * stretch
        return Verdict(normalised(share), Stop.DIRECT, scale=float(share.sum()))
