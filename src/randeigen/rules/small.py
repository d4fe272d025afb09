"""Small by nature: the Tukey median and a semidefinite programme. For measuring bias, not for models."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np

from randeigen.errors import BadFraction, BadRows, MissingExtra
from randeigen.rules._tukey import deepest_along, deepest_in_plane
from randeigen.rules.base import TableRule, normalised
from randeigen.rules.facts import Facts
from randeigen.rules.randeigen import RandEigen, far_out
from randeigen.types import Array, Block, Geometry, Stop, Verdict

TUKEY_COLUMNS = 100
TUKEY_ROWS = 2000
PLANE_ROWS = 200  # above, an exact deepest point would take minutes
SDP_ROWS = 200
SDP_RANK = 50  # dimensions the rows span: 4 seconds a programme here, and it grows as their sixth power
SETTLED = 1e-6  # relative: alternating further would not be seen in the answer


@dataclass(frozen=True)
class PointVerdict(Verdict):
    """A verdict that carries the answer itself: it is no weighted mean."""

    point: Array = field(default_factory=lambda: np.empty(0))  # (d,) in the caller's numbers


@dataclass(frozen=True)
class TukeyMedian(TableRule):
    """The deepest point: argmax over x of the least number of rows in any closed half-space that holds x.

    Tukey 1975. Rows of one column: the median. Of two: the centre of the deepest region, exactly, from the
    n² directions at which the order of the rows changes; n³, up to 200 rows. Above: the point that is
    deepest along `directions` random directions and the axes, in n·d a direction; the verdict says which it
    was. Finding it exactly is NP-hard in d, so rows of more than 100 columns are refused. Breaks down at a
    third of the rows, where these are symmetric; 1/(d+1) at worst. Blind to how far out a row is. eps or f
    serve the certificate alone, which leans on RandEigen's weights.
    """

    directions: int = 1000
    geometry: ClassVar[str] = "sketch"  # of rows this short it is the rows themselves
    facts: ClassVar[Facts] = Facts(
        paper="Tukey 1975",
        cost="n³ for d ≤ 2; n·d a random direction above (d ≤ 100)",
        breakdown="1/3 for symmetric rows, 1/(d+1) at worst",
        blind_to="how far out a row is; above two columns, directions nobody drew",
    )

    def __post_init__(self) -> None:
        """At least one direction."""
        super().__post_init__()
        if isinstance(self.directions, bool) or not isinstance(self.directions, int) or self.directions < 1:
            raise BadFraction(f"directions={self.directions!r}; give a whole number from 1.")

    def budget(self, n: int) -> int:
        """As told, for as many rows as can be done."""
        if n > TUKEY_ROWS:
            raise BadRows(f"TukeyMedian takes up to {TUKEY_ROWS} rows, found {n}; use RandEigen.")
        return super().budget(n)

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> PointVerdict:
        """RandEigen's weights for the certificate, and the deepest point."""
        points, origin = self._coordinates(geometry)
        point, depth, how = _deepest(points, self.directions, rng)
        verdict = RandEigen(f=f).weigh(geometry, f, rng)
        note = f"the deepest point {how}: at depth {depth} of {len(points)} rows"
        return PointVerdict(
            verdict.weights, verdict.stop, notes=(note,), point=(point - origin) * geometry.unit
        )

    def merge(self, columns: slice, block: Block, f: int, verdict: Verdict) -> Any:
        """(b,) these columns of the point."""
        assert isinstance(verdict, PointVerdict)
        values = verdict.point[columns]
        return values.astype(block.dtype) if isinstance(block, np.ndarray) else block.new_tensor(values)

    @staticmethod
    def _coordinates(geometry: Geometry) -> tuple[Array, Array]:
        points: Array | None = getattr(geometry, "points", None)
        if points is None or geometry.distortion or points.shape[1] > TUKEY_COLUMNS:
            raise BadRows(
                f"TukeyMedian needs rows of at most {TUKEY_COLUMNS} columns, and the columns themselves: "
                'finding the deepest point is NP-hard in d. Leave geometry at "auto", or use RandEigen.'
            )
        origin: Array = geometry.origin  # type: ignore[attr-defined]
        return points, origin


def _deepest(points: Array, directions: int, rng: np.random.Generator) -> tuple[Array, int, str]:
    n, d = points.shape
    if d == 1:
        return np.median(points, axis=0), (n + 1) // 2, "exactly"
    if d == 2 and n <= PLANE_ROWS:
        return *deepest_in_plane(points), "exactly"
    drawn = rng.standard_normal((directions, d))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    along = np.vstack((np.eye(d), drawn))
    return *deepest_along(points, along), f"along {len(along)} directions, not exactly"


@dataclass(frozen=True)
class Semidefinite(TableRule):
    """The weights of least widest variance: min λmax(Σ wᵢ(xᵢ−ν)(xᵢ−ν)ᵀ), 0 ≤ wᵢ ≤ 1/(n−f), Σ wᵢ = 1.

    The semidefinite estimator of Diakonikolas et al. 2016 (as in Cheng, Diakonikolas, Ge 2019), standing in
    for the sum-of-squares row of the paper's Table 1, whose own programme has n² × n² moments. With ν fixed
    it is a semidefinite programme, solved exactly by clarabel (extra [sdp]); ν then moves to the new mean
    until the variance settles, never growing. Even weights on the honest rows are among the candidates, so
    the widest variance ends no greater than about theirs. Cost: n²·d for the table, then r⁶ a programme, r ≤
    min(n−1, d) being the dimensions that the rows span: 4 seconds at r = 50, and no more are taken. Breaks
    down at a third of the rows. Blind to rows that hide inside the honest spread.
    """

    rounds: int = 10
    facts: ClassVar[Facts] = Facts(
        paper="Cheng, Diakonikolas, Ge 2019, arXiv:1811.09380; for Kothari, Steurer 2017",
        cost="n²·d + min(n, d)⁶ (up to 50)",
        breakdown="1/3",
        blind_to="rows inside the honest spread",
    )

    def budget(self, n: int) -> int:
        """As told, for as many rows as can be done, where the solver is installed."""
        if n > SDP_ROWS:
            raise BadRows(f"Semidefinite takes up to {SDP_ROWS} rows, found {n}; use RandEigen.")
        if find_spec("clarabel") is None or find_spec("scipy") is None:
            raise MissingExtra("Semidefinite needs clarabel and scipy; install randeigen[sdp].")
        return super().budget(n)

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """Programme after programme, each from the last one's mean."""
        start = RandEigen(f=f).weigh(geometry, f, rng)
        wild = far_out(geometry, f)
        live = np.flatnonzero(~wild & (geometry.prior > 0))
        points = _coordinates(geometry.pick(live).distances())
        if f and points.shape[1] > SDP_RANK:
            raise BadRows(
                f"Semidefinite takes rows that span up to {SDP_RANK} dimensions, found {points.shape[1]}, "
                f"for which a programme would take {4 * (points.shape[1] / SDP_RANK) ** 6 / 60:,.1f} minutes "
                f"or so; give at most {SDP_RANK + 1} rows or {SDP_RANK} columns, or use RandEigen."
            )
        if f == 0 or points.shape[1] == 0:
            weights = normalised(np.where(wild, 0.0, geometry.prior))
            return Verdict(weights, Stop.DIRECT if f == 0 else Stop.AGREE, wild=wild)
        cap, w = 1 / min(geometry.n - f, live.size), start.weights[live]
        weights, spreads, stop = start.weights, list[float](), Stop.ROUNDS
        for _ in range(self.rounds):
            found = lightest(points - w @ points / w.sum(), cap)
            if found is None:  # what there is stands: its certificate is measured all the same
                stop = Stop.CONVERGED if spreads else Stop.ROUNDS
                break
            w, weights = found, np.zeros(geometry.n)
            weights[live] = w
            spreads.append(geometry.unit * math.sqrt(geometry.widest(weights).variance))
            if len(spreads) > 1 and spreads[-1] >= (1 - SETTLED) * spreads[-2]:
                stop = Stop.CONVERGED
                break
        last = max(len(spreads) - 1, 0)
        return Verdict(normalised(weights), stop, spreads=tuple(spreads), chosen=last, wild=wild)


def _coordinates(apart: Array) -> Array:
    """(n, r) points at these squared distances from each other; r is as small as rounding allows."""
    n = apart.shape[0]
    centre = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-0.5 * centre @ apart @ centre)
    seen = values > 1e-10 * max(values[-1], 0.0)
    return np.asarray(vectors[:, seen] * np.sqrt(values[seen]))


def lightest(points: Array, cap: float) -> Array | None:
    """(n,) weights from 0 to `cap`, summing to 1, of least widest second moment: the programme itself.

    None if the solver finds no way, in units of the typical row nor in those of the furthest.
    """
    lengths = np.sqrt((points**2).sum(axis=1))
    for unit in (float(np.median(lengths)), float(lengths.max())):
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
