"""Pass 2: the rows are combined by their weights, block by block, in the caller's form.

The answer comes with a bound on its own rounding, which the certificate needs. A float32 sum of m rows is
off by at most (m + 2)·2⁻²⁴ of their root mean square norm: nothing beside the distances between updates.
Where it is more, since the rows are far from the origin, the sum is made in float64. What the cast to the
answer's dtype moves is measured. It counts in half precision, and in float32 if it is more than
`SMALLEST_VISIBLE_ROUNDING` of the rows' spread. A sum that overflows, of rows near the largest float, is made
again with care.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.arrays import (
    UNIT_ROUNDOFF,
    apart,
    as_float64,
    as_host_array,
    joined,
    like,
    where_finite,
    working_size,
)
from randeigen.backend.chunking import is_host_block, narrower, parallel_map, parts, pieces, weighted_columns
from randeigen.backend.device_blocks import as_matrix, empty_leaves, is_matrix, takes
from randeigen.backend.host_leaves import as_copied
from randeigen.types import Answer, Block, Geometry, Mask, Progress, Rows, Weights

# Of the standard deviation along the top direction: less rounding than this does not show in the certificate.
SMALLEST_VISIBLE_ROUNDING = 0.003
# Rows that float32 adds up at once in main memory; sums of more are added up in float64, and round no more.
MAX_SUMMED_ROWS = 256
MAX_SQUARABLE = 1e100  # squares of smaller numbers fit a float64: the whole measurement would take them too


class NeedsFullPass(Exception):
    """Rows that were not measured hold a value that is not finite or overflows when squared."""


def combine(
    rows: Rows,
    weights: Weights,
    usable: Mask,
    scale: float = 1.0,
    progress: Progress | None = None,
    unmeasured: bool = False,
    size: RowSizes | None = None,
) -> tuple[Any, float]:
    """scale · Σ wᵢ xᵢ over the usable rows, and how far rounding may have moved it.

    `unmeasured`: nothing is known of the rows, and each has some weight. Without `size` only a cast to a
    narrower dtype is in that distance.
    """
    answer, weighted_sum = rows.answer(), WeightedSum(weights * scale, usable, size)
    cast_error = sum_blocks(rows, answer, weighted_sum, progress, unmeasured)
    return answer.finish(weights), weighted_sum.rounding_error(cast_error)


def sum_blocks(
    rows: Rows,
    answer: Answer,
    weighted_sum: WeightedSum,
    progress: Progress | None = None,
    unmeasured: bool = False,
) -> float:
    """Write the weighted sum of every block; how far the answer's dtype has moved it."""
    cast_error = 0.0
    with np.errstate(all="ignore"):  # sums of the largest numbers overflow, and are made again
        for columns, block in rows.blocks():
            block = block if is_host_block(block) else as_host_array(block)
            out = answer.memory_for(columns, block)
            cast = weighted_sum.into(out, block)
            if cast is not None:
                cast_error = math.hypot(cast_error, cast)
                if unmeasured:
                    need_full_pass_if_hostile(out, block)
            else:
                for part, narrow in narrower(columns, block):
                    total = weighted_sum(narrow)
                    if unmeasured:
                        need_full_pass_if_hostile(total, narrow)
                    cast_error = math.hypot(cast_error, answer.write(part, total))
            if progress:
                progress("averaging", columns.stop, rows.d)
    return cast_error


def host_blocks(rows: Rows) -> Iterator[tuple[slice, Block]]:
    """The blocks of a reading; what is in main memory as numpy arrays."""
    return ((columns, as_host_array(block)) for columns, block in as_copied(rows.blocks()))


def need_full_pass_if_hostile(total: Any, block: Block) -> None:
    """Raise NeedsFullPass unless every number is finite and, in float64, can be squared.

    A sum in which all rows have a part shows it: what is not finite stays so whatever is added.
    """
    totals = total if isinstance(total, list) else [total]
    if not all(math.isfinite(largest_magnitude(leaf)) for leaf in totals) or (
        block.dtype.itemsize == 8 and not largest_magnitude(as_matrix(block)) < MAX_SQUARABLE
    ):
        raise NeedsFullPass


class RowSizes(NamedTuple):
    """Weighted root mean squares over the rows."""

    norm: float
    spread: float  # distance from a point near the rows
    scale: float  # these times `scale` are in the caller's numbers, where they may not fit a float

    @classmethod
    def of(cls, geometry: Geometry, weights: Weights) -> RowSizes | None:
        """Those of the rows that have weight, where all was measured."""
        if geometry.partial:
            return None
        norm = float(weights.dot(geometry.squared_norms())) / (1 - geometry.distortion)
        spread = float(weights.dot(geometry.squared_norms_from_pivot()))
        return cls(math.sqrt(norm), math.sqrt(spread), geometry.scale)

    @property
    def is_doubtful(self) -> bool:
        """Whether the origin may be too near or too far to be squared in the unit of float64 rows."""
        return not 2.0**-440 < self.norm < 2.0**440


class WeightedSum:
    """Σ wᵢ xᵢ of block after block. Rows outside the runs are skipped, not multiplied: 0 · NaN is NaN."""

    def __init__(self, weights: Weights, usable: Mask, size: RowSizes | None = None) -> None:
        self.runs = _runs(usable, weights)
        everything = np.count_nonzero(usable) == usable.size
        self.weights = weights if everything else np.where(usable, weights, 0.0)
        self._weights_beside: Any = None  # the weights in the blocks' library, dtype and device
        self._size, self._count = size, int(np.count_nonzero(self.weights))
        self._itemsize, self._wide = 8, False
        self._terms = self._count  # that are added up in one precision
        self._clipped: list[float] = []  # how far parts of a sum lay beyond the largest number
        self._largest, self._columns = 0.0, 0  # of the sums, where the norms of the rows are doubtful

    def into(self, out: Any, block: Block) -> float | None:
        """Sum a block straight into the output's memory, at memory speed: how far its dtype moved the sum.

        None if that cannot be done. Leaves are summed into as many places.
        """
        in_float64 = self.in_float64(block)
        if out is None or self._looks_at_sums():
            return None
        if is_host_block(block):
            fits = isinstance(out, np.ndarray) and not in_float64
            return self._in_parallel(out, block) if fits else None
        if not takes(block):
            return None
        from randeigen.backend.cuda.weighted_sum import weighted_sum

        leaves = out if isinstance(out, list) else [out]
        overflowed, squared_error = weighted_sum(block, self.weights, leaves, in_float64)
        return None if overflowed else math.sqrt(squared_error)

    @property
    def clipped(self) -> float:
        """How far the sums lay beyond the largest number."""
        return math.hypot(*self._clipped)

    def rounding_error(self, cast_error: float) -> float:
        """How far the answer may be from the exact sum, if a cast has moved it by so much."""
        clipped = self.clipped
        if self._size is None or (self._count == 1 and self.weights.max() == 1):
            return cast_error + clipped  # the sum of a single row is that row
        if self._wide and cast_error <= self._smallest_visible() * self._size.scale:
            cast_error = 0.0  # a cast to half precision moves more
        total = float(self.weights.sum())
        off = (self._terms + 2) * UNIT_ROUNDOFF[8 if self._wide else self._itemsize] * total
        of_sums = off * self._largest * math.sqrt(self._columns) / (total or 1.0)
        return cast_error + clipped + off * self._size.norm * self._size.scale + of_sums

    def _smallest_visible(self) -> float:
        """The least that a certificate shows; the top one of m directions has at least spread/sqrt(m)."""
        assert self._size is not None
        return SMALLEST_VISIBLE_ROUNDING * self._size.spread / math.sqrt(max(self._count, 1))

    def in_float64(self, block: Block) -> bool:
        """Whether a float32 sum of these rows would be off by more than the certificate should show."""
        self._itemsize = working_size(block)
        in_groups = is_host_block(block) and self._itemsize == 4
        self._terms = min(self._count, MAX_SUMMED_ROWS + 1) if in_groups else self._count
        if self._size is None or self._itemsize == 8:
            return False
        self._wide = (self._terms + 2) * UNIT_ROUNDOFF[4] * self._size.norm > self._smallest_visible()
        self._terms = self._count if self._wide else self._terms
        return self._wide

    def _beside(self, block: Block) -> Any:
        if self._weights_beside is None:
            self._weights_beside = like(self.weights, block)
        return self._weights_beside

    def _looks_at_sums(self) -> bool:
        return self._itemsize == 8 and self._size is not None and self._size.is_doubtful

    def __call__(self, block: Block) -> Any:
        total = self._summed(block)
        if self._looks_at_sums():  # they are as long as the rows, but for the rows' distances
            self._largest = max(self._largest, largest_magnitude(total))
            self._columns += total.shape[0]
        return total

    def _summed(self, block: Block) -> Any:
        wide = self.in_float64(block)
        if is_host_block(block):
            if wide:
                return self._carefully(block)
            total = np.empty(block.shape[1], block.dtype)
            self._in_parallel(total, block)
            return total
        leaves = empty_leaves(block, wide)
        if self.into(leaves, block) is not None:
            return joined(leaves)
        if wide or not is_matrix(block):
            return self._carefully(block)
        total = self._total(self._beside(block), block)
        return total if math.isfinite(largest_magnitude(total)) else self._carefully(block)

    def _in_parallel(self, out: Any, block: Any) -> float:
        """Every part of the columns on its own, wherever there is a core for it."""
        w, cut = self._beside(block), parts(block, MAX_SUMMED_ROWS)
        ends = accumulate(part.shape[1] for part in cut)
        outs = [out[end - part.shape[1] : end] for part, end in zip(cut, ends, strict=True)]

        def settle(at: tuple[Any, Any]) -> None:
            part, here = at
            self._total(w, part, here)
            if not (math.isfinite(here.dot(here)) or np.isfinite(here).all()):  # squares may overflow
                here[:] = self._carefully(part)

        parallel_map(settle, list(zip(cut, outs, strict=True)))
        return 0.0

    def _carefully(self, block: Block) -> Any:
        """The sum in float64, a quarter at first: no mean of finite rows is beyond the largest number.

        Rows that a rule has stretched may be; they end there.
        """
        top = largest_number_like(block) / 4

        def total(part: Block) -> Any:
            part = as_host_array(part)
            exact = self._total(like(self.weights / 4, wide := as_float64(part)), wide)
            # What is not finite came from a row that nobody has measured yet, and must be seen.
            clipped = where_finite(exact, exact.clip(-top, top))
            if (beyond := 4 * apart(clipped, exact)) > 0:
                self._clipped.append(beyond)
            return clipped * 4

        return joined(parallel_map(total, parts(block) if is_host_block(block) else pieces(block)))

    def _total(self, w: Any, part: Block, out: Any = None) -> Any:
        if out is not None and part.dtype.itemsize == 4 and len(w) > MAX_SUMMED_ROWS:
            out[:] = self._total_in_groups(w, part)
            return out
        part = as_host_array(part) if is_host_block(part) else part
        total = weighted_columns(w[self.runs[0]], part[self.runs[0]], out)
        for run in self.runs[1:]:
            total += weighted_columns(w[run], part[run])
        return total

    def _total_in_groups(self, w: Any, part: Any) -> Any:
        total = np.zeros(part.shape[1])
        for run in self.runs:
            for start in range(run.start, run.stop, MAX_SUMMED_ROWS):
                some = slice(start, min(start + MAX_SUMMED_ROWS, run.stop))
                total += weighted_columns(w[some], as_host_array(part[some]))  # at most so many are copied
        return total


def _runs(usable: Mask, weights: Weights) -> list[slice]:
    """Stretches of consecutive rows to read, so that each is a view and a single product."""
    mask = usable & (weights > 0)
    if np.count_nonzero(mask) == mask.size:
        return [slice(0, mask.size)]
    if not mask.any() or (usable.all() and 2 * mask.sum() > mask.size):
        mask = usable  # a few zeros cost less than a few more products
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [slice(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def largest_magnitude(values: Any) -> float:
    """The largest magnitude; NaN if there is one."""
    return max(abs(float(values.max())), abs(float(values.min())))


def largest_number_like(values: Any) -> float:
    """The largest number of this dtype."""
    return float(np.finfo(np.float32 if working_size(values) == 4 else np.float64).max)
