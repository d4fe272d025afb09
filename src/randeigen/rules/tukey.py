"""The Tukey median. For measuring bias, not for models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from randeigen.backend.arrays import like
from randeigen.errors import BadParameter, BadRows
from randeigen.rules._tukey_depth import deepest_along, deepest_in_plane
from randeigen.rules.base import Facts, Rule, is_count
from randeigen.types import Array, Block, Decision, Geometry, GeometryKind

MAX_TUKEY_COLUMNS = 100
MAX_TUKEY_ROWS = 2000
MAX_EXACT_PLANE_ROWS = 200  # above, an exact deepest point would take minutes


@dataclass(frozen=True)
class TukeyMedian(Rule):
    """The deepest point: argmax over x of the least number of rows in any closed half-space that holds x.

    Tukey 1975. Rows of one column: the median. Of two: the centre of the deepest region, exactly, from the
    n² directions at which the order of the rows changes; n³, up to 200 rows. Above: the point that is
    deepest along `directions` random directions and the axes, in n·d a direction; the verdict says which it
    was. Finding it exactly is NP-hard in d, so rows of more than 100 columns are refused. Breaks down at a
    third of the rows, where these are symmetric; 1/(d+1) at worst. Blind to how far out a row is. eps or f
    serve the certificate alone, which leans on RandEigen's weights.
    """

    directions: int = 1000
    name: ClassVar[str] = "tukey"
    family: ClassVar[str] = "Small by nature"
    by_column: ClassVar[bool] = True
    only_small: ClassVar[str] = "its search takes minutes a cell, and rows of up to 100 columns"
    facts: ClassVar[Facts] = Facts(
        paper="Tukey 1975",
        cost="n³ for d ≤ 2; n·d a random direction above (d ≤ 100)",
        breakdown="1/3 for symmetric rows, 1/(d+1) at worst",
        blind_to="how far out a row is; above two columns, directions that were not drawn",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_count(self.directions):
            raise BadParameter(f"directions={self.directions!r}; give a whole number from 1.")

    @property
    def geometry(self) -> GeometryKind:
        return "sketch"  # of rows this short it is the rows themselves

    def assumed_corrupt(self, n: int) -> int:
        if n > MAX_TUKEY_ROWS:
            raise BadRows(f"TukeyMedian takes up to {MAX_TUKEY_ROWS} rows, found {n}; use RandEigen.")
        return super().assumed_corrupt(n)

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        points, origin = geometry.coordinates, geometry.origin
        if points is None or origin is None or geometry.distortion or points.shape[1] > MAX_TUKEY_COLUMNS:
            raise BadRows(
                f"TukeyMedian needs rows of at most {MAX_TUKEY_COLUMNS} columns, and the columns themselves: "
                'finding the deepest point is NP-hard in d. Leave geometry at "auto", or use RandEigen.'
            )
        point, depth, how = _deepest(points, self.directions, rng)
        note = f"the deepest point {how}: at depth {depth} of {len(points)} rows"
        return Decision(None, Point((point - origin) * geometry.scale), notes=(note,), with_rounds=False)


@dataclass(frozen=True, eq=False)
class Point:
    """A combiner: the answer itself, known before the second pass."""

    values: Array  # (d,) in the caller's numbers
    block_multiple: ClassVar[int] = 1

    def __call__(self, columns: slice, block: Block) -> Any:
        return like(self.values[columns], block)


def _deepest(points: Array, directions: int, rng: np.random.Generator) -> tuple[Array, int, str]:
    n, d = points.shape
    if d == 1:
        return np.median(points, axis=0), (n + 1) // 2, "exactly"
    if d == 2 and n <= MAX_EXACT_PLANE_ROWS:
        return *deepest_in_plane(points), "exactly"
    normals = rng.standard_normal((directions, d))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    along = np.vstack((np.eye(d), normals))
    return *deepest_along(points, along), f"along {len(along)} directions, not exactly"
