"""`randeigen attacks`: the attacks of the laboratory."""

from __future__ import annotations

import json
from itertools import groupby
from operator import itemgetter
from typing import Annotated

import typer
from rich.text import Text

from randeigen.attacks import ATTACKS, POISONS
from randeigen.cli.console import UsageError, console, exit_on_error, print_error, print_line, require
from randeigen.cli.options import TableAsJson
from randeigen.cli.rule_listing import wrapped
from randeigen.registry import parameters

WIDTH, INDENT = 80, 17  # columns


def attacks(
    as_json: TableAsJson = False,
    pictures: Annotated[
        str | None, typer.Option(metavar="DIR", help="Draw every attack into DIR instead.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="With --pictures: this attack alone; repeat it.")
    ] = None,
) -> None:
    """List the attacks on `randeigen simulate` and `randeigen train`.

    Each with its goal, what the attacker knows, its parameters and its source. Parameters are given after a
    colon: --attack mra:boost=5,share=0.3

    With --pictures, DIR gets for every attack its clients in the plane of the top two principal directions
    of a round and what it stamps on images, if it does; clients.png and triggers.png show all.
    That trains federations, one on digits and one on sentences, and takes a minute or two.

    \b
    Examples:
      randeigen attacks
      randeigen attacks --json
      randeigen attacks --pictures attack-pictures

    \b
    Exit codes:
      0 done, 2 a mistake in the call, 3 an optional dependency is missing, 130 interrupted
    """
    with exit_on_error():
        if pictures is not None:
            require("attacks --pictures", "torch", "matplotlib", "sklearn")
            from randeigen.lab.attack_gallery import draw_gallery

            if unknown := [name for name in only or () if name not in ATTACKS]:
                known = ", ".join(ATTACKS)
                raise UsageError(
                    f"there is no attack {unknown[0]!r} on federations to draw; known are {known}."
                )
            files = draw_gallery(pictures, only or tuple(ATTACKS), print_error)
            print_line(
                f"{len(files)} pictures are in {pictures}; clients.png and triggers.png show all at once."
            )
            return
        if only:
            raise UsageError("--only goes with --pictures; without it all attacks are listed.")
        listed = [
            {
                "attack": name,
                "command": command,
                "goal": entry.goal,
                "knows": entry.knows,
                "does": entry.does,
                "parameters": list(parameters(entry.make)),
                "paper": entry.paper,
            }
            for command, known in (("simulate", ATTACKS), ("train", POISONS))
            for name, entry in known.items()
        ]
        if as_json:
            print(json.dumps(listed, indent=1))
            return
        screen, blank = console(), " " * INDENT
        for command, lines in groupby(listed, itemgetter("command")):
            screen.print(Text(f"randeigen {command} --attack", style="bold"))
            for line in lines:
                head = f"{line['attack']:<{INDENT}}{line['does']} ({line['goal']})"
                takes = ", ".join(line["parameters"]) or "nothing"
                more = f"{blank}knows {line['knows']} · takes {takes} · {line['paper']}"
                width = min(WIDTH, screen.width)
                screen.print(Text(wrapped(head, width, blank)))
                screen.print(Text(wrapped(more, width, blank), style="dim"))
