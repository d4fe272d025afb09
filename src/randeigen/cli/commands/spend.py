"""`randeigen spend`: one worker's columns of the mean."""

from __future__ import annotations

from typing import Annotated

import typer

import randeigen
from randeigen.cli.aggregate_files import check_apart, check_one_home, check_output, expand
from randeigen.cli.console import exit_on_error, print_line, progress_bar, short
from randeigen.cli.options import Updates
from randeigen.cli.shared_files import PartOption, as_part, options_of, refuse_without_digests, write_audit
from randeigen.partials import SharedDecision


def spend(
    updates: Updates,
    decision: Annotated[str, typer.Option(metavar="FILE", help="What `randeigen decide` wrote.")],
    out: Annotated[
        str, typer.Option(metavar="FILE", help="Where the mean goes: .safetensors, or .npy for one array.")
    ],
    part: PartOption = "0/1",
    audit: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write a record that `replay` can check, .json, with the last part."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing unless it fails.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Average part I of K of the columns by a decision; the mean appears when the last part is written.

    Every worker is given the same --out, on a file system they share, and writes its columns into a hidden
    file beside it. That takes its name once all columns are in it, so the mean is there whole or not at all,
    and holds the bytes that `randeigen aggregate` writes. A part that failed is run again; K need not be that
    of the partials. Files that are not those that were judged are refused.

    \b
    Examples:
      randeigen spend updates/ --decision decision.json --out mean.safetensors
      randeigen spend updates/ --decision decision.json --out mean.safetensors --part 3/16 --audit audit.json
      seq 0 15 | xargs -P 4 -I {} randeigen spend updates/ --decision d.json --out mean.npy --part {}/16

    \b
    Exit codes:
      0 done, 2 a mistake in the call, other files, or a disk that cannot be written to, 130 interrupted; the
      mean is never half-written
    """
    with exit_on_error():
        i, k = as_part(part)
        judged = SharedDecision.read(decision)
        paths = expand(updates)
        check_output("--out", out, [*paths, decision], [".safetensors", ".npy"], force)
        check_apart(out, updates)
        if audit is not None:
            check_output("--audit", audit, [*paths, decision], [".json"], force)
            check_one_home(paths)
            refuse_without_digests(judged)
            options_of(judged)
        with progress_bar(quiet) as progress:
            spending = randeigen.spend(paths, judged, (i, k), out=out, force=force, progress=progress)
        if spending.complete is not None and audit is not None:
            write_audit(audit, paths, judged, spending.complete, out)
    if quiet:
        return
    columns = spending.columns.stop - spending.columns.start
    print_line(f"Part {i}/{k}: {columns:,} of {judged.inputs.d:,} columns.")
    if spending.complete is not None:
        bound = short(spending.complete.bias_bound)
        print_line(
            f"That was the last: mean written to {out}"
            + (f", audit to {audit}" if audit else "")
            + f"; bias_bound {bound}."
        )
