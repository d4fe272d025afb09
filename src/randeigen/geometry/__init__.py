"""Pass 1: one reading of the rows fills the small table, whatever an adversary put in them.

The table is additive over blocks of columns, so everything is decided per block, while it is at hand:
rows far from the origin compared with their mutual distances (weights instead of updates) are measured
from a pivot that no minority of rows can set; a block whose numbers overflow or vanish when squared is
redone in float64. Neither costs another reading.
"""

from __future__ import annotations

from typing import get_args

import numpy as np

from randeigen.backend.arrays import as_host_array
from randeigen.errors import BadParameter
from randeigen.geometry.gram import GramAccumulator
from randeigen.geometry.projection import CHECK_HASHES, GaussianProjection, SparseProjection, jl_width
from randeigen.geometry.sketch import SketchAccumulator
from randeigen.geometry.wide_gram import WideGramAccumulator
from randeigen.types import Geometry, GeometryKind, Progress, Rows

MIN_COLUMNS_PER_SKETCH_COLUMN = 4  # a sketch is made where rows are at least this many times as long
MAX_EXACT_ROWS = 2048  # rows up to which the exact table costs less than the sketch it would check
NOT_FINITE = "not finite: it holds NaN or infinity"
TOO_LARGE = "too large to measure beside the others"


def measure(
    rows: Rows, kind: str = "auto", seed: int = 0, progress: Progress | None = None
) -> tuple[Geometry, dict[int, str]]:
    """The geometry of all rows, and which rows could not be measured, with the reason."""
    tally = _choose(rows, kind, seed)
    with np.errstate(all="ignore"):  # hostile numbers overflow; what they did is looked at afterwards
        for columns, block in rows.blocks():
            tally.add(columns, as_host_array(block))
            if progress:
                progress("measuring", columns.stop, rows.d)
        dead = tally.dead.copy()  # before the table is finished: there their lines are zero
        geometry = tally.geometry()
        lengths = geometry.squared_norms()
    unusable = {int(i): TOO_LARGE for i in np.flatnonzero(~np.isfinite(lengths))}
    unusable |= {int(i): NOT_FINITE for i in np.flatnonzero(dead)} | dict(rows.lost)
    return geometry, dict(sorted(unusable.items()))


def _choose(rows: Rows, kind: str, seed: int) -> GramAccumulator | SketchAccumulator:
    """By cost: n²·d for the exact table, n·d for a sketch, and short rows are their own small space.

    Sketches are made where they are so narrow that two of them take no more room than the rows.
    """
    if kind not in get_args(GeometryKind):
        raise BadParameter(
            f"geometry={kind!r} is not known; choose one of {', '.join(map(repr, get_args(GeometryKind)))}."
        )
    n, d, k = rows.n, rows.d, jl_width(rows.d)
    if kind == "gram" or (kind == "auto" and n <= k and n <= d):
        return GramAccumulator(n, seed)
    if kind == "gaussian":
        return SketchAccumulator(n, k, seed, GaussianProjection(seed, k), _check(n, d, seed))
    k = max(k, 4 * n)  # a sketch this wide widens a shapeless cloud by at most (1 + 1/2)²
    if kind == "auto" and MIN_COLUMNS_PER_SKETCH_COLUMN * k > d:
        return _exact(n, d, seed)
    if k >= d:
        return SketchAccumulator(n, d, seed, None)
    sparse = SparseProjection(seed, k)
    return SketchAccumulator(n, sparse.k, seed, sparse, _check(n, d, seed))


def _check(n: int, d: int, seed: int) -> GramAccumulator | SketchAccumulator:
    """What the certificate of a sketch is measured on: exact, or a sketch with coins of its own."""
    sparse = SparseProjection(seed, max(jl_width(d), 4 * n), CHECK_HASHES, purpose=5)
    if n <= MAX_EXACT_ROWS or MIN_COLUMNS_PER_SKETCH_COLUMN * sparse.k > d:
        return _exact(n, d, seed)
    return SketchAccumulator(n, sparse.k, seed, sparse, purpose=6)


def _exact(n: int, d: int, seed: int) -> GramAccumulator | SketchAccumulator:
    """Whatever is exact and takes the least room: n×n products, or the rows themselves."""
    if n <= min(d, MAX_EXACT_ROWS):
        return GramAccumulator(n, seed)
    return WideGramAccumulator(n, seed) if 2 * n <= d else SketchAccumulator(n, d, seed, None)
