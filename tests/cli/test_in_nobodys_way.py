"""Small things: what is missing is told first, tables fit, the answer comes first, and nothing dies late."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from commands import cli, fails
from randeigen.cli import console
from randeigen.lab import FederatedRecord

ROOT = Path(__file__).resolve().parents[2]
SENTENCE = re.compile(
    r"\d+ left out|\d+ corrupt|Nothing can|It is|Rule |Mean written|client-0|a plain|rows: |The rule|`rand"
)
TINY = ("--rounds", 1, "--epochs", 1, "--clients", 10, "--rule", "mean")


@pytest.fixture
def updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "updates"
    folder.mkdir()
    rows = np.random.default_rng(0).standard_normal((12, 30)).astype(np.float32)
    rows[:2] += 9
    for i, row in enumerate(rows):
        np.save(folder / f"client-{i}.npy", row)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize(
    ("missing", "call", "saying"),
    [
        ("matplotlib", ("simulate", *TINY), "simulate needs matplotlib: pip install"),
        ("matplotlib", ("train", "--epochs", 1), "train needs matplotlib"),
        ("matplotlib", ("attacks", "--pictures", "p"), "attacks --pictures needs matplotlib"),
        (
            "sklearn",
            ("rules", "--measure", "--rule", "krum"),
            r"rules --measure needs scikit-learn: .*experiments",
        ),
        ("torch", ("sweep", "--rule", "mean"), "sweep needs torch"),
        ("torch", ("reproduce", "figure:1"), "reproduce needs torch"),
        ("torch", ("report", "."), "report of a folder needs torch"),
    ],
)
def test_what_an_option_needs_is_told_before_any_work(
    missing: str, call: tuple[object, ...], saying: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, missing, None)  # type: ignore[arg-type]
    fails(3, *call, saying=saying)
    assert list(tmp_path.iterdir()) == []


def test_a_measurement_in_a_pipe_says_how_far_it_is_and_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(console, "FIRST_LINE_SECONDS", 0.0)
    from randeigen.lab import rule_study

    few = [next(iter(rule_study.cells([3])))] * 5
    monkeypatch.setattr(rule_study, "cells", lambda seeds, n: few)
    result = cli("rules", "--measure", "--rule", "mean", "--json")
    assert re.search(r"100 rows: 1 of \d+, about \d+ s left", result.stderr)
    assert json.loads(result.stdout)["standings"][0]["rule"] == "mean"


@pytest.mark.parametrize("columns", [40, 80, 100])
@pytest.mark.parametrize(
    "call",
    [
        ("rules",),
        ("rules", "krum"),
        ("attacks",),
        ("aggregate", "updates", "--f", 2, "--out", "m.npy", "--rule", "krum"),
        ("inspect", "updates", "--seed", 0),
        ("bench", "--n", 5, "--d", 10, "--repeats", 1),
    ],
    ids=lambda call: call[0],
)
def test_nothing_is_wrapped_twice_or_cut(call: tuple[object, ...], columns: int, updates: Path) -> None:
    narrow = cli(*call, columns=columns).stdout
    tables = [line for line in narrow.splitlines() if not SENTENCE.match(line)]  # those the terminal wraps
    assert max(len(line.rstrip()) for line in tables) <= columns
    lines = [line.strip() for line in narrow.splitlines()]
    # Wrapped twice, a full line is followed by one with a word or two, and that by a full one again.
    stubs = [i for i in range(1, len(lines) - 1) if 0 < len(lines[i]) < 6 and len(lines[i - 1]) > columns - 8]
    assert not [i for i in stubs if len(lines[i + 1]) > columns - 16], stubs
    if call[0] in ("rules", "attacks"):
        assert narrow.split() == cli(*call, columns=400).stdout.split()


def test_numbers_are_never_cut_where_a_table_does_not_fit(updates: Path) -> None:
    text = cli("bench", "--n", 5, "--d", 10, "--repeats", 1, columns=40).stdout
    assert re.search(r"median ms  \d+\.\d\d\n", text)
    assert re.search(r"costs [\d.]+ means", text)


def test_the_row_that_krum_chose_comes_first(updates: Path) -> None:
    shown = cli("aggregate", "updates", "--f", 2, "--rule", "krum", "--out", "m.npy").stdout
    assert "kept" in next(line for line in shown.splitlines() if ".npy" in line)
    for i in range(12, 50):
        np.save(updates / f"client-{i}.npy", np.random.default_rng(i).standard_normal(30).astype(np.float32))
    shown = cli("aggregate", "updates", "--f", 2, "--rule", "krum", "--out", "m2.npy").stdout
    assert re.search(r"client-\d+\.npy +50\.00× +kept", shown)
    assert "49 others" in shown
    many = cli("aggregate", "updates", "--f", 2, "--out", "m3.npy").stdout
    assert "left out" in next(line for line in many.splitlines() if ".npy" in line)


def test_a_replay_of_files_that_moved_says_data(updates: Path) -> None:
    cli("aggregate", "updates", "--f", 2, "--out", "m.npy", "--audit", "a.json")
    updates.rename(updates.parent / "archive")
    result = cli("replay", "a.json")
    assert result.exit_code == 1
    assert re.search(r"None of the files is in .*updates. If they moved, .*: --data FOLDER", result.stdout)
    assert cli("replay", "a.json", "--data", "archive").exit_code == 0


def test_the_shell_completes_subcommands() -> None:
    from typer.testing import CliRunner

    from randeigen.cli.app import app

    for words, expected in (("randeigen sim", "simulate"), ("randeigen aggregate --cou", "--counts")):
        asked = {
            "_RANDEIGEN_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        }
        assert expected in CliRunner().invoke(app, [], env=asked, prog_name="randeigen").stdout
    assert "--install-completion" in (ROOT / "docs" / "reference" / "command.md").read_text()


def test_example_counts_weigh_files_and_are_in_the_audit(updates: Path) -> None:
    counts = {f"client-{i}.npy": 100 + 10 * i for i in range(12)}
    Path("counts.json").write_text(json.dumps(counts))
    call = ("aggregate", "updates", "--f", 2, "--counts", "counts.json", "--rule", "mean")
    report = json.loads(cli(*call, "--out", "m.npy", "--audit", "a.json", "--json").stdout)
    weights = [each["weight"] for each in report["files"]]
    assert weights == pytest.approx(np.array(list(counts.values())) / sum(counts.values()))
    assert {each["fate"] for each in report["files"]} == {"kept"}
    assert cli("replay", "a.json").exit_code == 0
    assert "1× is the share that its count would give it" in cli(*call, "--out", "m2.npy").stdout
    content = json.loads(Path("a.json").read_text())
    content["call"]["counts"][3] = 1
    Path("edited.json").write_text(json.dumps(content))
    assert cli("replay", "edited.json").exit_code == 1


@pytest.mark.parametrize(
    ("text", "saying"),
    [
        ("{", "is not JSON"),
        ("[1, 2]", "give an object"),
        ('{"client-0.npy": 3}', "has no count for updates/client-1.npy and 10 more"),
        ('{"client-99.npy": 3}', "'client-99.npy'; no file is called this"),
        (None, "counts.json: No such file"),
    ],
)
def test_counts_that_do_not_fit_the_files_are_refused(updates: Path, text: str | None, saying: str) -> None:
    if text is not None:
        Path("counts.json").write_text(text)
    fails(2, "aggregate", "updates", "--f", 2, "--counts", "counts.json", "--out", "m.npy", saying=saying)


def test_a_count_that_is_no_number_costs_its_file_alone(updates: Path) -> None:
    counts: dict[str, object] = {f"client-{i}.npy": 100 for i in range(12)}
    counts |= {"client-0.npy": -5, "updates/client-1.npy": None}
    del counts["client-1.npy"]
    Path("counts.json").write_text(json.dumps(counts))
    call = ("aggregate", "updates", "--f", 3, "--counts", "counts.json", "--out", "m.npy", "--json")
    files = json.loads(cli(*call).stdout)["files"]
    assert [each["kept"] for each in files[:2]] == [False, False]
    assert all(each["kept"] for each in files[2:])


def test_a_weight_is_never_more_than_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    from randeigen.cli.commands import train
    from randeigen.lab.config import CentralizedConfig
    from randeigen.lab.results import CentralizedRecord, EpochMetrics

    epoch = EpochMetrics(1, 0.9, 0.1, 1.037, 0.294, 0.97, 25, 1.0)
    train.EpochProgress("backward", 1).epoch(epoch)
    train._show([CentralizedRecord(CentralizedConfig(), (epoch,), {})])
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert "1.04×" in text
        assert "103.7%" not in text


def test_a_round_of_one_client_needs_no_picture(tmp_path: Path) -> None:
    result = cli("simulate", *TINY, "--participation", 0.01, "--out", tmp_path)
    assert result.exit_code == 0
    (record,) = tmp_path.glob("*.json")
    assert FederatedRecord.read(record).history[0].kept == 1
    assert "of the 1 clients of the last round" in (tmp_path / "report.html").read_text()


def test_a_column_rule_has_null_weights_in_its_record(tmp_path: Path) -> None:
    cli("simulate", *TINY, "--rule", "median", "--out", tmp_path)
    (path,) = tmp_path.glob("*median*.json")
    (metrics,) = json.loads(path.read_text())["history"]
    assert [metrics[name] for name in ("weight_honest", "weight_corrupt", "kept")] == [None] * 3


def test_pickles_in_a_folder_are_pointed_out_with_what_to_do(updates: Path) -> None:
    (updates / "late.pt").write_bytes(b"")
    result = cli("aggregate", "updates", "--f", 2, "--out", "m.npy", "-q")
    assert result.exit_code == 0
    assert "also holds late.pt, left aside" in result.stderr
    for path in updates.glob("*.npy"):
        path.rename(path.with_suffix(".pt"))
    what_to_do = r"save_file\(torch.load\('a.pt', weights_only=True\)"
    fails(
        2, "aggregate", "updates", "--f", 2, "--out", "m.npy", saying=f"holds 13 files such as .*{what_to_do}"
    )
    fails(2, "aggregate", "updates/late.pt", "--f", 0, "--out", "m.npy", saying=what_to_do)


def test_the_readme_installs_from_a_clone_and_lists_every_extra() -> None:
    page = (ROOT / "README.md").read_text()
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    listed = re.findall(r"`([a-z-]+)`", "".join(re.findall(r"^\|(.*?)\|", page.split("## Install")[1], re.M)))
    assert set(extras) <= set(listed), set(extras) - set(listed)
    assert "From a clone, until there is a release" in page


def test_bench_says_what_the_rule_mean_adds_to_a_plain_mean() -> None:
    text = cli("bench", "--n", 5, "--d", 10, "--repeats", 1, "--rule", "mean").stdout
    assert "with its certificate" in text
    assert "certificate" not in cli("bench", "--n", 5, "--d", 10, "--repeats", 1, "--rule", "krum").stdout
