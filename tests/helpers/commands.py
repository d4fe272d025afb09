"""The command called within the test: its exit code, what it says, and that it never ends in a traceback."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from typer.testing import CliRunner, Result

from randeigen.cli.app import app


def cli(*arguments: object, columns: int = 200) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": str(columns)})
    crashed = result.exception is not None and not isinstance(result.exception, SystemExit)
    assert not crashed, result.exc_info
    assert "Traceback" not in result.output
    return result


def fails(code: int, *arguments: object, saying: str) -> None:
    result = cli(*arguments)
    told_this = result.stderr
    assert result.exit_code == code, (result.exit_code, result.output)
    assert re.search(saying, told_this), told_this
    assert result.stdout == ""
