"""`randeigen partial`: one worker's columns of all files, measured."""

from __future__ import annotations

from typing import Annotated

import typer

from randeigen.cli.aggregate_files import check_output, expand
from randeigen.cli.console import count, exit_on_error, print_line, progress_bar
from randeigen.cli.options import Updates
from randeigen.cli.shared_files import PartOption, as_part, measure


def partial(
    updates: Updates,
    part: PartOption,
    out: Annotated[str, typer.Option(metavar="FILE", help="Where the measurement goes, .partial.")],
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**128 - 1, metavar="N", help="Repeats a call; the same for all parts."),
    ] = None,
    fingerprints: Annotated[
        bool, typer.Option("--fingerprints", help="SHA-256 of every K-th file too, for `spend --audit`.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing unless it fails.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Measure part I of K of the columns of all files: the first of three steps that workers share.

    Every worker is given the same files in the same order, on a file system they share. It reads its columns
    of each and writes n² numbers. `randeigen decide` adds the partials of all parts up and judges the files,
    `randeigen spend` averages them. However many parts there are, the answer is the same to the bit.

    \b
    Examples:
      randeigen partial updates/ --part 0/2 --out 0.partial
      randeigen partial updates/ --part 1/2 --out 1.partial
      randeigen decide 0.partial 1.partial --eps 0.2 --out decision.json
      randeigen spend updates/ --decision decision.json --out mean.safetensors
      seq 0 15 | xargs -P 4 -I {} randeigen partial updates/ --part {}/16 --out {}.partial
      randeigen partial updates/ --part $SLURM_ARRAY_TASK_ID/16 --out $SLURM_ARRAY_TASK_ID.partial

    \b
    Exit codes:
      0 done, 2 a mistake in the call or files that cannot be averaged, 130 interrupted; nothing is ever
      half-written
    """
    with exit_on_error():
        i, k = as_part(part)
        paths = expand(updates)
        check_output("--out", out, paths, [".partial"], force)
        with progress_bar(quiet) as progress:
            measured = measure(paths, (i, k), seed, fingerprints, progress)
        measured.write(out)
    if not quiet:
        bad = f", {count(len(measured.unusable), 'unusable file')} among them" if measured.unusable else ""
        extent = f"{measured.columns:,} of {measured.inputs.d:,} columns of {count(measured.n, 'file')}{bad}"
        print_line(f"Part {i}/{k}: {extent}, written to {out}.")
