"""`randeigen decide`: the verdict on files that workers have measured."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from randeigen.cli.aggregate_files import check_output
from randeigen.cli.audit import file_outcomes, summary
from randeigen.cli.commands.aggregate import show
from randeigen.cli.console import UsageError, exit_on_error, print_line, progress_bar
from randeigen.cli.options import Corrupt, Eps
from randeigen.cli.shared_files import judge
from randeigen.partials import Partial
from randeigen.registry import DEFAULT, pinned_name
from randeigen.types import OnExcess


def decide(
    partials: Annotated[
        list[str], typer.Argument(metavar="PARTIALS...", help="What `randeigen partial` wrote, of all parts.")
    ],
    out: Annotated[str, typer.Option(metavar="FILE", help="Where the decision goes, .json.")],
    eps: Eps = None,
    f: Corrupt = None,
    rule: Annotated[
        str, typer.Option(metavar="NAME", help="How files are weighed; `randeigen rules` lists all.")
    ] = DEFAULT,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**128 - 1, metavar="N", help="Of the rule, if the partials have none."),
    ] = None,
    on_excess: Annotated[
        OnExcess,
        typer.Option(help="More unusable files than f: stop with exit code 4, or go on without them."),
    ] = "raise",
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout instead of the table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing unless it fails.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show every file in the table.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Add up the partials of all parts and judge the files, of which some may be corrupt.

    No file of updates is read. A part that is missing or there twice, and parts of other files or of files
    that were written between, are refused. The certificate is that of `randeigen aggregate`.

    \b
    Examples:
      randeigen decide *.partial --eps 0.2 --out decision.json
      randeigen decide *.partial --f 3 --rule nnm+krum --out decision.json --json | jq .bias_bound

    \b
    Exit codes:
      0 done, 2 a mistake in the call or parts that do not belong together, 4 more unusable files than said,
      130 interrupted; nothing is ever half-written
    """
    with exit_on_error():
        if eps is None and f is None:
            raise UsageError(
                "say how many files may be corrupt: --eps, a fraction, or --f, a number (--f 0 for none)."
            )
        check_output("--out", out, partials, [".json"], force)
        with progress_bar(quiet) as progress:
            first, *others = partials
            total = Partial.read(first)
            for done, path in enumerate(others, 2):
                total += Partial.read(path)
                if progress:
                    progress("adding", done, len(partials))
        decision = judge(total, pinned_name(rule), eps, f, seed, on_excess)
        decision.write(out)
    result, names = decision.completed(), decision.inputs.names
    files = file_outcomes(result)
    if as_json:
        listed = [{"file": name, **asdict(file)} for name, file in zip(names, files, strict=True)]
        report = {
            "out": out,
            "rule": rule,
            "eps": eps,
            "seed": decision.seed,
            **summary(result),
            "files": listed,
        }
        print(json.dumps(report, allow_nan=False, indent=1))
    elif not quiet:
        show(result, names, files, rule, everything)
        print_line(f"Decision written to {out}; `randeigen spend` averages the files by it.")
