"""Rules that go by one row the caller trusts: MoNNA and FLTrust."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import numpy as np

from randeigen.errors import BadParameter, BadRows
from randeigen.rules.base import (
    Facts,
    Rule,
    default_f_to_zero,
    mean_of,
    normalised,
    single_row,
    smallest,
)
from randeigen.types import Array, Decision, Geometry, Index, Statistic, Stop, Verdict

FLOAT = np.finfo(np.float64)
Trusting = TypeVar("Trusting", bound="TrustingRule")


@dataclass(frozen=True)
class TrustingRule(Rule):
    """A rule that goes by one row: the caller's own, given by its index."""

    trusted: int = 0
    family: ClassVar[str] = "Distances"
    trusts_a_row: ClassVar[bool] = True

    def assumed_corrupt(self, n: int) -> int:
        if isinstance(self.trusted, bool) or not 0 <= self.trusted < n:
            raise BadParameter(
                f"trusted={self.trusted!r} of {n} rows; give the index of the row you trust, 0 to {n - 1}."
            )
        return super().assumed_corrupt(n)

    def reindex(self: Trusting, usable: Index) -> Trusting:
        position = np.flatnonzero(usable == self.trusted)
        if position.size == 0:
            raise BadRows(
                f"row {self.trusted} is the trusted one, but it is unusable; "
                "without it this rule has nothing to go by, so find out why."
            )
        return replace(self, trusted=int(position[0]))


@dataclass(frozen=True)
class MoNNA(TrustingRule):
    """The mean of the n − f rows nearest to one the caller trusts, itself among them.

    Farhadkhani, Guerraoui, Gupta, Hoang, Pinot and Stephan 2023; byzfl's `idx` is `trusted`.

    Cost: n·d for the distances from it (n²·d with the certificate), then n. Breaks down at half the rows.
    Blind to Byzantine rows no further from the trusted row than honest ones are (sqrt(d) honest deviations),
    and to anything if the trusted row itself is corrupt.
    """

    name: ClassVar[str] = "monna"
    facts: ClassVar[Facts] = Facts(
        "Farhadkhani, Guerraoui, Gupta, Hoang, Pinot, Stephan 2023",
        "n·d (n²·d with its certificate)",
        "1/2, if the trusted row is honest",
        "Byzantine rows no further from the trusted row than honest rows are; a corrupt trusted row",
    )

    def statistic(self) -> Statistic:
        return Statistic.DISTANCES_TO_TRUSTED

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        kept = smallest(geometry.squared_distances_from(self.trusted), geometry.n - f)
        if not geometry.prior_weights[kept].any():
            return Decision(Verdict(single_row(geometry, self.trusted), Stop.DIRECT))
        return Decision(Verdict(mean_of(geometry, kept), Stop.DIRECT))


@dataclass(frozen=True)
class FLTrust(TrustingRule):
    """Trust by direction: rows that point the server's way, scaled to the norm of the server's row.

    With x₀ the row the server computed itself (`trusted`), row i counts max(0, cos(xᵢ, x₀)) and is rescaled
    to ‖x₀‖: Σ tᵢ·(‖x₀‖/‖xᵢ‖)·xᵢ / Σ tᵢ over the other rows (Cao, Fang, Liu and Gong 2021). If no other row
    has trust the answer is the server's row. Neither eps nor f enters the answer, only its certificate.

    Cost: n²·d for the Gram matrix, then n³. No breakdown point: any number of Byzantine rows is held to the
    server's norm and half-space. Blind to whatever the server's row is wrong about, and to Byzantine rows at
    right angles minus a little. Rows must be updates, not models: angles are measured from the origin.
    """

    name: ClassVar[str] = "fltrust"
    facts: ClassVar[Facts] = Facts(
        "Cao, Fang, Liu, Gong 2021",
        "n²·d, then n³",
        "none, if the server's row is honest",
        "whatever the server's own row is wrong about; Byzantine rows almost at right angles to it",
    )

    def __post_init__(self) -> None:
        default_f_to_zero(self)
        super().__post_init__()

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        norms = np.sqrt(geometry.squared_norms())
        own = norms[self.trusted]
        stretch = np.divide(own, norms, out=np.zeros(geometry.n), where=norms > _norms_of_rounding(geometry))
        # Cosines are computed from rows of equal norm: beside a row of 1e30 they would be rounded away.
        with np.errstate(all="ignore"):  # beside rows far out a faint row has no direction
            level = geometry.combine_rows(np.column_stack((np.diag(stretch), 1 - stretch)))
            cosines = 1 - level.squared_distances()[self.trusted] / max(2 * own**2, FLOAT.tiny)
        trust = np.where((stretch > 0) & (cosines > 0), cosines, 0.0) * geometry.prior_weights
        trust[self.trusted] = 0.0
        if not trust.any():
            note = "no other row points the trusted row's way, so it is the answer"
            return Decision(Verdict(single_row(geometry, self.trusted), Stop.DIRECT, notes=(note,)))
        share = normalised(trust) * stretch
        return Decision(Verdict(normalised(share), Stop.DIRECT, scale=float(share.sum())))


def _norms_of_rounding(geometry: Geometry) -> Array:
    """(n,) norms that rounding alone may give: a row of zeros, measured from a pivot, has no direction."""
    squares, w = geometry.squared_norms_from_pivot(), geometry.prior_weights
    with np.errstate(all="ignore"):
        relative = np.float64(geometry.rounding_error(w)) / (w @ squares / w.sum())
        return np.sqrt(squares) * (relative if np.isfinite(relative) else 0.0)
