"""Options that several commands have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from randeigen.types import GeometryKind, OnExcess

Updates = Annotated[
    list[str],
    typer.Argument(
        metavar="UPDATES...", help="Files (.safetensors, .npz, .npy), folders of them, quoted patterns."
    ),
]
Eps = Annotated[
    float | None, typer.Option(metavar="X", help="Fraction of files that may be Byzantine, in [0, 0.5).")
]
NUMBER = typer.Option("--f", metavar="N", help="Their number, instead of --eps.")
PARTS = typer.Option(help="What rules judge on its own: whole, tensor, rows:NAME, columns:N, hybrid.")
Corrupt = Annotated[int | None, NUMBER]
SecretSeed = Annotated[
    int | None, typer.Option(min=0, max=2**128 - 1, metavar="N", help="Repeats a call; random without it.")
]
Geometry = Annotated[GeometryKind, typer.Option(help="How files are measured.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same run on a CPU.")]
Device = Annotated[str, typer.Option(help="cpu, or cuda where torch has one.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Ignore what an earlier run left in DIR.")]
TableAsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout instead of a table.")]
RecordsAsJson = Annotated[bool, typer.Option("--json", help="The records on stdout instead of a table.")]


@dataclass(frozen=True)
class AggregateOptions:
    """Everything but the files that decides a verdict."""

    rule: str  # as --rule spells it
    eps: float | None
    f: int | None
    seed: int | None
    geometry: GeometryKind
    on_excess: OnExcess
    partition: str = "whole"
    counts: tuple[Any, ...] | None = None  # what each file claims for itself, in the order of the files


@dataclass(frozen=True)
class Output:
    """Where the aggregate goes and how it is reported: options of which none changes the verdict."""

    out: str
    audit: str | None
    as_json: bool
    quiet: bool
    everything: bool  # whether every file is shown in the table
    force: bool  # whether files that exist are replaced
