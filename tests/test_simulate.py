"""`randeigen simulate` tells what happened, writes it down, draws it, and goes on when interrupted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from typer.testing import CliRunner, Result

from randeigen.attacks.catalogue import ATTACKS
from randeigen.cli import attacks
from randeigen.cli.app import app
from randeigen.learn import Laboratory

PNG = b"\x89PNG\r\n\x1a\n"
QUICK = ("--rounds", "2", "--clients", "10", "--epochs", "1")


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def simulate(out: Path, *words: str) -> Result:
    return call("simulate", *QUICK, "--out", str(out), *words)


def records(out: Path) -> dict[str, Any]:
    found = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    return {record["spec"]["rule"]: record for record in found}


def test_one_record_per_rule_with_all_that_is_promised(tmp_path: Path) -> None:
    told = simulate(
        tmp_path, "--attack", "mra:boost=2", "--rule", "mean", "--rule", "randeigen", "--seed", "3"
    )
    assert told.exit_code == 0, told.output
    found = records(tmp_path)
    assert set(found) == {"mean", "randeigen"}
    for rule, record in found.items():
        asked = {"task": "digits", "attack": "mra:boost=2", "rule": rule, "eps": 0.2, "rounds": 2, "seed": 3}
        assert asked.items() <= record["spec"].items()
        assert 0 <= record["accuracy"] <= 1
        assert 0 <= record["asr"] <= 1
        assert [moment["round"] for moment in record["history"]] == [1, 2]
        for moment in record["history"]:
            assert moment["weight_honest"] + moment["weight_corrupt"] == pytest.approx(1)
            assert moment["certificate"] > 0
            assert moment["seconds"] > 0
        assert record["accuracy"] == record["history"][-1]["accuracy"]
        assert {"randeigen", "torch", "numpy", "python"} <= set(record["versions"])
    for name in ("accuracy", "asr", "weight", "trigger"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)
    assert len(list(tmp_path.glob("clients-*.png"))) == 2
    assert not list(tmp_path.glob("*.npz")), "a finished run leaves no checkpoint"
    assert "round   2/2" in told.output
    assert "weight to liars" in told.output


def test_success_is_null_where_nothing_particular_is_wanted(tmp_path: Path) -> None:
    assert simulate(tmp_path, "--attack", "hidra", "--rule", "mean", "--rounds", "1").exit_code == 0
    assert records(tmp_path)["mean"]["asr"] is None
    assert not (tmp_path / "asr.png").exists()


def test_what_is_done_is_not_done_again_unless_asked(tmp_path: Path) -> None:
    words = ("--attack", "zero", "--rule", "mean")
    assert simulate(tmp_path, *words).exit_code == 0
    first = records(tmp_path)
    again = simulate(tmp_path, *words)
    assert "already there" in again.output
    assert records(tmp_path) == first
    assert "already there" not in simulate(tmp_path, *words, "--fresh").output
    assert "already there" not in simulate(tmp_path, *words, "--eps", "0.1").output


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--attack", "noise", "--rule", "randeigen")
    whole = Laboratory.round

    def tired(self: Laboratory, t: int, *more: Any) -> Any:
        if t == 2:
            raise KeyboardInterrupt
        return whole(self, t, *more)

    with monkeypatch.context() as patch:
        patch.setattr(Laboratory, "round", tired)
        stopped = simulate(tmp_path / "one", *words)
    assert stopped.exit_code == 130
    went_on = simulate(tmp_path / "one", *words)
    assert went_on.exit_code == 0
    assert "round   1/2" not in went_on.output
    assert simulate(tmp_path / "two", *words).exit_code == 0
    one, two = (records(tmp_path / name)["randeigen"] for name in ("one", "two"))
    for moment in (*one["history"], *two["history"]):
        del moment["seconds"]
    assert one == two


def test_the_records_can_be_had_on_stdout(tmp_path: Path) -> None:
    told = simulate(tmp_path, "--attack", "none", "--rule", "mean", "--json", "--partition", "dirichlet")
    found = json.loads(told.stdout)
    assert found[0]["spec"]["partition"] == "dirichlet"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--attack", "hydra"), "did you mean 'hidra'"),
        (("--attack", "mra:bost=2"), "it takes boost="),
        (("--task", "cifar"), "there is no task 'cifar'"),
        (("--rule", "krumm"), "did you mean 'krum'"),
        (("--eps", "0.6"), "[0, 0.5)"),
        (("--server", "lamb"), "there is no server"),
        (("--device", "abacus"), "is not known"),
        (("--clients", "5000"), "cannot share"),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else "",
)
def test_mistakes_are_told_in_one_line(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    told = simulate(tmp_path, *words)
    assert told.exit_code == 2
    assert said in told.output
    assert "Traceback" not in told.output


def test_the_command_loads_torch_only_to_train() -> None:
    code = "import sys, randeigen.cli.app, randeigen.attacks.catalogue; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"


def test_the_list_of_attacks_says_what_each_is() -> None:
    told = call("attacks", "--json")
    found = {line["attack"]: line for line in json.loads(told.stdout)}
    assert set(found) == set(ATTACKS)
    assert {line["goal"] for line in found.values()} == {"backdoor", "targeted", "untargeted"}
    assert found["mra"]["parameters"] == ["boost", "share", "target"]
    assert all(line["knows"] and line["paper"] for line in found.values())
    assert "hidra" in call("attacks").stdout


@pytest.mark.parametrize("name", ATTACKS)
def test_every_listed_attack_can_be_made(name: str) -> None:
    made = attacks.build(name)
    assert hasattr(made, "craft") or hasattr(made, "updates")
    assert attacks.build("none") is None
