"""Rules that move a centre until the rows' pulls on it balance, each row's pull being bounded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from randeigen.errors import BadFraction
from randeigen.rules.base import TableRule, normalised
from randeigen.rules.distances import assume_nobody_lies, mean_of, middle_row, smallest
from randeigen.rules.facts import Facts
from randeigen.types import Array, Geometry, Stop, Verdict

ROUNDS = 500  # of Weiszfeld's steps; a few dozen do unless the median is at a row
SETTLED = 1e-9  # weights that change by less than this have converged
SMOOTH = 1e-6  # of the median distance: rows nearer than this pull no harder


@dataclass(frozen=True)
class GeometricMedian(TableRule):
    """The point with the least sum of distances to the rows, by smoothed Weiszfeld steps (RFA).

    v ← Σ βᵢxᵢ/Σ βᵢ with βᵢ = 1/max(ν, ‖xᵢ − v‖) (Weiszfeld 1937; Pillutla, Kakade and Harchaoui 2022), from
    the middle of the rows until the weights settle. `steps` takes exactly that many from the origin
    instead: `nu=0.1, steps=3` is byzfl's. ν is in the rows' units; unless given, a millionth of the median
    distance. Neither eps nor f enters the answer, only its certificate.

    Cost: n²·d for the table, then n² a step, at most 500 steps. Breaks down at half the rows. Blind to many
    small lies in one direction: in d dimensions each liar pulls as hard as an honest row of length sqrt(d).
    """

    nu: float | None = None
    steps: int | None = None
    facts: ClassVar[Facts] = Facts(
        "Weiszfeld 1937; Pillutla, Kakade, Harchaoui 2022",
        "n²·d, then n² a step",
        "1/2",
        "liars that all lean the same way: each pulls as hard as an honest row",
    )

    def __post_init__(self) -> None:
        """Refuse steps that would divide by zero."""
        assume_nobody_lies(self)
        super().__post_init__()
        if self.nu is not None and not 0 < self.nu < np.inf:
            raise BadFraction(f"nu={self.nu}; give the distance below which a row pulls no harder, above 0.")
        check_steps(self.steps)

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """Weiszfeld's steps, in the table."""
        between = geometry.distances()
        nearby = between[middle_row(between)]
        typical = np.sqrt(np.median(nearby))
        smooth = SMOOTH * typical if self.nu is None else self.nu / geometry.unit
        if smooth <= 0:  # more than half the rows are one point: that is the median
            return Verdict(mean_of(geometry, nearby <= 0), Stop.AGREE)
        inner, mass = products(geometry), np.append(geometry.prior, 0.0)
        centre = start_at("middle" if self.steps is None else "origin", geometry)
        stop = Stop.ROUNDS
        for _ in range(ROUNDS if self.steps is None else self.steps):
            before = centre
            centre = normalised(mass / np.maximum(distances_from(inner, before), smooth))
            if self.steps is None and np.abs(centre - before).max() <= SETTLED:
                stop = Stop.CONVERGED
                break
        return Verdict(normalised(centre[:-1]), stop)


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
        assume_nobody_lies(self)
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
        inner, share = products(geometry), normalised(geometry.prior)
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
        assume_nobody_lies(self)
        super().__post_init__()
        check_radius("limit", self.limit)

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """What is left of each row's share after clipping."""
        lengths = np.sqrt(geometry.lengths())
        limit = np.median(lengths) if self.limit is None else self.limit / geometry.unit
        left = normalised(geometry.prior) * clipped(lengths, float(limit))
        if not left.any():  # rows that have mass were clipped to nothing
            return Verdict(normalised(geometry.prior), Stop.DIRECT, scale=0.0)
        return Verdict(normalised(left), Stop.DIRECT, scale=float(left.sum()))


def products(geometry: Geometry) -> Array:
    """(n+1, n+1) inner products of the rows and, last, the origin, measured from the middle row.

    Each is exact beside its own two rows' lengths, whatever the others' are: rows far out are first pulled
    in along their own ray, the products taken, and stretched back. Read off plain distances instead, one row
    at 1e30 that is clipped to length 1 would drown all else.
    """
    between = geometry.distances()
    centre = middle_row(between)
    away = np.sqrt(np.append(between[centre], geometry.lengths()[centre]))
    ordinary = float(np.median(away[:-1])) or float(away[away > 0].min(initial=np.inf))
    pull = clipped(away, ordinary)
    lines = np.diag(pull)
    lines[:, centre] += 1 - pull
    near = geometry.mix(lines).distances()
    inner = (near[centre][:, None] + near[centre] - near) / 2
    return np.asarray(inner / pull[:, None] / pull)


def distances_from(inner: Array, combination: Array) -> Array:
    """(n+1,) distances of all points from a combination of them whose coefficients sum to 1."""
    to_centre = inner @ combination
    squares = inner.diagonal() - 2 * to_centre + combination @ to_centre
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


def clipped(lengths: Array, limit: float) -> Array:
    """min(1, limit/length), also where a length is 0."""
    return np.divide(limit, lengths, out=np.ones_like(lengths), where=lengths > limit)


def start_at(start: str, geometry: Geometry) -> Array:
    """(n+1,) the combination to start from: the origin, or the mean of the half nearest the middle row."""
    if start == "origin":
        return np.append(np.zeros(geometry.n), 1.0)
    between = geometry.distances()
    half = smallest(between[middle_row(between)], geometry.n // 2 + 1)
    return np.append(mean_of(geometry, half), 0.0)


def check_radius(name: str, radius: float | None) -> None:
    """None, or a positive length."""
    if radius is not None and not 0 < radius < np.inf:
        raise BadFraction(
            f"{name}={radius}; give a length in the rows' units, above 0, or None for the median."
        )


def check_steps(steps: int | None) -> None:
    """None, or a positive count."""
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise BadFraction(f"steps={steps!r}; give a whole number from 1.")
