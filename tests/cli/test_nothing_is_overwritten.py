"""`simulate`, `train` and `sweep` refuse to overwrite what is not theirs, before anything is trained."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from typer.testing import CliRunner, Result

from randeigen.cli.app import app
from randeigen.lab import Sweep, centralized, federated, run_sweep

SIMULATE = ("simulate", "--rounds", "1", "--clients", "5", "--epochs", "1", "--attack", "mra")
SIMULATE = (*SIMULATE, "--rule", "mean", "--rule", "median")
TRAIN = ("train", "--task", "digits", "--epochs", "1", "--attack", "trigger")
TRAIN = (*TRAIN, "--defence", "none", "--defence", "suspects")
SWEEP = ("sweep", "--rounds", "1", "--clients", "5", "--rule", "mean", "--rule", "median")
COMMANDS = {"simulate": SIMULATE, "train": TRAIN, "sweep": SWEEP}
SECOND = {"simulate": "median", "train": "suspects", "sweep": "median"}  # of its runs


def call(command: str, out: Path, *words: str) -> Result:
    return CliRunner().invoke(app, [*COMMANDS[command], "--out", str(out), *words])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a call of this command that was done."""
    folders: dict[str, Path] = {}

    def of(command: str) -> Path:
        if command not in folders:
            folders[command] = tmp_path_factory.mktemp(command)
            done = call(command, folders[command])
            assert done.exit_code == 0, done.output
        return folders[command]

    return of


@pytest.fixture
def refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a command says of a file at this name, which stays as it is; nothing is trained."""

    def refuse(command: str, name: str, content: bytes, *words: str) -> str:
        def trained(*_: object, **__: object) -> None:
            raise AssertionError("something was trained")

        monkeypatch.setattr(federated.Federation, "round", trained)
        monkeypatch.setattr(centralized, "CentralizedTrainer", trained)
        (tmp_path / name).write_bytes(content)
        for more in (words, (*words, "--fresh")) if command != "sweep" else (words,):
            done = call(command, tmp_path, *more)
            assert done.exit_code == 2, done.output or done.exception
            assert "Traceback" not in done.output
            assert os.listdir(tmp_path) == [name]
            assert (tmp_path / name).read_bytes() == content
        return " ".join(done.output.split())

    return refuse


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"my notes", "cannot be read as one"),
        (b"[" * 100_000, "cannot be read as one"),
        (b'{"my": "notes"}', "cannot be read as one"),
        (b'{"spec": {"eps": 1%s}, "history": [], "versions": {}}' % (b"0" * 400), "cannot be read as one"),
    ],
    ids=["text", "deep", "another object", "a number too large"],
)
def test_a_strangers_file_with_a_records_name_is_refused_before_training(
    finished: Callable[[str], Path], refuses: Callable[..., str], command: str, content: bytes, said: str
) -> None:
    (path,) = (one for one in finished(command).glob("*.json") if SECOND[command] in one.name)
    told = refuses(command, path.name, content)
    assert said in told
    assert path.name in "".join(told.split())
    assert "move or delete it, or give another folder: nothing is overwritten" in told


@pytest.mark.parametrize("command", COMMANDS)
def test_another_runs_record_under_this_name_is_refused_with_what_differs(
    finished: Callable[[str], Path], refuses: Callable[..., str], command: str
) -> None:
    (path,) = (one for one in finished(command).glob("*.json") if SECOND[command] in one.name)
    content = json.loads(path.read_text())
    content["spec"]["seed"] = 7
    assert "its spec says seed=7 where the run has 0" in refuses(
        command, path.name, json.dumps(content).encode()
    )


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["text", "array", "another run"])
def test_a_strangers_file_with_a_checkpoints_name_is_refused_before_training(
    finished: Callable[[str], Path], refuses: Callable[..., str], tmp_path: Path, command: str, kind: str
) -> None:
    first, second = sorted(finished(command).glob("*.json"), key=lambda path: SECOND[command] in path.name)
    made = tmp_path.parent / f"{tmp_path.name}.npz"
    if kind == "text":
        made.write_bytes(b"my notes")
    elif kind == "array":
        np.savez(made, mine=np.ones(3))
    else:
        content = json.loads(first.read_text())
        told = json.dumps([content["spec"], content["history"]]).encode()
        np.savez(made, told=np.frombuffer(told, np.uint8), weights=np.ones(3))
    said = refuses(command, f"{second.stem}.checkpoint.npz", made.read_bytes())
    assert ("of another run" if kind == "another run" else "is not the checkpoint of a run") in said
    assert "move or delete it" in said


def test_a_folder_with_a_checkpoints_name_is_refused(finished: Callable[[str], Path], tmp_path: Path) -> None:
    (path,) = (one for one in finished("simulate").glob("*.json") if "median" in one.name)
    (tmp_path / f"{path.stem}.checkpoint.npz").mkdir()
    done = call("simulate", tmp_path)
    assert done.exit_code == 2, done.exception
    assert "it is a folder" in " ".join(done.output.split())
    assert len(os.listdir(tmp_path)) == 1


PICTURE = b"\x89PNG\r\n\x1a\nmine"


@pytest.mark.parametrize(
    ("command", "name", "content"),
    [
        *((command, "report.html", b"<html>mine</html>") for command in ("simulate", "train")),
        *(
            (c, f"{name}.png", PICTURE)
            for c in ("simulate", "train")
            for name in ("accuracy", "asr", "weight")
        ),
        ("simulate", "trigger.png", PICTURE),
        ("simulate", "clients-*", PICTURE),
        ("train", "gradients-*", PICTURE),
        ("sweep", "sweep.html", b"<html>mine</html>"),
    ],
)
def test_a_strangers_page_or_picture_is_refused_before_training(
    finished: Callable[[str], Path], refuses: Callable[..., str], command: str, name: str, content: bytes
) -> None:
    if name.endswith("*"):
        name = next(one.name for one in finished(command).glob(f"{name}.png") if SECOND[command] in one.name)
    told = refuses(command, name, content)
    assert name in "".join(told.split())
    assert "nothing in it says that randeigen made it; move or delete it" in told


@pytest.mark.parametrize("command", COMMANDS)
def test_own_records_pages_and_pictures_are_used_and_drawn_again(
    finished: Callable[[str], Path], command: str
) -> None:
    out = finished(command)
    before = {path: path.read_bytes() for path in out.glob("*.json")}
    again = call(command, out)
    assert again.exit_code == 0, again.output
    assert again.output.count("already there") == 2
    assert {path: path.read_bytes() for path in out.glob("*.json")} == before


def test_an_edited_record_is_named_and_fresh_replaces_it(
    finished: Callable[[str], Path], tmp_path: Path
) -> None:
    (path,) = (one for one in finished("simulate").glob("*.json") if "median" in one.name)
    content = json.loads(path.read_text())
    content["history"] *= 2
    copy = tmp_path / path.name
    copy.write_text(json.dumps(content))
    told = call("simulate", tmp_path)
    assert told.exit_code == 2
    assert "should hold rounds 1 to 1 and has 2 rounds" in " ".join(told.output.split())
    assert os.listdir(tmp_path) == [path.name]
    assert call("simulate", tmp_path, "--fresh").exit_code == 0
    assert len(json.loads(copy.read_text())["history"]) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_where_nothing_can_be_written_nothing_is_trained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    told = call(command, tmp_path / "new" / "out")
    assert told.exit_code == 2
    assert "nothing can be written in" in " ".join(told.output.split())
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        told = call(command, out)
        assert told.exit_code == 2
        assert "is a file; give a folder" in " ".join(told.output.split())
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("name", ["sweep.html", "one.json", "one.checkpoint.npz"])
def test_a_table_cannot_have_the_name_of_what_a_sweep_writes_itself(tmp_path: Path, name: str) -> None:
    told = call("sweep", tmp_path / "out", "--csv", str(tmp_path / "out" / name))
    assert told.exit_code == 2
    assert "give FILE.csv" in " ".join(told.output.split())
    assert not (tmp_path / "out").exists()


def test_finished_runs_are_found_in_a_folder_that_nothing_can_be_written_to(
    finished: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = Sweep({"rounds": 1, "clients": 5, "rule": ["mean", "median"]}).configs()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert len(run_sweep(configs, finished("sweep"))) == 2


def test_a_strangers_table_is_refused_and_an_own_one_replaced(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("name,size\nmine,3\n")
    told = call("sweep", tmp_path / "out", "--csv", str(table))
    assert told.exit_code == 2
    assert "is no table of a sweep; move or delete it" in " ".join(told.output.split())
    assert not (tmp_path / "out").exists()
    assert table.read_text() == "name,size\nmine,3\n"
    table.unlink()
    for _ in range(2):
        assert call("sweep", tmp_path / "out", "--csv", str(table)).exit_code == 0


def test_a_record_that_another_process_made_meanwhile_stays(
    finished: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = (one for one in finished("simulate").glob("*.json") if "median" in one.name)
    whole = federated.Federation.round

    def slow(self: federated.Federation, *words: Any) -> Any:
        if self.spec.rule == "median":
            (tmp_path / path.name).write_bytes(path.read_bytes())
        return whole(self, *words)

    monkeypatch.setattr(federated.Federation, "round", slow)
    done = call("simulate", tmp_path)
    assert done.exit_code == 0, done.output
    assert "another process made its record meanwhile" in done.output
    assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    assert not list(tmp_path.glob("*.npz")), "a checkpoint was left"
