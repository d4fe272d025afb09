"""How it looks: the table, the words under it, the bar while one waits."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from randeigen.cli.aggregate_files import folder_of
from randeigen.cli.exit_codes import plain
from randeigen.cli.outcomes import FileOutcome, certificate, count, price, short
from randeigen.plotting import HALF, KEPT, LESS, NOTHING, OUT
from randeigen.types import Aggregate, Progress

MAX_FILES_LISTED = 20  # files shown one by one without --all
MOST = 40  # of the left out and down-weighted
COLOURS = {KEPT: "", LESS: "yellow", OUT: "red"}
RANK = {OUT: 0, LESS: 1, KEPT: 2}


def console() -> Console:
    """Stdout, as plain text: names are strangers' text, so nothing in them is markup."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
    return Console(markup=False, emoji=False, highlight=False, width=width, soft_wrap=False)


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Progress | None]:
    """A bar on stderr for each stage, if a person is watching."""
    screen = Console(stderr=True, markup=False, highlight=False)
    if quiet or not screen.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description:>14}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bars(*columns, console=screen, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        yield progress


@contextmanager
def spinner() -> Iterator[Callable[[str], None]]:
    """What is being done right now, on stderr, if a person is watching."""
    screen = Console(stderr=True, markup=False, highlight=False)
    if not screen.is_terminal:
        yield lambda text: None
        return
    with screen.status("") as status:
        yield status.update


def print_line(text: str) -> None:
    """A sentence on stdout; lines are broken for people only."""
    out = console()
    out.print(plain(text), soft_wrap=not out.is_terminal)


def show(
    result: Aggregate, paths: Sequence[str], fates: Sequence[FileOutcome], rule: str, everything: bool
) -> None:
    """The whole verdict on stdout."""
    console().print(_table(paths, fates, everything))
    print_line(_counted(fates))
    print_line(certificate(result))
    print_line(price(result))
    verdict = result.verdict
    told = f"Rule {rule}, f = {result.f} of {len(paths)}"
    if verdict.rounds:
        told += f"; measured {count(verdict.rounds, 'time')}"
    print_line(f"{told}; stopped because {verdict.stop}. Seed {result.seed}.")
    if verdict.scale != 1:
        print_line(
            f"The weighted mean was shortened to {short(verdict.scale)} of its length, as the rule clips."
        )
    for note in verdict.notes:
        print_line(f"Note: {note}")
    for group in verdict.cut_together:
        base, named = folder_of(paths), group[:MAX_FILES_LISTED]
        names = [f"{row} is {os.path.relpath(os.path.abspath(paths[row]), base)}" for row in named]
        print_line(
            f"Rows are the files, counted from 0: {', '.join(names)}{'.' if named == group else ', ...'}"
        )


def _table(paths: Sequence[str], fates: Sequence[FileOutcome], everything: bool) -> Table:
    order = sorted(range(len(paths)), key=lambda row: (RANK[fates[row].fate], row))
    if not everything and len(paths) > MAX_FILES_LISTED:
        order = [row for row in order if fates[row].fate != KEPT][:MOST]
    base = folder_of(paths)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("file", overflow="fold", ratio=None, min_width=12)
    table.add_column("weight", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("why", overflow="fold")
    for row in order:
        fate, name = fates[row], os.path.relpath(os.path.abspath(paths[row]), base)
        style = COLOURS[fate.fate]
        table.add_row(
            Text(plain(name)), _share(fate.share), Text(fate.fate, style=style), Text(plain(fate.reason))
        )
    if not everything and (rest := [fates[row] for row in set(range(len(paths))) - set(order)]):
        shares = [fate.share for fate in rest]
        lightest, heaviest = _share(min(shares)), _share(max(shares))
        between = lightest if lightest == heaviest else f"{lightest} to {heaviest}"
        name = count(len(rest), "other") if order else f"all {len(rest):,} files"
        table.add_row(name, "", "/".join(sorted({fate.fate for fate in rest})), between)
    return table


def _share(share: float) -> str:
    return "0" if share == 0 else "<0.01×" if share < 0.005 else f"{share:.2f}×"


def _counted(fates: Sequence[FileOutcome]) -> str:
    counts = {word: sum(fate.fate == word for fate in fates) for word in RANK}
    said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"{said}. 1× is an even share; below {HALF}× is down-weighted, below {NOTHING}× left out."
