"""Centred clipping and norm clipping: each row's pull on the answer is bounded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from randeigen.errors import BadParameter
from randeigen.rules.base import Facts, Rule, default_f_to_zero, normalised
from randeigen.rules.geometric_median import check_steps, clipped, distances_from, products, start_at
from randeigen.types import Decision, Geometry, Statistic, Stop, Verdict


@dataclass(frozen=True)
class CenteredClipping(Rule):
    """A centre moved by the mean of the rows' offsets, none counted for more than τ.

    v ← v + Σ (xᵢ − v)·min(1, τ/‖xᵢ − v‖)/n, `steps` times (Karimireddy, He and Jaggi 2021), from the middle
    of the rows, or from the origin (`start="origin"`). byzfl's is `tau=100.0, steps=1, start="origin"`; its
    centre is remembered between calls, ours never. τ is in the rows' units; unless given, the median
    distance from the centre of each step. Neither eps nor f enters the answer, only its certificate.

    Cost: n²·d for the Gram matrix, then n² a step; n·d for one step from the origin alone. Breaks down at
    half the rows (from the middle). Each Byzantine row moves the answer by up to τ/n a step: blind to those
    whose norm is about the honest rows', sqrt(d).
    """

    tau: float | None = None
    steps: int = 10
    start: Literal["middle", "origin"] = "middle"
    name: ClassVar[str] = "centered-clipping"
    family: ClassVar[str] = "Centres"
    facts: ClassVar[Facts] = Facts(
        "Karimireddy, He, Jaggi 2021",
        "n²·d, then n² a step",
        "1/2 from the middle; from the origin as good as the origin",
        "Byzantine rows about as long as honest ones: each moves the centre by tau/n a step",
    )

    def __post_init__(self) -> None:
        default_f_to_zero(self)
        super().__post_init__()
        check_radius("tau", self.tau)
        check_steps(self.steps)

    def statistic(self) -> Statistic:
        """A single step from the origin needs no more than the norms."""
        return Statistic.NORMS if self.start == "origin" and self.steps == 1 else Statistic.GRAM

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        """The centre is a combination of the rows and the origin, and so are all its steps."""
        if self.statistic() is Statistic.NORMS:
            verdict = NormClipping(f=f, limit=self.tau).weigh(geometry, f, rng)
            return Decision(replace(verdict, stop=Stop.MAX_ROUNDS))
        inner, share = products(geometry), normalised(geometry.prior_weights)
        centre = start_at(self.start, geometry)
        for _ in range(self.steps):
            away = distances_from(inner, centre)[:-1]
            tau = np.median(away) if self.tau is None else self.tau / geometry.scale
            step = share * clipped(away, float(tau))
            centre = centre * (1 - step.sum()) + np.append(step, 0.0)
        weights = centre[:-1]
        if not weights.any():  # the centre never left the origin
            return Decision(Verdict(share, Stop.MAX_ROUNDS, scale=0.0))
        scale = float(weights.sum()) if centre[-1] else 1.0
        return Decision(Verdict(normalised(weights), Stop.MAX_ROUNDS, scale=scale))


@dataclass(frozen=True)
class NormClipping(Rule):
    """The mean of the rows, each shortened to at most `limit`: Σ xᵢ·min(1, limit/‖xᵢ‖)/n.

    Sun, Kairouz, Suresh and McMahan 2019. `limit` is in the rows' units; unless given, the median norm.
    Neither eps nor f enters the answer, only its certificate.

    Cost: n·d for the norms (n²·d with the certificate), then n. Breaks down at half the rows. Blind to
    every Byzantine row of ordinary norm: f of them move the answer by f·limit/n. Rows must be updates, not
    models: norms are measured from the origin.
    """

    limit: float | None = None
    name: ClassVar[str] = "norm-clipping"
    family: ClassVar[str] = "Centres"
    facts: ClassVar[Facts] = Facts(
        "Sun, Kairouz, Suresh, McMahan 2019",
        "n·d (n²·d with its certificate)",
        "1/2",
        "Byzantine rows of ordinary norm: f of them move the answer by f·limit/n",
    )

    def __post_init__(self) -> None:
        default_f_to_zero(self)
        super().__post_init__()
        check_radius("limit", self.limit)

    def statistic(self) -> Statistic:
        return Statistic.NORMS

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        norms = np.sqrt(geometry.squared_norms())
        limit = np.median(norms) if self.limit is None else self.limit / geometry.scale
        left = normalised(geometry.prior_weights) * clipped(norms, float(limit))
        if not left.any():  # all rows that have weight were clipped to nothing
            return Decision(Verdict(normalised(geometry.prior_weights), Stop.DIRECT, scale=0.0))
        return Decision(Verdict(normalised(left), Stop.DIRECT, scale=float(left.sum())))


def check_radius(name: str, radius: float | None) -> None:
    """None, or a positive length."""
    if radius is not None and not 0 < radius < np.inf:
        raise BadParameter(
            f"{name}={radius}; give a length in the rows' units, above 0, or None for the median."
        )
