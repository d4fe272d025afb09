"""The geometric median."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from randeigen.errors import BadParameter
from randeigen.rules.base import (
    Facts,
    Rule,
    default_f_to_zero,
    is_count,
    mean_of,
    normalised,
    smallest,
)
from randeigen.types import Array, Decision, Geometry, Stop, Verdict

MAX_STEPS = 500  # Weiszfeld's steps; a few dozen do unless the median is at a row
CONVERGED_CHANGE = 1e-9  # weights that change by less than this have converged
MIN_SMOOTHING = 1e-300  # in the geometry's unit: the pull of a row nearer than this would overflow
MAX_SMOOTHING = 1e150  # a larger one makes the median a mean just as well
SMOOTHING_RATIO = 1e-6  # of the median distance: rows nearer than this pull no harder


@dataclass(frozen=True)
class GeometricMedian(Rule):
    """The point with the least sum of distances to the rows, by smoothed Weiszfeld steps (RFA).

    v ← Σ βᵢxᵢ/Σ βᵢ with βᵢ = 1/max(ν, ‖xᵢ − v‖) (Weiszfeld 1937; Pillutla, Kakade and Harchaoui 2022), from
    the middle of the rows until the weights settle. `steps` takes exactly that many from the origin
    instead: `nu=0.1, steps=3` is byzfl's. ν is in the rows' units; unless given, a millionth of the median
    distance. Neither eps nor f enters the answer, only its certificate.

    Cost: n²·d for the Gram matrix, then n² a step, at most 500 steps. Breaks down at half the rows. Blind to
    many small shifts in one direction: each Byzantine row pulls as hard as an honest one of norm sqrt(d).
    """

    nu: float | None = None
    steps: int | None = None
    name: ClassVar[str] = "geometric-median"
    family: ClassVar[str] = "Centres"
    facts: ClassVar[Facts] = Facts(
        "Weiszfeld 1937; Pillutla, Kakade, Harchaoui 2022",
        "n²·d, then n² a step",
        "1/2",
        "Byzantine rows shifted the same way: each pulls as hard as an honest row",
    )

    def __post_init__(self) -> None:
        default_f_to_zero(self)
        super().__post_init__()
        if self.nu is not None and not 0 < self.nu < np.inf:
            raise BadParameter(f"nu={self.nu}; give the distance below which a row pulls no harder, above 0.")
        check_steps(self.steps)

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        """Weiszfeld's steps, as combinations of the rows."""
        between = geometry.squared_distances()
        nearby = between[middle_row(between)]
        typical = np.sqrt(np.median(nearby))
        smooth = SMOOTHING_RATIO * typical
        if self.nu is not None:
            smooth = min(max(self.nu / geometry.scale, MIN_SMOOTHING), MAX_SMOOTHING)
        if smooth <= 0:  # more than half the rows are one point: that is the median
            return Decision(Verdict(mean_of(geometry, nearby <= 0), Stop.IDENTICAL_ROWS))
        inner, prior = products(geometry), np.append(geometry.prior_weights, 0.0)
        centre = start_at("middle" if self.steps is None else "origin", geometry)
        stop = Stop.MAX_ROUNDS
        for _ in range(MAX_STEPS if self.steps is None else self.steps):
            before = centre
            centre = normalised(prior / np.maximum(distances_from(inner, before), smooth))
            if self.steps is None and np.abs(centre - before).max() <= CONVERGED_CHANGE:
                stop = Stop.CONVERGED
                break
        return Decision(Verdict(normalised(centre[:-1]), stop))


def products(geometry: Geometry) -> Array:
    """(n+1, n+1) inner products of the rows and, last, the origin, measured from the middle row.

    Each is exact beside its own two rows' norms, whatever the others' are: rows far out are first pulled in
    along their own ray, the products taken, and stretched back. From plain distances, one row at 1e30 that
    is clipped to norm 1 would leave nothing of the others but rounding.
    """
    between = geometry.squared_distances()
    centre = middle_row(between)
    away = np.sqrt(np.append(between[centre], geometry.squared_norms()[centre]))
    ordinary = float(np.median(away[:-1])) or float(away[away > 0].min(initial=np.inf))
    pull = clipped(away, ordinary)
    lines = np.diag(pull)
    lines[:, centre] += 1 - pull
    near = geometry.combine_rows(lines).squared_distances()
    inner = (near[centre][:, None] + near[centre] - near) / 2
    return np.asarray(inner / pull[:, None] / pull)


def distances_from(inner: Array, combination: Array) -> Array:
    """(n+1,) distances of all points from a combination of them whose coefficients sum to 1."""
    to_centre = inner @ combination
    squares = inner.diagonal() - 2 * to_centre + combination @ to_centre
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


def clipped(norms: Array, limit: float) -> Array:
    """min(1, limit/norm), also where a norm is 0."""
    return np.divide(limit, norms, out=np.ones_like(norms), where=norms > limit)


def start_at(start: Literal["middle", "origin"], geometry: Geometry) -> Array:
    """(n+1,) the combination to start from: the origin, or the mean of the half nearest the middle row."""
    if start == "origin":
        return np.append(np.zeros(geometry.n), 1.0)
    between = geometry.squared_distances()
    half = smallest(between[middle_row(between)], geometry.n // 2 + 1)
    return np.append(mean_of(geometry, half), 0.0)


def check_steps(steps: int | None) -> None:
    """None, or a positive count."""
    if steps is not None and not is_count(steps):
        raise BadParameter(f"steps={steps!r}; give a whole number from 1.")


def middle_row(squared_distances: Array) -> int:
    """The row with the least median distance to the others: no minority decides which, nor how far out."""
    return int(np.argmin(np.median(squared_distances, axis=1)))
