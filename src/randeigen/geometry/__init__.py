"""Pass 1: one reading of the rows accumulates their Gram matrix or a sketch, whatever an adversary sent.

Both are sums over blocks of columns, so everything is decided per block, while it is in the cache: rows far
from the origin compared with their mutual distances (weights instead of updates) are measured from a pivot
that no minority of rows can set; a block whose numbers overflow or underflow when squared is redone in
float64. Neither costs another reading.
"""

from __future__ import annotations

from typing import get_args

import numpy as np

from randeigen.backend.arrays import as_host_array
from randeigen.backend.random_streams import Stream
from randeigen.errors import BadParameter
from randeigen.geometry.gram import GramAccumulator
from randeigen.geometry.projection import CHECK_HASHES, GaussianProjection, SparseProjection, jl_width
from randeigen.geometry.sketch import SketchAccumulator
from randeigen.geometry.wide_gram import WideGramAccumulator
from randeigen.types import Geometry, GeometryKind, Progress, Rows

KINDS = get_args(GeometryKind)
MIN_COLUMNS_PER_SKETCH_COLUMN = 4  # a sketch is made where rows have at least this many times its columns
MAX_EXACT_ROWS = 2048  # rows up to which the exact Gram matrix costs less than the sketch it would check
NOT_FINITE = "not finite: it holds NaN or infinity"
TOO_LARGE = "too large to measure beside the others"


def measure(
    rows: Rows, kind: str = "auto", seed: int = 0, progress: Progress | None = None
) -> tuple[Geometry, dict[int, str]]:
    """The geometry of all rows, and which rows could not be measured, with the reason."""
    accumulator = _choose(rows, kind, seed)
    with np.errstate(all="ignore"):  # hostile numbers overflow; what they did is looked at afterwards
        for columns, block in rows.blocks():
            accumulator.add(columns, as_host_array(block))
            if progress:
                progress("measuring", columns.stop, rows.d)
        not_finite = accumulator.unusable.copy()  # in the finished geometry these rows are zero
        geometry = accumulator.geometry()
        squared_norms = geometry.squared_norms()
    unusable = {int(i): TOO_LARGE for i in np.flatnonzero(~np.isfinite(squared_norms))}
    unusable |= {int(i): NOT_FINITE for i in np.flatnonzero(not_finite)} | dict(rows.unusable)
    return geometry, dict(sorted(unusable.items()))


def _choose(rows: Rows, kind: str, seed: int) -> GramAccumulator | SketchAccumulator:
    """By cost: n²·d for the exact Gram matrix, n·d for a sketch, and short rows are their own small space.

    Sketches are made where they have so few columns that two of them take no more room than the rows.
    """
    if kind not in KINDS:
        raise BadParameter(f"geometry={kind!r} is not known; choose one of {', '.join(map(repr, KINDS))}.")
    n, d, k = rows.n, rows.d, jl_width(rows.d)
    if kind == "gram" or (kind == "auto" and n <= k and n <= d):
        return GramAccumulator(n, seed)
    if kind == "gaussian":
        return SketchAccumulator(n, k, seed, GaussianProjection(seed, k), _check(n, d, seed))
    k = max(k, 4 * n)  # then isotropic rows look at most (1 + 1/2)² times as wide as they are
    if kind == "auto" and MIN_COLUMNS_PER_SKETCH_COLUMN * k > d:
        return _exact(n, d, seed)
    if k >= d:
        return SketchAccumulator(n, d, seed, None)
    sparse = SparseProjection(seed, k)
    return SketchAccumulator(n, sparse.k, seed, sparse, _check(n, d, seed))


def _check(n: int, d: int, seed: int) -> GramAccumulator | SketchAccumulator:
    """What the certificate of a sketch is measured on: exact, or a sketch with coins of its own."""
    sparse = SparseProjection(seed, max(jl_width(d), 4 * n), CHECK_HASHES, Stream.CHECK_PROJECTION)
    if n <= MAX_EXACT_ROWS or MIN_COLUMNS_PER_SKETCH_COLUMN * sparse.k > d:
        return _exact(n, d, seed)
    return SketchAccumulator(n, sparse.k, seed, sparse, stream=Stream.CHECK_MEASUREMENT)


def _exact(n: int, d: int, seed: int) -> GramAccumulator | SketchAccumulator:
    """Whatever is exact and takes the least room: n×n products, or the rows themselves."""
    if n <= min(d, MAX_EXACT_ROWS):
        return GramAccumulator(n, seed)
    return WideGramAccumulator(n, seed) if 2 * n <= d else SketchAccumulator(n, d, seed, None)
