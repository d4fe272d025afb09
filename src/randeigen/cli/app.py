"""The command itself: its help, its version, its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

import randeigen
from randeigen.cli.commands.aggregate import aggregate
from randeigen.cli.commands.attacks import attacks
from randeigen.cli.commands.bench import bench
from randeigen.cli.commands.replay import replay
from randeigen.cli.commands.rules import rules
from randeigen.cli.commands.simulate import simulate
from randeigen.cli.commands.train import train

HELP = """Average files of which some may be corrupt, and know how far these can have moved the answer.

\b
Examples:
  randeigen aggregate updates/ --eps 0.1 --out mean.safetensors
  randeigen aggregate 'round-7/*.npz' --f 3 --out mean.npz --audit audit.json
  randeigen replay audit.json
  randeigen bench --n 100 --d 262144
  randeigen simulate --attack hidra --rule mean --rule randeigen
  randeigen train --task mnist --attack subpopulation --eps 0.05
  randeigen rules

\b
Exit codes:
    0  done
    1  a replay differs: the recorded verdict is not confirmed
    2  a mistake in the call: a bad option, files that cannot be averaged
    3  an optional dependency is missing
    4  more files are unusable than were said to be corrupt
  130  interrupted; nothing is left half-written
"""

app = typer.Typer(
    help=HELP,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"randeigen {randeigen.__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command(short_help="Average files of updates robustly.")(aggregate)
app.command(short_help="Confirm a recorded verdict.")(replay)
app.command(short_help="How many plain means does robustness cost here?")(bench)
app.command(short_help="Every rule: what it is, and how it does.")(rules)
app.command(short_help="Watch a federation train under attack.")(simulate)
app.command(short_help="Watch a model train on poisoned data.")(train)
app.command(short_help="List the attacks of the laboratory.")(attacks)
