"""Centred clipping and norm clipping: each row's pull on the answer is bounded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from randeigen.errors import BadFraction
from randeigen.rules.base import Facts, TableRule, default_f_to_zero, normalised
from randeigen.rules.geometric_median import check_steps, clipped, distances_from, products, start_at
from randeigen.types import Geometry, Stop, Verdict


@dataclass(frozen=True)
class CenteredClipping(TableRule):
    """A centre moved by the mean of the rows' offsets, none counted for more than τ.

    v ← v + Σ (xᵢ − v)·min(1, τ/‖xᵢ − v‖)/n, `steps` times (Karimireddy, He and Jaggi 2021), from the middle
    of the rows, or from the origin (`start="origin"`). byzfl's is `tau=100.0, steps=1, start="origin"`; its
    centre is remembered between calls, ours never. τ is in the rows' units; unless given, the median
    distance from the centre of each step. Neither eps nor f enters the answer, only its certificate.

    Cost: n²·d for the table, then n² a step; n·d for one step from the origin alone. Breaks down at half the
    rows (from the middle). Each liar moves the answer by up to τ/n a step: blind to lies of about the honest
    rows' length, sqrt(d).
    """

    tau: float | None = None
    steps: int = 10
    start: str = "middle"
    facts: ClassVar[Facts] = Facts(
        "Karimireddy, He, Jaggi 2021",
        "n²·d, then n² a step",
        "1/2 from the middle; from the origin as good as the origin",
        "lies about as long as honest rows: each moves the centre by tau/n a step",
    )

    def __post_init__(self) -> None:
        """Refuse a radius that lets nothing through."""
        default_f_to_zero(self)
        super().__post_init__()
        check_radius("tau", self.tau)
        check_steps(self.steps)
        if self.start not in ("middle", "origin"):
            raise BadFraction(f'start={self.start!r}; choose "middle" or "origin".')
        if self.start == "origin" and self.steps == 1:  # how far the rows are from there is all it asks
            object.__setattr__(self, "needs", "lengths")

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """The centre's own make-up: how much of it is which row, and how much the origin."""
        if self.needs == "lengths":  # a single step from the origin asks for no more
            return replace(NormClipping(f=f, limit=self.tau).weigh(geometry, f, rng), stop=Stop.ROUNDS)
        inner, share = products(geometry), normalised(geometry.prior_weights)
        centre = start_at(self.start, geometry)
        for _ in range(self.steps):
            away = distances_from(inner, centre)[:-1]
            tau = np.median(away) if self.tau is None else self.tau / geometry.unit
            moved = share * clipped(away, float(tau))
            centre = centre * (1 - moved.sum()) + np.append(moved, 0.0)
        weights = centre[:-1]
        if not weights.any():  # the centre never left the origin
            return Verdict(share, Stop.ROUNDS, scale=0.0)
        return Verdict(normalised(weights), Stop.ROUNDS, scale=float(weights.sum()) if centre[-1] else 1.0)


@dataclass(frozen=True)
class NormClipping(TableRule):
    """The mean of the rows, each shortened to at most `limit`: Σ xᵢ·min(1, limit/‖xᵢ‖)/n.

    Sun, Kairouz, Suresh and McMahan 2019. `limit` is in the rows' units; unless given, the median length.
    Neither eps nor f enters the answer, only its certificate.

    Cost: n·d for the lengths (n²·d with the certificate), then n. Breaks down at half the rows. Blind to
    every lie of ordinary length: f of them move the answer by f·limit/n. Rows must be updates, not models:
    lengths are measured from the origin.
    """

    limit: float | None = None
    needs: ClassVar[str] = "lengths"
    facts: ClassVar[Facts] = Facts(
        "Sun, Kairouz, Suresh, McMahan 2019",
        "n·d (n²·d with its certificate)",
        "1/2",
        "every lie of ordinary length: f of them move the answer by f·limit/n",
    )

    def __post_init__(self) -> None:
        """Refuse a limit that lets nothing through."""
        default_f_to_zero(self)
        super().__post_init__()
        check_radius("limit", self.limit)

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """What is left of each row's share after clipping."""
        lengths = np.sqrt(geometry.squared_norms())
        limit = np.median(lengths) if self.limit is None else self.limit / geometry.unit
        left = normalised(geometry.prior_weights) * clipped(lengths, float(limit))
        if not left.any():  # rows that have mass were clipped to nothing
            return Verdict(normalised(geometry.prior_weights), Stop.DIRECT, scale=0.0)
        return Verdict(normalised(left), Stop.DIRECT, scale=float(left.sum()))


def check_radius(name: str, radius: float | None) -> None:
    """None, or a positive length."""
    if radius is not None and not 0 < radius < np.inf:
        raise BadFraction(
            f"{name}={radius}; give a length in the rows' units, above 0, or None for the median."
        )
