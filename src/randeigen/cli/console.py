"""What the command prints: sentences on stdout, progress and errors on stderr, and exit codes.

No mistake of a caller ends in a traceback. Help and errors must not wait for rich, so it is imported where
something is drawn.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from randeigen.errors import MissingExtra, RandEigenError, TooManyCorrupt
from randeigen.own_code import own_line
from randeigen.types import Progress

if TYPE_CHECKING:
    from rich.console import Console

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
    """A progress bar on stderr for each stage, if stderr is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

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
    from rich.console import Console

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
