"""Exit codes, and errors as one line on stderr: no mistake of a caller ends in a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from randeigen.errors import MissingExtra, RandEigenError, TooManyCorrupt

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


def print_error(text: str) -> None:
    """One line on stderr."""
    print(plain(text), file=sys.stderr)


def plain(text: str) -> str:
    """Text of strangers made fit for a terminal: escapes, newlines and bidi marks are spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
