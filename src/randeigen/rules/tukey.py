"""Small by nature: the Tukey median and a semidefinite programme. For measuring bias, not for models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from randeigen.errors import BadFraction, BadRows
from randeigen.rules._tukey_depth import deepest_along, deepest_in_plane
from randeigen.rules.base import Facts, TableRule
from randeigen.rules.randeigen import RandEigen
from randeigen.types import Array, Block, Geometry, Verdict

MAX_TUKEY_COLUMNS = 100
MAX_TUKEY_ROWS = 2000
MAX_EXACT_PLANE_ROWS = 200  # above, an exact deepest point would take minutes


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

    def assumed_corrupt(self, n: int) -> int:
        """As told, for as many rows as can be done."""
        if n > MAX_TUKEY_ROWS:
            raise BadRows(f"TukeyMedian takes up to {MAX_TUKEY_ROWS} rows, found {n}; use RandEigen.")
        return super().assumed_corrupt(n)

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
        if points is None or geometry.distortion or points.shape[1] > MAX_TUKEY_COLUMNS:
            raise BadRows(
                f"TukeyMedian needs rows of at most {MAX_TUKEY_COLUMNS} columns, and the columns themselves: "
                'finding the deepest point is NP-hard in d. Leave geometry at "auto", or use RandEigen.'
            )
        origin: Array = geometry.origin  # type: ignore[attr-defined]
        return points, origin


def _deepest(points: Array, directions: int, rng: np.random.Generator) -> tuple[Array, int, str]:
    n, d = points.shape
    if d == 1:
        return np.median(points, axis=0), (n + 1) // 2, "exactly"
    if d == 2 and n <= MAX_EXACT_PLANE_ROWS:
        return *deepest_in_plane(points), "exactly"
    drawn = rng.standard_normal((directions, d))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    along = np.vstack((np.eye(d), drawn))
    return *deepest_along(points, along), f"along {len(along)} directions, not exactly"
