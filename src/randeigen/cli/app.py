"""The command itself: its help, its version, its subcommands."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import randeigen
from randeigen.cli.console import print_error

resource: Any
try:
    import resource
except ImportError:  # a system without such limits
    resource = None

# Descriptors the command may have, if the system lets it; macOS lets a process have no more than the second.
OPEN_FILES = 2**17, 10240
HELP = """Average files of which some may be corrupt, and know how far these can have moved the answer.

\b
Examples:
  randeigen aggregate updates/ --eps 0.1 --out mean.safetensors
  randeigen aggregate 'round-7/*.npz' --f 3 --out mean.npz --audit audit.json
  torchrun --nproc-per-node 8 -m randeigen aggregate updates/ --eps 0.1 --out mean.safetensors
  randeigen inspect updates/
  randeigen replay audit.json
  randeigen bench --n 100 --d 262144
  randeigen simulate --attack hidra --rule mean --rule randeigen
  randeigen train --task mnist --attack subpopulation --eps 0.05
  randeigen rules
  randeigen report run.jsonl --out page.html

\b
Exit codes:
    0  done
    1  a replay differs: the recorded verdict is not confirmed
    2  a mistake in the call: a bad option, files that cannot be averaged
    3  an optional dependency is missing
    4  more files are unusable than were said to be corrupt
  130  interrupted; nothing is left half-written
"""

# Each is the function of this name in the module of this name in `randeigen.cli.commands`.
COMMANDS = {
    "aggregate": "Average files of updates robustly.",
    "inspect": "See what each eps would make of files, when it is not known.",
    "partial": "Measure some columns of all files: a worker's first step.",
    "decide": "Judge files that workers have measured.",
    "spend": "Average some columns by a decision: a worker's second step.",
    "replay": "Confirm a recorded verdict.",
    "bench": "How many plain means does robustness cost here?",
    "rules": "Every rule: what it is, and how it does.",
    "simulate": "Train a federation of which some clients are Byzantine.",
    "train": "Train a model on data of which some is poison.",
    "sweep": "Every combination of tasks, attacks, rules and seeds.",
    "reproduce": "The paper's tables and figures, cell by cell.",
    "attacks": "List the attacks of the laboratory.",
    "report": "A page about a federated run: who was excluded, and why.",
}


# Old names work until the release after the one that renamed them; no help shows them.
RENAMED_FLAGS = {
    "--calm": "--attack-start",
    "--feared": "--assumed-eps",
    "--redraw": "--resample-attackers",
    "--sample": "--participation",
    "--rate": "--lr",
}


class CommandWithRenamedFlags(TyperCommand):
    """A command that takes flags by their old names too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        flags = {flag for option in self.params for flag in option.opts}
        renamed = {old: new for old, new in RENAMED_FLAGS.items() if new in flags and old not in flags}
        end = args.index("--") if "--" in args else len(args)
        return super().parse_args(ctx, [*(_current(word, renamed) for word in args[:end]), *args[end:]])


def _current(word: str, renamed: dict[str, str]) -> str:
    flag, equals, value = word.partition("=")
    if flag not in renamed:
        return word
    print_error(f"Note: {flag} is now {renamed[flag]}; the old name will go.")
    return renamed[flag] + equals + value


class LazyGroup(TyperGroup):
    """Imports a command when it is called, so that `aggregate` does not wait for the laboratory."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)  # a mistyped name is compared with these

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"randeigen.cli.commands.{cmd_name}")
        alone = typer.Typer(rich_markup_mode=None, add_completion=False)
        alone.command(cls=CommandWithRenamedFlags)(getattr(module, cmd_name))
        return typer.main.get_command(alone)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=LazyGroup,
    help=HELP,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(given: bool) -> None:
    if given:
        typer.echo(f"randeigen {randeigen.__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    allow_open_files()


def allow_open_files() -> None:
    """Raise the soft limit, as far as the hard one lets it: each of thousands of files is opened once a pass.

    The process is the command's own; the library leaves limits alone.
    """
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in OPEN_FILES:
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        if soft == resource.RLIM_INFINITY or limit <= soft:
            return
        with suppress(ValueError, OSError):  # a system that allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return
