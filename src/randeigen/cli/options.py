"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same run on a CPU.")]
Device = Annotated[str, typer.Option(help="cpu, or cuda where torch has one.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Ignore what an earlier run left in DIR.")]
TableAsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout instead of a table.")]
RecordsAsJson = Annotated[bool, typer.Option("--json", help="The records on stdout instead of a table.")]
