"""Which accumulator measures the rows in pass 1, by cost: the exact Gram matrix, or one of the sketches."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol, get_args

from randeigen.backend.batched import RoundsAhead
from randeigen.backend.random_streams import Stream
from randeigen.errors import BadParameter
from randeigen.geometry.device_gram import DeviceGramAccumulator
from randeigen.geometry.few_device_rows import MAX_FILTERED_ROWS, MIN_FILTERED_ROWS, FewDeviceRows
from randeigen.geometry.gaussian_law import GaussianLawAccumulator
from randeigen.geometry.gram_accumulator import MAX_FEW_ROWS, GramAccumulator
from randeigen.geometry.projection import (
    CHECK_HASHES,
    EPS_JL,
    MIN_EPS_JL,
    GaussianProjection,
    SparseProjection,
    jl_width,
)
from randeigen.geometry.segments import SegmentedGram, Segments
from randeigen.geometry.sketch_accumulator import SketchAccumulator
from randeigen.geometry.wide_gram import WideGramAccumulator
from randeigen.types import Block, Geometry, GeometryKind, Mask, Rows, Statistic

KINDS = get_args(GeometryKind)
WAYS = ("native", "law")  # of the paper's projection
MIN_COLUMNS_PER_SKETCH_COLUMN = 4  # a sketch is made where rows have at least this many times its columns
ROWS_BELOW_ANY_SKETCH = 647  # n ≤ 100·ln n, so n ≤ d rows are no more than the columns of a sketch of them
MAX_EXACT_ROWS = 2048  # rows up to which the exact Gram matrix costs less than the sketch it would check
MAX_SEGMENTED_ROWS = 647  # rows up to which the sums of a tree of segments stay below 32 MB
MIN_FOLDED_ROWS = MAX_FEW_ROWS + 1  # rows from which a folded sketch costs less
# Rows whose Gram matrix stays on the GPU that holds them.
MIN_DEVICE_ROWS, MAX_DEVICE_ROWS = MAX_FILTERED_ROWS + 1, 2**14


class Accumulator(Protocol):
    """Adds up, block by block, what a geometry is made of."""

    block_multiple: int  # blocks begin at multiples of so many columns
    copies_parts: bool  # whether it takes rows that lie in many places, and copies what it works on
    unusable: Mask  # (n,) rows that hold what is not finite

    def add(self, columns: slice, block: Block) -> None:
        """One block of columns."""

    def geometry(self) -> Geometry:
        """What all blocks came to."""


def accumulator_for(
    rows: Rows, kind: str, seed: int, want: Statistic, ahead: RoundsAhead | None = None
) -> Accumulator:
    """By cost: n²·d for the exact Gram matrix, n·d for a sketch, and short rows are their own small space.

    Sketches are made where they have so few columns that two of them take no more room than the rows.
    `ahead`: the rounds that will be asked for, if it is known.
    """
    kind, eps_jl, native, law = _parse(kind)
    n, d = rows.n, rows.d
    if kind in ("auto", "gram") and n <= d and not rows.on_host:
        if MIN_DEVICE_ROWS <= n <= MAX_DEVICE_ROWS:
            return DeviceGramAccumulator(n, seed)
        if MIN_FILTERED_ROWS <= n <= MAX_FILTERED_ROWS:
            return FewDeviceRows(n, seed, d, ahead)
    by_directions = want is Statistic.DIRECTIONS and rows.on_host
    if by_directions and (kind == "sketch" or (kind == "auto" and n >= MIN_FOLDED_ROWS)):
        from randeigen.geometry.many_rows import folding

        if folded := folding(n, d, seed, rows.segment_columns is not None):
            return folded
    if kind == "gram" or (kind == "auto" and n <= min(d, ROWS_BELOW_ANY_SKETCH)):
        return _exact_gram(rows, seed)
    k = jl_width(d)
    if kind == "auto" and n <= min(d, k):
        return _exact_gram(rows, seed)
    if kind == "gaussian":
        k = jl_width(d, eps_jl)
        if law:
            return GaussianLawAccumulator(n, k, seed, eps_jl)
        return SketchAccumulator(n, k, seed, GaussianProjection(seed, k, native), _check(n, d, seed))
    k = max(k, 4 * n)  # then isotropic rows look at most (1 + 1/2)² times as wide as they are
    if kind == "auto" and MIN_COLUMNS_PER_SKETCH_COLUMN * k > d:
        return _exact(n, d, seed)
    if k >= d:
        return SketchAccumulator(n, d, seed, None)
    sparse = SparseProjection(seed, k)
    return SketchAccumulator(n, sparse.k, seed, sparse, _check(n, d, seed))


def _exact_gram(rows: Rows, seed: int) -> Accumulator:
    """In segments where workers may share the columns: those are added up in an order of their own."""
    columns = rows.segment_columns
    if columns is None or columns >= rows.d or rows.n > MAX_SEGMENTED_ROWS:
        return GramAccumulator(rows.n, seed)
    return SegmentedGram(rows.n, seed, Segments(rows.d, columns))


def _parse(kind: str) -> tuple[str, float, bool, bool]:
    """The geometry and, of the paper's projection, its error and two of its ways.

    `native`: a GPU draws its own numbers; `law`: the sketch is drawn from its distribution. The name carries
    them as the name of a rule carries its parameters: `gaussian:eps_jl=0.2,native=true`.
    """
    name, colon, rest = kind.partition(":") if isinstance(kind, str) else ("", "", "")
    given = dict(part.partition("=")[::2] for part in rest.split(",")) if colon else {}
    known = name in KINDS and (not colon or (name == "gaussian" and given.keys() <= {"eps_jl", *WAYS}))
    ways = [given.get(way, "false") for way in WAYS]
    if known and {*ways} <= {"true", "false"}:
        with suppress(ValueError):
            eps_jl = float(given.get("eps_jl", EPS_JL))
            if MIN_EPS_JL <= eps_jl < 1:
                return name, eps_jl, ways[0] == "true", ways[1] == "true"
    choices = ", ".join(map(repr, KINDS))
    raise BadParameter(
        f"geometry={kind!r} is not known; choose one of {choices}, or 'gaussian:eps_jl=...' with an error "
        f"from {MIN_EPS_JL:g} to 1."
    )


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
