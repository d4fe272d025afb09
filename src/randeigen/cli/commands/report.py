"""`randeigen report`: a page about a federated run, or about a folder of the paper's records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from randeigen.bridges.record import read_runs
from randeigen.bridges.report_page import report_page, summary
from randeigen.bridges.verdicts import history_of
from randeigen.cli.aggregate_files import check_output
from randeigen.cli.console import UsageError, exit_on_error, print_line, require
from randeigen.rows.write import replacing


def report(
    record: Annotated[
        str,
        typer.Argument(
            metavar="RUN.jsonl|DIR", help="What robust(..., record=FILE) wrote; or records of `reproduce`."
        ),
    ],
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where the page goes, .html; without it, sentences.")
    ] = None,
    run: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Which run of the record; the last without it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Clients and their history as JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a page that exists.")] = False,
) -> None:
    """Show a run of `randeigen.flower` or `randeigen.nvflare`: who was kept, who was excluded and why.

    The page has clients and rounds as a map of weights, certificate and metrics over rounds, and a table of
    who was excluded most. It is one file that needs no network. It can be made while the run goes on.

    Of a folder, such as results/: every table and figure of the paper as reported and as measured, each
    number with links to its records, and the commands that make them.

    \b
    Examples:
      randeigen report run.jsonl --out page.html
      randeigen report run.jsonl --run 2 --out page.html --force
      randeigen report run.jsonl --json | jq '.clients[0]'
      randeigen report results/ --out report.html

    \b
    Exit codes:
      0 done, 2 a mistake in the call or not a record, 130 interrupted
    """
    with exit_on_error():
        if Path(record).is_dir():
            _report_on_paper(Path(record), out, run, as_json, force)
            return
        if out is not None:
            check_output("--out", out, [record], [".html"], force)
        runs = {each.number: each for each in read_runs(record)}
        number = max(runs) if run is None else run
        if number not in runs:
            raise UsageError(f"--run {number}: {record} holds the runs {', '.join(map(str, runs))}.")
        chosen = runs[number]
        history = history_of(chosen.rounds)
        if out is not None:
            with replacing(out) as file:
                file.write(report_page(chosen, len(runs), record).encode())
        if as_json:
            clients = [
                {"client": str(node), "asked": past.rounds, "excluded": past.excluded, "proven": past.proven}
                | {"outcomes": dict(past.outcomes), "last_reason": past.last_reason}
                for node, past in history.items()
            ]
            rounds = [verdict.as_json() for verdict in chosen.rounds]
            content = {"run": number, "rounds": rounds, "clients": clients}
            print(json.dumps(content, allow_nan=False, indent=1))
            return
        for sentence in summary(chosen, history):
            print_line(sentence)
        if out is not None:
            print_line(f"Page written to {out}.")


def _report_on_paper(folder: Path, out: str | None, run: int | None, as_json: bool, force: bool) -> None:
    """The page about the paper's experiments; without --out what it comes to, in sentences."""
    require("report of a folder", "torch")
    from randeigen.lab.paper.collect import Records
    from randeigen.lab.paper.report import sentences, write_report

    if run is not None or as_json:
        raise UsageError(f"{folder} is a folder of records; --run and --json are for a run's RUN.jsonl.")
    if out is not None:
        check_output("--out", out, [], [".html"], force)
        write_report(folder, Path(out))
    for sentence in sentences(Records(folder)):
        print_line(sentence)
    if out is not None:
        print_line(f"Page written to {out}.")
