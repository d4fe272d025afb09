"""`randeigen sweep` runs every combination once, goes on where it stopped, and ends in a table and a page."""

from __future__ import annotations

import csv
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")
pytest.importorskip("sklearn")

from typer.testing import CliRunner, Result

from randeigen.cli.app import app
from randeigen.errors import BadFile, BadParameter, MissingExtra
from randeigen.lab import FederatedConfig, Sweep, load, run_sweep
from randeigen.lab import sweep as sweeping
from randeigen.lab.chart_axes import Axis
from randeigen.lab.charts import Series, chart, histogram
from randeigen.lab.sweep_page import differing, grouped
from randeigen.lab.tidy import interval, records

QUICK = ("--rounds", "1", "--clients", "5")


def sweep(out: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["sweep", *QUICK, "--out", str(out), *words])


def test_every_combination_has_a_record_and_none_is_run_twice(tmp_path: Path) -> None:
    words = (
        "--attack",
        "none",
        "--attack",
        "mra",
        "--rule",
        "mean",
        "--rule",
        "randeigen",
        "--eps",
        "0.2",
        "--seed",
        "0",
    )
    first = sweep(tmp_path, *words, "--seed", "1", "--csv", str(tmp_path / "runs.csv"))
    assert first.exit_code == 0, first.output
    files = {path: path.read_text() for path in tmp_path.glob("*.json")}
    assert len(files) == 8
    rows = list(csv.DictReader((tmp_path / "runs.csv").read_text().splitlines()))
    assert {(row["attack"], row["rule"], row["seed"]) for row in rows} == {
        (attack, rule, seed) for attack in ("none", "mra") for rule in ("mean", "randeigen") for seed in "01"
    }
    again = sweep(tmp_path, *words, "--eps", "0.4")
    assert again.exit_code == 0, again.output
    assert again.output.count("already there") == 4
    assert all(path.read_text() == text for path, text in files.items()), "a record was overwritten"
    assert len(list(tmp_path.glob("*.json"))) == 12
    page = (tmp_path / "sweep.html").read_text()
    assert "http" not in page
    assert page.count("<svg") == 4, "one chart for each attack and fraction"
    made = json.loads(next(iter(files.values())))["made"]
    assert made["command"].startswith("randeigen")
    assert made["commit"]
    assert made["seconds"] > 0


def test_settings_come_from_a_file_and_options_win(tmp_path: Path) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("TOML is read from Python 3.11 on")
    file = tmp_path / "study.toml"
    lines = ['attack = ["none", "hidra"]', 'rule = "mean"', "assumed-eps = 0.1"]
    file.write_text("\n".join([*lines, 'partition = ["iid", "dirichlet:alpha=0.1"]']))
    told = sweep(tmp_path / "out", str(file), "--attack", "zero", "--dry-run")
    assert told.exit_code == 0, told.output
    assert "2 runs" in told.output
    assert "digits dirichlet(0.1) zero eps 0.2 mean seed 0" in told.output
    assert not (tmp_path / "out").exists()
    file.write_text("attack = [")
    assert sweep(tmp_path / "out", str(file)).exit_code == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"atack": "hidra"}, "no setting 'atack'"),
        ({"attack": []}, "empty list"),
        ({"attack": "nope"}, "no attack 'nope'"),
        ({"rule": ["mean", "nope"]}, "no rule 'nope'"),
        ({"partition": "dirichlet:alpha=x"}, "dirichlet:alpha=0.3"),
        ({"rounds": "many"}, "rounds"),
        ({"seed": list(range(1000)), "eps": [i / 1000 for i in range(1, 200)]}, "199,000 runs"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_runs(settings: dict[str, object], said: str) -> None:
    with pytest.raises(BadParameter, match=said):
        Sweep(settings).configs()


def test_words_may_be_plural_and_seeds_counted(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text('tasks = ["digits"]\nattacks = ["none", "mra"]\nseeds = 3\n')
    configs = Sweep.from_toml(file).configs()
    assert [(config.attack, config.seed) for config in configs] == [
        (attack, seed) for attack in ("none", "mra") for seed in range(3)
    ]
    fewer = sweep(tmp_path / "out", str(file), "--attack", "hidra", "--seed", "7", "--dry-run")
    assert fewer.output.splitlines()[-1] == "1 run"
    assert "hidra eps 0.2 randeigen seed 7" in fewer.output


def test_runs_that_differ_in_any_setting_are_not_averaged(tmp_path: Path) -> None:
    """Only runs that differ in their seed alone are."""
    values = {
        "clients": [4, 5],
        "parts": ["whole", "tensor"],
        "steps": [1, 2],
        "calm": [0, 1],
        "sample": [0.8, 1.0],
        "optimizer": ["sgd", "adamw"],
    }
    for name, pair in values.items():
        lines = [
            {"task": "digits", "attack": "none", "rule": "mean", "eps": 0.2, name: value} for value in pair
        ]
        assert differing(lines) == (name,)
        assert [len(group.lines) for group in grouped(lines)] == [1, 1]
        assert str(pair[0]) in grouped(lines)[0].title
    told = sweep(tmp_path, "--rule", "mean", "--parts", "whole", "--parts", "tensor", "--seeds", "2")
    assert told.exit_code == 0, told.output
    table = [line for line in told.output.splitlines() if "±" in line]
    assert len(table) == 2, told.output


def test_f_is_a_number_of_byzantine_clients() -> None:
    assert [config.eps for config in Sweep({"f": [1, 2], "clients": 10}).configs()] == [0.1, 0.2]
    with pytest.raises(BadParameter, match="one of eps and f"):
        Sweep({"f": [1], "eps": 0.2}).configs()


@pytest.mark.parametrize("metrics", [{"accuracy": "high"}, {"accuracy": 5}, {"asr": -1}, {"kept": "all"}])
def test_a_damaged_record_is_named_and_neither_shown_nor_overwritten(
    metrics: dict[str, object], tmp_path: Path
) -> None:
    assert sweep(tmp_path, "--rule", "mean").exit_code == 0
    (path,) = tmp_path.glob("*.json")
    content = json.loads(path.read_text())
    content["history"][-1].update(metrics)
    path.write_text(json.dumps(content))
    before = path.read_text()
    again = sweep(tmp_path, "--rule", "mean")
    assert again.exit_code == 2, again.exception
    assert path.name in "".join(again.output.split())
    assert path.read_text() == before


def test_nothing_to_sweep_is_a_mistake_of_the_call(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["sweep", "--out", str(tmp_path)])
    assert told.exit_code == 2
    assert "--attack hidra" in told.output


def test_an_interrupted_sweep_goes_on_with_the_same_records(tmp_path: Path) -> None:
    configs = Sweep({"attack": ["none", "zero"], "rounds": 2, "clients": 5}).configs()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(configs, tmp_path / "stopped", on_round=stop)
    assert list((tmp_path / "stopped").glob("*.checkpoint.npz"))
    steps: list[bool] = []
    paths = run_sweep(configs, tmp_path / "stopped", on_step=lambda step: steps.append(step.reused))
    whole = run_sweep(configs, tmp_path / "whole")
    assert steps == [False, False]
    for one, other in zip(paths, whole, strict=True):
        first, second = (json.loads(path.read_text()) for path in (one, other))
        assert [each["accuracy"] for each in first["history"]] == [
            each["accuracy"] for each in second["history"]
        ]
    assert not list((tmp_path / "stopped").glob("*.npz"))


@pytest.mark.parametrize("when", ["before it begins", "while it runs"])
def test_a_record_that_another_process_made_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    configs = Sweep({"rule": ["mean", "median"], "rounds": 1, "clients": 5}).configs()
    elsewhere = run_sweep(configs, tmp_path / "elsewhere")
    place = tmp_path / "out" / elsewhere[1].name
    ran: list[str] = []
    whole = sweeping.run

    def slow(config: FederatedConfig, **more: Any) -> Any:
        ran.append(config.rule)
        if config.rule == ("mean" if when == "before it begins" else "median"):
            place.write_bytes(elsewhere[1].read_bytes())
        return whole(config, **more)

    monkeypatch.setattr(sweeping, "run", slow)
    steps: list[bool] = []
    paths = run_sweep(configs, tmp_path / "out", on_step=lambda step: steps.append(step.reused))
    assert ran == ["mean", "median"][: 1 if when == "before it begins" else 2]
    assert steps == [False, True]
    assert paths[1].read_bytes() == elsewhere[1].read_bytes()
    assert not list((tmp_path / "out").glob("*.npz")), "a checkpoint was left"


def test_a_folder_of_records_is_one_tidy_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = Sweep({"attack": ["none"], "seed": [0, 1], "rounds": 2, "clients": 5, "rule": "mean"}).configs()
    run_sweep(configs, tmp_path)
    (tmp_path / "other.json").write_text("[1, 2]")
    lines = records(tmp_path)
    assert [line["seed"] for line in lines] == [0, 1]
    assert {"task", "attack", "rule", "eps", "accuracy", "asr", "commit", "record"} <= set(lines[0])
    assert len(records(tmp_path, rounds=True)) == 4
    pandas = pytest.importorskip("pandas")
    frame = load(tmp_path)
    assert isinstance(frame, pandas.DataFrame)
    assert frame.groupby("rule").accuracy.mean()["mean"] == pytest.approx(
        sum(x["accuracy"] for x in lines) / 2
    )
    with pytest.raises(BadFile, match="no folder"):
        load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadFile, match="no record"):
        load(tmp_path / "empty")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"randeigen\[experiments\].*records\(folder\)"):
        load(tmp_path)
    assert records(tmp_path) == lines, "needs no pandas"


def test_intervals_over_seeds_are_students() -> None:
    assert interval([0.25]).half_width is None
    three = interval([1.0, 2.0, 3.0])
    assert three.mean == 2.0
    assert three.half_width == pytest.approx(4.303 / 3**0.5, rel=1e-3)


@pytest.mark.parametrize(("n", "t"), [(11, 2.228), (12, 2.201), (15, 2.145), (30, 2.045), (100, 1.984)])
def test_intervals_of_many_seeds_are_students_too(n: int, t: float) -> None:
    values = [float(i % 2) for i in range(n)]
    half = interval(values).half_width
    assert half == pytest.approx(t * statistics.stdev(values) / n**0.5, rel=3e-4)


def test_a_series_has_its_colour_whether_or_not_another_has_points() -> None:
    empty, line = Series("none", [], []), Series("all", [1, 2], [1, 2])
    alone = chart("t", [empty, line], Axis("x"), Axis("y"))
    assert "none" not in alone
    assert 'class="c1"' in alone
    assert 'class="c0"' not in alone


def test_charts_leave_out_what_an_axis_cannot_show() -> None:
    drawn = chart("t", [Series("a<b", [1, 10, -1, float("nan")], [1, 2, 3, 4])], Axis("x", "log"), Axis("y"))
    assert "nan" not in drawn
    assert "a&lt;b" in drawn
    assert "not run yet" in chart("t", [Series("a", [], [])], Axis("x"), Axis("y"))
    signed = chart(
        "t", [Series("a", [-100, 0, 0.1, 50], [0, 0, 1, 1], marks=True)], Axis("x", "symlog"), Axis("y")
    )
    assert signed.count("<circle") == 4
    assert histogram("h", {"one": [1.0, 1.0], "two": [3.0]}, Axis("x")).count('class="bar') == 2
