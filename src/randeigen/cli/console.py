"""What the command prints: tables and sentences on stdout, progress on stderr."""

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
from randeigen.outcomes import DOWN_WEIGHTED, DOWN_WEIGHTED_BELOW, KEPT, LEFT_OUT, LEFT_OUT_BELOW
from randeigen.types import Aggregate, Progress

MAX_FILES_LISTED = 20  # more files than this are not shown one by one without --all
MAX_EXCEPTIONS_LISTED = 40  # left out and down-weighted files that are shown even then
COLOURS = {KEPT: "", DOWN_WEIGHTED: "yellow", LEFT_OUT: "red"}
RANK = {LEFT_OUT: 0, DOWN_WEIGHTED: 1, KEPT: 2}


def console() -> Console:
    """Stdout, as plain text: file names come from strangers, so nothing in them is markup."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
    return Console(markup=False, emoji=False, highlight=False, width=width, soft_wrap=False)


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Progress | None]:
    """A progress bar on stderr for each stage, if stderr is a terminal."""
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
    """A function that shows what is being done now, on stderr, if that is a terminal."""
    screen = Console(stderr=True, markup=False, highlight=False)
    if not screen.is_terminal:
        yield lambda text: None
        return
    with screen.status("") as status:
        yield status.update


def print_line(text: str) -> None:
    """A sentence on stdout; lines are broken on terminals only."""
    out = console()
    out.print(plain(text), soft_wrap=not out.is_terminal)


def show(
    result: Aggregate, paths: Sequence[str], files: Sequence[FileOutcome], rule: str, everything: bool
) -> None:
    """The whole verdict on stdout."""
    console().print(_table(paths, files, everything))
    print_line(_counted(files))
    print_line(certificate(result))
    print_line(price(result))
    verdict = result.verdict
    how = f"Rule {rule}, f = {result.f} of {len(paths)}"
    if verdict.rounds:
        how += f"; measured {count(verdict.rounds, 'time')}"
    print_line(f"{how}; stopped because {verdict.stop}. Seed {result.seed}.")
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


def _table(paths: Sequence[str], files: Sequence[FileOutcome], everything: bool) -> Table:
    order = sorted(range(len(paths)), key=lambda row: (RANK[files[row].fate], row))
    if not everything and len(paths) > MAX_FILES_LISTED:
        order = [row for row in order if files[row].fate != KEPT][:MAX_EXCEPTIONS_LISTED]
    base = folder_of(paths)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("file", overflow="fold", ratio=None, min_width=12)
    table.add_column("weight", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("why", overflow="fold")
    for row in order:
        file, name = files[row], os.path.relpath(os.path.abspath(paths[row]), base)
        style = COLOURS[file.fate]
        table.add_row(
            Text(plain(name)), _share(file.share), Text(file.fate, style=style), Text(plain(file.reason))
        )
    if not everything and (rest := [files[row] for row in set(range(len(paths))) - set(order)]):
        shares = [file.share for file in rest]
        lightest, heaviest = _share(min(shares)), _share(max(shares))
        between = lightest if lightest == heaviest else f"{lightest} to {heaviest}"
        name = count(len(rest), "other") if order else f"all {len(rest):,} files"
        table.add_row(name, "", "/".join(sorted({file.fate for file in rest})), between)
    return table


def _share(share: float) -> str:
    return "0" if share == 0 else "<0.01×" if share < 0.005 else f"{share:.2f}×"


def _counted(files: Sequence[FileOutcome]) -> str:
    counts = {word: sum(file.fate == word for file in files) for word in RANK}
    counted = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    limits = f"below {DOWN_WEIGHTED_BELOW}× is {DOWN_WEIGHTED}, below {LEFT_OUT_BELOW}× {LEFT_OUT}"
    return f"{counted}. 1× is an even share; {limits}."
