"""The weights of least top variance, by a semidefinite programme. For measuring bias, not for models."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

import numpy as np

from randeigen.errors import BadRows, MissingExtra
from randeigen.rules.base import Facts, Rule, normalised
from randeigen.rules.randeigen import RandEigen, far_outliers
from randeigen.types import Array, Decision, Geometry, Stop, Verdict

MAX_SDP_ROWS = 200
MAX_SDP_RANK = 50  # dimensions that the rows span: 4 seconds a programme, growing as their sixth power
CONVERGED_CHANGE = 1e-6  # relative change of the spread below which alternating ends


@dataclass(frozen=True)
class Semidefinite(Rule):
    """The weights of least top variance: min λmax(Σ wᵢ(xᵢ−ν)(xᵢ−ν)ᵀ), 0 ≤ wᵢ ≤ 1/(n−f), Σ wᵢ = 1.

    The semidefinite estimator of Diakonikolas et al. 2016 (as in Cheng, Diakonikolas, Ge 2019), standing in
    for the sum-of-squares row of the paper's Table 1, whose own programme has n² × n² moments. With ν fixed
    it is a semidefinite programme, solved exactly by clarabel (extra [sdp]); ν then moves to the new mean
    until the variance settles, never growing. Even weights on the honest rows are among the candidates, so
    the top variance ends no greater than about theirs. Cost: n²·d for the Gram matrix, then r⁶ a programme,
    r ≤ min(n−1, d) being the dimensions that the rows span: 4 seconds at r = 50, and no more are taken.
    Breaks down at a third of the rows. Blind to Byzantine rows inside the honest spread.
    """

    rounds: int = 10
    name: ClassVar[str] = "semidefinite"
    family: ClassVar[str] = "Small by nature"
    only_small: ClassVar[str] = "its programme takes rows that span up to 50 dimensions"
    facts: ClassVar[Facts] = Facts(
        paper="Cheng, Diakonikolas, Ge 2019, arXiv:1811.09380; for Kothari, Steurer 2017",
        cost="n²·d + min(n, d)⁶ (up to 50)",
        breakdown="1/3",
        blind_to="rows inside the honest spread",
    )

    def assumed_corrupt(self, n: int) -> int:
        if n > MAX_SDP_ROWS:
            raise BadRows(f"Semidefinite takes up to {MAX_SDP_ROWS} rows, found {n}; use RandEigen.")
        if find_spec("clarabel") is None or find_spec("scipy") is None:
            raise MissingExtra("Semidefinite needs clarabel and scipy; install randeigen[sdp].")
        return super().assumed_corrupt(n)

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        """Programme after programme, each from the last one's mean."""
        start = RandEigen(f=f).weigh(geometry, f, rng)
        far = far_outliers(geometry, f)
        live = np.flatnonzero(~far & (geometry.prior_weights > 0))
        points = _coordinates(geometry.take(live).squared_distances())
        if f and points.shape[1] > MAX_SDP_RANK:
            raise BadRows(
                f"Semidefinite takes rows that span up to {MAX_SDP_RANK} dimensions, found "
                f"{points.shape[1]}, for which a programme would take "
                f"{4 * (points.shape[1] / MAX_SDP_RANK) ** 6 / 60:,.1f} minutes "
                f"or so; give at most {MAX_SDP_RANK + 1} rows or {MAX_SDP_RANK} columns, or use RandEigen."
            )
        if f == 0 or points.shape[1] == 0:
            weights = normalised(np.where(far, 0.0, geometry.prior_weights))
            stop = Stop.DIRECT if f == 0 else Stop.IDENTICAL_ROWS
            return Decision(Verdict(weights, stop, far_outliers=far))
        cap, w = 1 / min(geometry.n - f, live.size), start.weights[live]
        weights, spreads, stop = start.weights, list[float](), Stop.MAX_ROUNDS
        for _ in range(self.rounds):
            solution = least_top_variance(points - w @ points / w.sum(), cap)
            if solution is None:  # the last weights are the answer, and have a certificate like any
                stop = Stop.CONVERGED if spreads else Stop.MAX_ROUNDS
                break
            w, weights = solution, np.zeros(geometry.n)
            weights[live] = w
            spreads.append(geometry.scale * math.sqrt(geometry.top_direction(weights).variance))
            if len(spreads) > 1 and spreads[-1] >= (1 - CONVERGED_CHANGE) * spreads[-2]:
                stop = Stop.CONVERGED
                break
        last = max(len(spreads) - 1, 0)
        return Decision(
            Verdict(normalised(weights), stop, spreads=tuple(spreads), answer_round=last, far_outliers=far)
        )


def _coordinates(apart: Array) -> Array:
    """(n, r) points at these squared distances from each other; r is as small as rounding allows."""
    n = apart.shape[0]
    centre = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-0.5 * centre @ apart @ centre)
    kept = values > 1e-10 * max(values[-1], 0.0)
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))


def least_top_variance(points: Array, cap: float) -> Array | None:
    """(n,) weights from 0 to `cap`, summing to 1, of least top second moment: the programme itself.

    None if the solver fails both in units of the typical row and in those of the furthest.
    """
    norms = np.sqrt((points**2).sum(axis=1))
    for unit in (float(np.median(norms)), float(norms.max())):
        weights = _solved(points / unit, cap) if unit > 0 else np.zeros(1)
        if weights.sum() > 0.99:
            return normalised(np.where(weights > 1e-9 * cap, weights, 0.0))
    return None


def _solved(points: Array, cap: float) -> Array:
    """The programme as the solver leaves it; zeros if it gives up."""
    clarabel, sparse = importlib.import_module("clarabel"), importlib.import_module("scipy.sparse")
    n, r = points.shape
    row, column = np.tril_indices(r)  # clarabel's order: the upper triangle, column by column
    twice = np.where(row == column, 1.0, math.sqrt(2.0))
    moments = (points[:, row] * points[:, column] * twice).T
    # Variables w and t, least t: Σ w = 1, w ≥ 0, w ≤ cap, t·I − Σ wᵢ xᵢxᵢᵀ positive semidefinite.
    blocks = (
        np.append(np.ones(n), 0.0)[None],
        np.hstack((-np.eye(n), np.zeros((n, 1)))),
        np.hstack((np.eye(n), np.zeros((n, 1)))),
        np.hstack((moments, -(row == column).astype(float)[:, None])),
    )
    limits = np.concatenate(([1.0], np.zeros(n), np.full(n, cap), np.zeros(row.size)))
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(2 * n), clarabel.PSDTriangleConeT(r)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    solver = clarabel.DefaultSolver(
        sparse.csc_matrix((n + 1, n + 1)),
        np.append(np.zeros(n), 1.0),
        sparse.csc_matrix(np.vstack(blocks)),
        limits,
        cones,
        settings,
    )
    return np.asarray(np.clip(np.nan_to_num(np.asarray(solver.solve().x)[:n]), 0.0, cap))
