"""`spend`: each worker averages its columns into one file, which appears when the last has done so."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from randeigen.combine import sum_blocks
from randeigen.errors import BadParameter, BadRows
from randeigen.partials.decision import SharedDecision
from randeigen.partials.draft import Draft, Finished, Rounded
from randeigen.partials.inputs import Inputs, Part, SomeColumns, checked_part, open_files
from randeigen.partials.partial import among
from randeigen.rows.file_rows import FileRows
from randeigen.rules.base import MAX_ROWS_NAMED
from randeigen.types import Aggregate, Progress


class Spent(NamedTuple):
    """What became of one worker's columns."""

    columns: slice
    # Once every worker has written its columns: the aggregate, its mean in the file.
    complete: Aggregate[None] | None


def spend(
    paths: Sequence[str] | Sequence[os.PathLike[str]],
    decision: SharedDecision,
    part: Part = (0, 1),
    *,
    out: str | os.PathLike[str],
    force: bool = False,
    progress: Progress | None = None,
) -> Spent:
    """Average part i of k of the columns by the weights of a decision, into the file `out`.

    Workers write their columns into a hidden file beside `out`, which takes its place once all columns are
    in it: it is there whole or not at all, and holds the bytes that `randeigen aggregate` writes. A part that
    failed is run again; one that is run again after the file is complete compares it, and leaves it. Parts
    need not be those of `partial`.

    Parameters:
        paths: The files that were measured, in the same order.
        decision: What `Partial.verdict` returned.
        part: (i, k), part i of k, counted from 0.
        out: Where the mean goes: .safetensors, or .npy for a single array.
        force: Whether a file that exists is replaced.
        progress: Called as `progress(stage, columns_done, columns_in_all)` while columns are read.

    Returns:
        The columns that were written and, from whoever completed the file, the aggregate without its mean.

    Raises:
        BadParameter: `part` or `decision` cannot be, `out` holds something else, or its format cannot be
            written in parts.
        BadRows: The files are not those that were judged, or changed while they were read.

    Examples:
        >>> import tempfile, numpy as np, randeigen
        >>> folder, rng = tempfile.mkdtemp(), np.random.default_rng(0)
        >>> paths = [f"{folder}/client-{i}.npy" for i in range(5)]
        >>> for path in paths:
        ...     np.save(path, rng.standard_normal(1000))
        >>> decision = sum(randeigen.partial(paths, part=(i, 2)) for i in range(2)).verdict(f=1)
        >>> parts = [randeigen.spend(paths, decision, (i, 2), out=f"{folder}/mean.npy") for i in range(2)]
        >>> np.load(f"{folder}/mean.npy").shape
        (1000,)
    """
    i, k = checked_part(part)
    if not isinstance(decision, SharedDecision):
        raise BadParameter(f"decision is a {type(decision).__name__}; give what Partial.verdict() returned.")
    out = os.fspath(out)
    rows = open_files(paths)
    _refuse_others(rows, decision)
    _check_output(out, rows)
    segments = decision.inputs.segments
    run = segments.part(i, k)
    columns = segments.columns(run.start, run.stop)
    if not run:
        return Spent(columns, None)
    kind = Finished if not force and os.path.lexists(out) else Draft
    with kind(out, rows, decision.identity, run, segments.count) as draft:
        weighted_sum = decision.weighted_sum()
        rounding = sum_blocks(SomeColumns(rows, columns), draft, weighted_sum, among(columns, progress))
        if run.start == 0:
            draft.write_carried(rows.carried(decision.weights))
        changed = rows.changed()
        if changed:
            raise BadRows(
                f"rows {changed[:MAX_ROWS_NAMED]} changed while they were read; nothing was written."
            )
        rounded = draft.settle(Rounded(rounding, weighted_sum.clipped))
    return Spent(columns, None if rounded is None else decision.completed(*rounded))


def _check_output(out: str, rows: FileRows) -> None:
    if "://" in out:
        raise BadParameter(f"{out} is a URL; workers write into one file, so give a path that all can reach.")
    folder = os.path.dirname(out)
    if folder and not os.path.isdir(folder):
        raise BadParameter(f"there is no folder {folder} for {os.path.basename(out)}; make it first.")
    for row, path in enumerate(rows.paths if os.path.exists(out) else ()):
        if os.path.exists(path) and os.path.samefile(path, out):
            raise BadParameter(f"{out} is row {row}, which other workers read; give another name.")


def _refuse_others(rows: FileRows, decision: SharedDecision) -> None:
    """Refuse files that are not those that were judged; what became of unusable ones does not matter."""
    if how := decision.inputs.difference(Inputs.of(rows, decision.inputs.seed)):
        raise BadRows(f"these are not the files that were judged: {how}; measure and judge them again.")
    lost = [row for row in rows.unusable if row not in decision.unusable]
    if lost:
        raise BadRows(
            f"row {lost[0]} was judged and cannot be used now: {rows.unusable[lost[0]]}; judge again."
        )
