"""`randeigen aggregate`: files of updates in, their robust mean out."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from randeigen.api import as_rule
from randeigen.certificate import (
    DOWN_WEIGHTED,
    KEPT,
    LEFT_OUT,
)
from randeigen.cli import audit as audits
from randeigen.cli.aggregate_files import (
    aggregate_files,
    check_apart,
    check_one_home,
    check_output,
    expand,
    folder_of,
    within,
    write,
)
from randeigen.cli.audit import (
    FileOutcome,
    Fingerprints,
    certificate,
    counted,
    digest,
    file_outcomes,
    price,
    summary,
)
from randeigen.cli.console import (
    UsageError,
    console,
    count,
    exit_on_error,
    plain,
    print_line,
    progress_bar,
    short,
)
from randeigen.cli.counts import read_counts
from randeigen.cli.options import AggregateOptions, Corrupt, Eps, Geometry, Output, SecretSeed, Updates
from randeigen.registry import DEFAULT, pinned_name
from randeigen.rows.write import WRITTEN_SUFFIXES, staging
from randeigen.types import Aggregate, OnExcess

MAX_FILES_LISTED = 20  # more files than this are not shown one by one without --all
MAX_EXCEPTIONS_LISTED = 40  # of the files that fare unlike most, which are shown even then
MIN_WIDTH_OF_REASONS = 60  # of the terminal, for a column of their own
COLOURS = {KEPT: "", DOWN_WEIGHTED: "yellow", LEFT_OUT: "red"}
RANK = {LEFT_OUT: 0, DOWN_WEIGHTED: 1, KEPT: 2}


def aggregate(
    updates: Updates,
    out: Annotated[
        str, typer.Option(metavar="FILE", help="Where the mean goes; its suffix decides the format.")
    ],
    eps: Eps = None,
    f: Corrupt = None,
    rule: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How files are weighed: randeigen unless given; `randeigen rules` lists all. "
            "filtering:gamma=0.5 sets a parameter, nnm+krum mixes rows first, mine.py:Best is your own.",
        ),
    ] = None,
    seed: SecretSeed = None,
    geometry: Geometry = "auto",
    on_excess: Annotated[
        OnExcess,
        typer.Option(help="More unusable files than f: stop with exit code 4, or go on without them."),
    ] = "raise",
    partition: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="What is judged together: whole, tensor, rows:NAME, columns:N, or hybrid, the whole files "
            "and then the rows of tensors that stand out.",
        ),
    ] = "whole",
    counts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='Example counts of the files, {"client-1.npz": 120, ...}: claims of the senders, which '
            "count up to three times the median and never so that f files hold over a third.",
        ),
    ] = None,
    audit: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a record that `replay` can check, .json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout instead of the table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing unless it fails.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show every file in the table.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Average files of updates, of which some may be corrupt, and certify the answer.

    Each file is one sender's row. A file that is truncated, unreadable, not finite or unlike the others
    counts as corrupt; more of them than --eps or --f allows is exit code 4. Folders are read without their
    subfolders and hidden files.

    The certificate, bias_bound: f corrupt rows can have moved the answer by at most this at these weights:
    it is that close to the mean of the honest rows alone at the same weights, and may be further from their
    plain mean. distance_to_mean is what robustness cost if every file is honest: the answer's distance from
    the plain mean of all usable files.

    \b
    Examples:
      randeigen aggregate updates/ --eps 0.1 --out mean.safetensors
      randeigen aggregate 'round-7/*.npz' --f 3 --out mean.npz --audit audit.json
      randeigen aggregate a.npy b.npy c.npy --f 1 --out mean.npy --json | jq .bias_bound
      randeigen aggregate updates/ --f 0 --rule mean --out plain.safetensors
      randeigen aggregate updates/ --eps 0.1 --counts counts.json --out mean.safetensors
      randeigen aggregate updates/ --eps 0.2 --partition 'hybrid:rows:*embed*' --out mean.safetensors
      torchrun --nproc-per-node 8 -m randeigen aggregate updates/ --eps 0.1 --out mean.safetensors

    \b
    Exit codes:
      0 done, 2 a mistake in the call or a disk that cannot be written to, 3 a missing extra,
      4 more unusable files than said, 130 interrupted; nothing is ever half-written
    """
    with exit_on_error():
        name = DEFAULT if rule is None else pinned_name(rule)
        call = AggregateOptions(name, eps, f, seed, geometry, on_excess, partition)
        _run(call, rule, updates, counts, Output(out, audit, as_json, quiet, everything, force))


def _run(
    call: AggregateOptions, requested: str | None, updates: Sequence[str], counts: str | None, output: Output
) -> None:
    if call.eps is None and call.f is None:
        raise UsageError(
            "say how many files may be corrupt: --eps, a fraction, or --f, a number (--f 0 for none)."
        )
    name, rule = requested or DEFAULT, as_rule(requested and call.rule, call.eps, call.f)
    out, audit = output.out, output.audit
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun started this process, or one that called it
        from randeigen.cli.over_ranks import Ranks, aggregate_over_ranks

        if ranks := Ranks.of_environment():
            if counts is not None:
                raise UsageError("--counts is for one process; leave it out under torchrun.")
            checked = partial(_checked, updates, output)
            shared = aggregate_over_ranks(ranks, call, checked, out, audit, output.force, output.quiet)
            if not ranks.rank:
                files = file_outcomes(shared.result)
                _print_report(shared.call, name, shared.result, shared.paths, files, output)
            return
    paths = _checked(updates, output)
    if counts is not None:
        call = replace(call, counts=read_counts(counts, paths))

    with staging(out) as draft:  # the answer and its audit, or neither
        with progress_bar(output.quiet) as progress:
            prints = Fingerprints(paths, progress)
            visit = prints.visit if audit is not None else None
            judged = aggregate_files(paths, rule, call, out, progress, visit, draft)
        result = judged.result
        files = file_outcomes(result, counts=call.counts)
        call = replace(call, seed=result.seed)
        if not judged.is_written:
            write(draft, result, judged.dtypes)
        if audit is not None:
            outcome = audits.Outcome(prints.all(), files, judged, digest(draft))
            audits.save(audit, audits.record(call, rule, paths, outcome, out, audit))
    _print_report(call, name, result, paths, files, output)


def _checked(updates: Sequence[str], output: Output) -> list[str]:
    """The files, once it is known that the answer can be written."""
    paths = expand(updates)
    check_output("--out", output.out, paths, WRITTEN_SUFFIXES, output.force)
    check_apart(output.out, updates)
    if output.audit is not None:
        check_output("--audit", output.audit, paths, [".json"], output.force)
        check_one_home(paths)
    return paths


def _print_report(
    call: AggregateOptions,
    name: str,
    result: Aggregate,
    paths: Sequence[str],
    files: Sequence[FileOutcome],
    output: Output,
) -> None:
    if output.as_json:
        print(json.dumps(_report(call, result, paths, files, output), allow_nan=False, indent=1))
    elif not output.quiet:
        one_is = "an even share" if call.counts is None else "the share that its count would give it"
        show(result, paths, files, name, output.everything, one_is)
        where = f"Mean written to {output.out}" + (f", audit to {output.audit}" if output.audit else "")
        print_line(f"{where}.")


def _report(
    call: AggregateOptions,
    result: Aggregate,
    paths: Sequence[str],
    outcomes: Sequence[FileOutcome],
    output: Output,
) -> dict[str, Any]:
    """The whole verdict as JSON, for scripts."""
    files = [
        {"file": path, **asdict(outcome), "kept": bool(kept)}
        for path, outcome, kept in zip(paths, outcomes, result.kept, strict=True)
    ]
    return {"out": output.out, "audit": output.audit, **asdict(call), **summary(result), "files": files}


def show(
    result: Aggregate,
    paths: Sequence[str],
    files: Sequence[FileOutcome],
    rule: str,
    everything: bool,
    one_is: str = "an even share",
) -> None:
    """The whole verdict on stdout; `one_is` says what 1× stands for."""
    console().print(_table(paths, files, everything))
    print_line(counted(files, one_is))
    print_line(certificate(result))
    print_line(price(result))
    verdict = result.verdict
    how = f"Rule {rule}, f = {result.f} of {len(paths)}"
    if len(verdict.spreads):
        how += f"; measured {count(len(verdict.spreads), 'time')}"
    print_line(f"{how}; stopped because {verdict.stop}. Seed {result.seed}.")
    if verdict.scale != 1:
        print_line(
            f"The weighted mean was shortened to {short(verdict.scale)} of its length, as the rule clips."
        )
    for note in verdict.notes:
        print_line(f"Note: {note}")
    for group in verdict.cut_together:
        base, first = folder_of(paths), group[:MAX_FILES_LISTED]
        names = [f"{row} is {within(paths[row], base)}" for row in first]
        print_line(
            f"Rows are the files, counted from 0: {', '.join(names)}{'.' if first == group else ', ...'}"
        )


def _table(paths: Sequence[str], files: Sequence[FileOutcome], everything: bool) -> Table:
    order = sorted(range(len(paths)), key=lambda row: (RANK[files[row].fate], row))
    if few := 2 * sum(file.fate == KEPT for file in files) < len(files):  # Krum keeps one: that comes first
        order.sort(key=lambda row: files[row].fate != KEPT)
    if not everything and len(paths) > MAX_FILES_LISTED:
        order = [row for row in order if (files[row].fate == KEPT) == few][:MAX_EXCEPTIONS_LISTED]
    base = folder_of(paths)
    narrow = console().width < MIN_WIDTH_OF_REASONS  # then the reason is behind the verdict
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("file", overflow="fold", ratio=None, min_width=12)
    table.add_column("weight", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=not narrow, overflow="fold")
    if not narrow:
        table.add_column("why", overflow="fold")
    for row in order:
        file, name = files[row], within(paths[row], base)
        verdict, reason = Text(file.fate, style=COLOURS[file.fate]), Text(plain(file.reason))
        last = (verdict + Text(": ") + reason if file.reason else verdict,) if narrow else (verdict, reason)
        table.add_row(Text(plain(name)), _share(file.share), *last)
    if not everything and (rest := [files[row] for row in set(range(len(paths))) - set(order)]):
        shares = [file.share for file in rest]
        lightest, heaviest = _share(min(shares)), _share(max(shares))
        between = lightest if lightest == heaviest else f"{lightest} to {heaviest}"
        name = count(len(rest), "other") if order else f"all {len(rest):,} files"
        fates = "/".join(sorted({file.fate for file in rest}))
        table.add_row(name, "", *((f"{fates}: {between}",) if narrow else (fates, between)))
    return table


def _share(share: float) -> str:
    return "0" if share == 0 else "<0.01×" if share < 0.005 else f"{share:.2f}×"
