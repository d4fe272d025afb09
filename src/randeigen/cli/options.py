"""Options that several commands have, and the flags that were renamed."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from randeigen.cli.exit_codes import print_error

Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same run on a CPU.")]
Device = Annotated[str, typer.Option(help="cpu, or cuda where torch has one.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Ignore what an earlier run left in DIR.")]
TableAsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout instead of a table.")]
RecordsAsJson = Annotated[bool, typer.Option("--json", help="The records on stdout instead of a table.")]

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
