"""The command `randeigen`: each subcommand is one call into a room below."""

from __future__ import annotations

import sys

NEEDS = "The randeigen command needs typer and rich: pip install 'randeigen[cli]'"


def main() -> None:
    """Run the command line; exits with a code that --help explains."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError:
        print(NEEDS, file=sys.stderr)
        raise SystemExit(3) from None
    from randeigen.cli.app import app

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that knows no × gets an escape, not a traceback
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="randeigen")
