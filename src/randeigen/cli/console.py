"""What the command prints: sentences on stdout, progress and errors on stderr, and exit codes.

No mistake of a caller ends in a traceback. Help and errors must not wait for rich, so it is imported where
something is drawn.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import typer

from randeigen.errors import MissingExtra, RandEigenError, TooManyCorrupt
from randeigen.own_code import own_line
from randeigen.types import Progress

if TYPE_CHECKING:
    from rich.console import Console

FIRST_LINE_SECONDS, LINE_SECONDS = 2.0, 10.0  # of progress where stderr is no terminal: first, and between
FOLDED_WIDTH = 9  # columns of text are at least this wide
PACKAGES = {  # by module: the package, and the extra that brings it
    "matplotlib": ("matplotlib", "plot"),
    "sklearn": ("scikit-learn", "experiments"),
    "torch": ("torch", "experiments"),
}
DIFFERS, MISTAKE, MISSING, CORRUPT, INTERRUPTED = 1, 2, 3, 4, 130


class UsageError(RandEigenError, ValueError):
    """The command was called in a way that cannot work."""


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn whatever is not a bug into its exit code."""
    try:
        yield
    except KeyboardInterrupt:
        print_error("Interrupted; nothing is left half-written.")
        raise typer.Exit(INTERRUPTED) from None
    except TooManyCorrupt as error:
        print_error(f"Error: {error}")
        raise typer.Exit(CORRUPT) from None
    except MissingExtra as error:
        print_error(f"Error: {error}")
        raise typer.Exit(MISSING) from None
    except RandEigenError as error:
        print_error(f"Error: {error}")
        raise typer.Exit(MISTAKE) from None
    except BrokenPipeError:
        raise  # whoever read our output has gone; typer ends quietly
    except OSError as error:
        path = f"{error.filename}: " if error.filename else ""
        print_error(f"Error: {path}{error.strerror or error}")
        raise typer.Exit(MISTAKE) from None
    except MemoryError:
        print_error("Error: not enough memory to hold the answer.")
        raise typer.Exit(MISTAKE) from None
    except Exception as error:
        if (line := own_line(error)) is None:
            raise  # a bug of ours
        print_error(f"Error: {line}")
        raise typer.Exit(MISTAKE) from None


def require(what: str, *modules: str) -> None:
    """Refuse before any work what an optional dependency is missing for."""
    for module in modules:
        try:
            is_installed = find_spec(module) is not None
        except (ImportError, ValueError):  # it is there and no module
            is_installed = False
        if not is_installed:
            package, extra = PACKAGES[module]
            raise MissingExtra(f"{what} needs {package}: pip install 'randeigen[{extra}]'")


def print_error(text: str) -> None:
    """One line on stderr."""
    print(plain(text), file=sys.stderr)


def plain(text: str) -> str:
    """Text of strangers made fit for a terminal: escapes, newlines and bidi marks are spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def console() -> Console:
    """Stdout, as plain text: file names come from strangers, so nothing in them is markup."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
    return Console(markup=False, emoji=False, highlight=False, width=width, soft_wrap=False)


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Progress | None]:
    """A progress bar on stderr for each stage; where that is no terminal, now and then a line."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    screen = Console(stderr=True, markup=False, highlight=False)
    if quiet or not screen.is_terminal:
        yield None if quiet else _progress_lines()
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
    """A function that shows what is being done now, on stderr; where that is no terminal, now and then."""
    from rich.console import Console

    screen = Console(stderr=True, markup=False, highlight=False)
    if not screen.is_terminal:
        due = _due()
        yield lambda text: print_error(text) if due() else None
        return
    with screen.status("") as status:
        yield status.update


def print_table(titles: Sequence[str], lines: Sequence[Sequence[str]], names: Collection[str]) -> None:
    """A table on stdout; columns of `names` may be folded, the others hold numbers.

    Where it does not fit, every line is a block of its own: cut numbers would be wrong numbers.
    """
    from rich import box
    from rich.table import Table

    screen = console()
    heads = [title if title in names else title.replace(" ", "\n", 1) for title in titles]
    least = [
        FOLDED_WIDTH if title in names else max(len(text) for text in (*head.split("\n"), *column))
        for title, head, column in zip(titles, heads, zip(*lines, strict=True), strict=True)
    ]
    if sum(least) + 3 * len(least) > screen.width:
        wide = max(map(len, titles))
        for line in lines:
            screen.print()
            for title, text in zip(titles, line, strict=True):
                screen.print(f"{title:>{min(wide, screen.width // 2)}}  {plain(text)}")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title, head in zip(titles, heads, strict=True):
        if title in names:
            table.add_column(head, overflow="fold", min_width=FOLDED_WIDTH)
        else:
            table.add_column(head, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    screen.print(table)


def _progress_lines() -> Progress:
    """Progress as lines, each with the time that is left."""
    began: dict[str, tuple[float, Callable[[], bool]]] = {}

    def progress(stage: str, done: int, total: int) -> None:
        start, due = began.setdefault(stage, (time.monotonic(), _due()))
        if done and due():
            left = (time.monotonic() - start) / done * (total - done)
            print_error(f"{stage}: {done:,} of {total:,}, about {left:.0f} s left")

    return progress


def _due() -> Callable[[], bool]:
    """Whether a line is to be printed: after some seconds for the first time, then every so often."""
    following = time.monotonic() + FIRST_LINE_SECONDS

    def due() -> bool:
        nonlocal following
        if time.monotonic() < following:
            return False
        following = time.monotonic() + LINE_SECONDS
        return True

    return due


def print_line(text: str) -> None:
    """A sentence on stdout; lines are broken on terminals only."""
    out = console()
    out.print(plain(text), soft_wrap=not out.is_terminal)


def short(value: float) -> str:
    """A number with three significant digits."""
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.2e}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}" if value else "0"


def count(n: int, thing: str) -> str:
    """`3 files`, but `1 file`."""
    return f"{n:,} {thing}{'' if n == 1 else 's'}"


def number(value: float) -> float | None:
    """A JSON number: what is not finite becomes null, which for a bound means that there is none."""
    return float(value) if math.isfinite(value) else None
