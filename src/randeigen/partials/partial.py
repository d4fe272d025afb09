"""`partial`: what some columns of all files add to their Gram matrix; partials of all columns are judged."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from randeigen.api import RuleLike
from randeigen.errors import BadParameter, BadRows
from randeigen.geometry.gram_accumulator import NOT_FINITE
from randeigen.geometry.gram_share import GramShare
from randeigen.geometry.segments import Subtree, covered, join, measure_segments, unusable_in
from randeigen.partials import storing
from randeigen.partials.decision import SharedDecision, decide
from randeigen.partials.inputs import Inputs, Part, SomeColumns, checked_part, open_files
from randeigen.pipeline import checked_seed
from randeigen.prior_weights import MAX_CLAIM_RATIO
from randeigen.rows.file_rows import Visit
from randeigen.rows.write import replacing
from randeigen.rules.base import MAX_ROWS_NAMED
from randeigen.types import OnExcess, Progress

Digest = tuple[str | None, int | None, str | None]  # SHA-256 and size of a file, or why there is none


def partial(
    paths: Sequence[str] | Sequence[os.PathLike[str]],
    part: Part = (0, 1),
    *,
    seed: int | None = None,
    visit: Visit | None = None,
    progress: Progress | None = None,
) -> Partial:
    """Measure part i of k of the columns of all files: one worker's share of the first reading.

    `sum` adds the partials of all parts up, in any order, and `Partial.verdict` judges the files. Whatever k
    is, the verdict is the same to the bit; with a seed and up to 647 files it is that of
    `aggregate(paths, seed=seed, geometry="gram")`.

    Parameters:
        paths: The files, the same list in the same order for every worker.
        part: (i, k), part i of k, counted from 0. Parts are whole blocks of 8 MB over all files, so that of
            few numbers some parts have none.
        seed: The seed of the whole call, which must be the same for all parts. Without one the verdict draws
            a secret seed, and measures from pivots that are drawn from the files' times and inodes.
        visit: Called as `visit(row, file, size)` with each file that is accepted, open.
        progress: Called as `progress(stage, columns_done, columns_in_all)` while columns are read.

    Returns:
        The share of these columns, to be added to those of the other parts.

    Raises:
        BadParameter: `part` or `seed` cannot be.
        BadRows: The files have no form that most share, or changed while they were read.

    Examples:
        >>> import tempfile, numpy as np, randeigen
        >>> folder, rng = tempfile.mkdtemp(), np.random.default_rng(0)
        >>> paths = [f"{folder}/client-{i}.npy" for i in range(5)]
        >>> for path in paths:
        ...     np.save(path, rng.standard_normal(1000))
        >>> sum(randeigen.partial(paths, part=(i, 2)) for i in range(2))
        Partial(1,000 of 1,000 columns of 5 files)
    """
    i, k = checked_part(part)
    rows = open_files(paths, visit)
    inputs = Inputs.of(rows, None if seed is None else checked_seed(seed))
    run = inputs.segments.part(i, k)
    columns = inputs.segments.columns(run.start, run.stop)
    some = SomeColumns(rows, columns)
    shares = measure_segments(some, inputs.coin(), inputs.segments, among(columns, progress))
    # A file that failed on the way is unusable; one that was rewritten was measured as nobody sent it.
    changed = [row for row in rows.changed() if row not in rows.unusable]
    if changed:
        raise BadRows(f"rows {changed[:MAX_ROWS_NAMED]} changed while they were read; measure them again.")
    return Partial(inputs, shares, dict(rows.unusable))


def among(columns: slice, progress: Progress | None) -> Progress | None:
    """Progress through these columns alone."""
    if progress is None:
        return None

    def within(stage: str, done: int, total: int) -> None:
        progress(stage, done - columns.start, columns.stop - columns.start)

    return within


@dataclass(frozen=True, eq=False, repr=False)
class Partial:
    """What some columns of all files add to their Gram matrix: `sum(partials)` is that of all columns.

    Additive in any order and grouping, to the bit; picklable; `to_bytes` and `from_bytes` hold nothing that
    could run. A row that is unusable in one partial is unusable in the sum, with the reason.
    """

    inputs: Inputs
    shares: Mapping[Subtree, GramShare]
    unreadable: Mapping[int, str]  # rows whose files could not be read, and why
    digests: Mapping[int, Digest] = field(default_factory=dict)  # of some files' bytes, for an audit

    @property
    def n(self) -> int:
        """How many files there are."""
        return len(self.inputs.names)

    @property
    def columns(self) -> int:
        """How many columns were measured."""
        return sum(share.columns for share in self.shares.values())

    @property
    def unusable(self) -> dict[int, str]:
        """Rows that cannot be used, and why."""
        not_finite = np.flatnonzero(unusable_in(self.shares, self.n)).tolist()
        return dict(sorted((dict.fromkeys(not_finite, NOT_FINITE) | dict(self.unreadable)).items()))

    def __add__(self, other: Partial) -> Partial:
        if not isinstance(other, Partial):
            return NotImplemented
        if how := self.inputs.difference(other.inputs):
            raise BadParameter(f"these partials cannot be added up: {how}; measure all parts again.")
        self._refuse_doubled(other)
        shares = dict(self.shares)
        for at, share in other.shares.items():
            join(shares, at, share)
        unreadable = dict(self.unreadable)
        for row, reason in other.unreadable.items():
            unreadable[row] = min(unreadable.get(row, reason), reason)  # the same in whatever order
        return Partial(
            self.inputs.merged(other.inputs), shares, unreadable, {**self.digests, **other.digests}
        )

    def __radd__(self, other: object) -> Partial:
        """`sum` begins with 0."""
        return self if other == 0 else NotImplemented

    def with_digests(self, digests: Mapping[int, Digest]) -> Partial:
        """The same, with the SHA-256 of some files' bytes, or why there is none, for an audit."""
        return replace(self, digests={**self.digests, **digests})

    def __repr__(self) -> str:
        return f"Partial({self.columns:,} of {self.inputs.d:,} columns of {self.n:,} files)"

    def verdict(
        self,
        eps: float | None = None,
        *,
        f: int | None = None,
        rule: RuleLike | None = None,
        seed: int | None = None,
        on_excess: OnExcess = "raise",
        row_weights: Any = None,
        cap: float = MAX_CLAIM_RATIO,
    ) -> SharedDecision:
        """Judge the files, once the partials of all parts are added up; parameters as of `aggregate`.

        Returns:
            The weights and the certificate, for `spend`.

        Raises:
            BadParameter: Columns are missing, a seed was given that is not the partials', or the rule makes
                its answer column by column.
            TooManyCorrupt: More files are unusable than may be corrupt.
        """
        segments, runs = self.inputs.segments, covered(self.shares)
        if runs != [range(segments.count)]:
            ends = [run.stop for run in runs]
            gap = 0 if not runs or runs[0].start else ends[0]
            missing = segments.columns(
                gap, min((r.start for r in runs if r.start > gap), default=segments.count)
            )
            raise BadParameter(
                f"columns {missing.start:,} to {missing.stop - 1:,} were not measured: found "
                f"{self.columns:,} of {self.inputs.d:,}; add up the partials of all parts."
            )
        return decide(self, eps, f, rule, seed, on_excess, row_weights, cap)

    def to_bytes(self) -> bytes:
        """The partial in the safetensors format, with a checksum."""
        return storing.to_bytes(self)

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "this") -> Partial:
        """The reverse, checked: BadFile, with the reason, if it was cut off, changed or is something else."""
        return cls(*storing.from_bytes(data, name))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, whole or not at all."""
        with replacing(path) as file:
            file.write(self.to_bytes())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Partial:
        """The partial in a file."""
        return cls.from_bytes(storing.bytes_of(os.fspath(path), "a partial"), os.fspath(path))

    def _refuse_doubled(self, other: Partial) -> None:
        for mine in covered(self.shares):
            for theirs in covered(other.shares):
                if both := range(max(mine.start, theirs.start), min(mine.stop, theirs.stop)):
                    columns = self.inputs.segments.columns(both.start, both.stop)
                    raise BadParameter(
                        f"columns {columns.start:,} to {columns.stop - 1:,} are in two of these partials; "
                        "give each part once, all cut into the same number of parts."
                    )
