"""`randeigen attacks`: what the laboratory can be attacked with."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from randeigen.attacks.catalogue import ATTACKS
from randeigen.cli.choose import made, parameters
from randeigen.cli.show import console
from randeigen.cli.told import told


def build(text: str) -> Any:
    """The attack that `name` or `name:key=value,key=value` asks for; None for "none"."""
    makers = {"none": lambda: None, **{name: entry.make for name, entry in ATTACKS.items()}}
    return made(text, makers, "attack")


def attacks(
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout instead of a table.")] = False,
) -> None:
    """List the attacks for `randeigen simulate`: goal, what the attacker knows, parameters, source.

    Parameters are given after a colon: --attack mra:boost=5,share=0.3

    \b
    Examples:
      randeigen attacks
      randeigen attacks --json

    \b
    Exit codes:
      0 done
    """
    with told():
        found = [
            {
                "attack": name,
                "goal": entry.goal,
                "knows": entry.knows,
                "does": entry.does,
                "parameters": list(parameters(entry.make)),
                "paper": entry.paper,
            }
            for name, entry in ATTACKS.items()
        ]
        if as_json:
            print(json.dumps(found, indent=1))
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for title in ("attack", "goal", "knows", "does", "parameters", "paper"):
            table.add_column(title, overflow="fold", no_wrap=title in ("attack", "goal"))
        for line in found:
            cells = {**line, "parameters": ", ".join(line["parameters"])}
            table.add_row(*(str(cell) for cell in cells.values()))
        console().print(table)
