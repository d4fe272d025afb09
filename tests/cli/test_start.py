"""The command starts quickly: it imports what it runs, and the laboratory only where that is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from commands import cli
from randeigen.cli.app import COMMANDS

LOADED = """
import contextlib, io, sys
import randeigen
core = set(sys.modules)
from randeigen.cli import main
sys.argv[0] = "randeigen"
code = 0
with contextlib.redirect_stdout(io.StringIO()):
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
assert code == 0, code
print(*sorted(set(sys.modules) - core))
"""


def loaded(*words: object) -> set[str]:
    """Modules that a call of the command loads beyond what `import randeigen` does."""
    call = [sys.executable, "-c", LOADED, *map(str, words)]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def rooms(modules: set[str]) -> set[str]:
    return {module.split(".")[1] for module in modules if module.startswith("randeigen.")}


@pytest.fixture
def aggregation(tmp_path: Path) -> list[object]:
    for row in range(6):
        np.save(tmp_path / f"{row}.npy", np.random.default_rng(row).standard_normal(8))
    into = tmp_path / "out"
    into.mkdir()
    return ["aggregate", tmp_path, "--f", 1, "--out", into / "mean.npy", "--audit", into / "audit.json"]


def test_aggregate_and_replay_load_no_laboratory(aggregation: list[object]) -> None:
    for words in (aggregation, ["replay", aggregation[-1]]):
        modules = loaded(*words)
        assert rooms(modules) <= {"cli", "provenance", "registry"}
        assert len([module for module in modules if module.startswith("randeigen.")]) <= 11
        assert not {"torch", "matplotlib", "sklearn", "scipy", "studies"} & {m.split(".")[0] for m in modules}


@pytest.mark.parametrize(
    "words", [("--help",), ("aggregate", "--help"), ("rules",), ("rules", "krum")], ids=str
)
def test_help_and_the_list_of_rules_load_no_laboratory(words: tuple[str, ...]) -> None:
    assert not rooms(loaded(*words)) & {"lab", "attacks", "torch", "plotting"}


@pytest.mark.parametrize("command", ["simulate", "train", "attacks"])
def test_help_of_the_laboratory_loads_no_torch(command: str) -> None:
    modules = loaded(command, "--help")
    assert "torch" not in modules
    assert "matplotlib" not in modules


def test_help_lists_every_command_and_each_exists() -> None:
    listed = cli("--help").stdout.partition("Commands:")[2]
    for command, summary in COMMANDS.items():
        assert f"  {command} " in listed
        assert summary in listed
        assert f"Usage: root {command}" in cli(command, "--help").stdout


def test_a_mistyped_command_is_answered_with_the_nearest() -> None:
    mistyped = cli("simulat")
    assert mistyped.exit_code == 2
    assert "Did you mean 'simulate'" in mistyped.stderr
