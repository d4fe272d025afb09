"""`randeigen sweep` refuses before anything runs what cannot run, or would overwrite what somebody edited."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")
pytest.importorskip("sklearn")

import torch
from typer.testing import CliRunner, Result

from randeigen.cli.app import app
from randeigen.errors import BadFile, BadParameter
from randeigen.lab import FederatedConfig, Sweep, run_sweep

needs_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="TOML is read from Python 3.11 on")
QUICK = {"rounds": 1, "clients": 5, "rule": "mean"}


def sweep(folder: Path, text: str, *words: str) -> Result:
    """A sweep of one round and five clients, unless the file or the options say otherwise."""
    (folder / "study.toml").write_text(text)
    more = "" if "clients" in text else "clients = 5\n"
    (folder / "study.toml").write_text(f"{more}{text}" if "rounds" in text else f"rounds = 1\n{more}{text}")
    return CliRunner().invoke(
        app, ["sweep", str(folder / "study.toml"), "--out", str(folder / "out"), *words]
    )


def refused(result: Result) -> str:
    """The one sentence that the command ends with."""
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit), "a traceback"
    assert "Error: " in result.output
    return result.output


@needs_toml
@pytest.mark.parametrize("dry", [("--dry-run",), ()], ids=["dry", "run"])
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("seed = 1.5", "seed=1.5; give a whole number"),
        ("rounds = true", "rounds=True; give a whole number"),
        ("batch = 1.5", "batch=1.5"),
        ("calm = 2.5", "calm=2.5"),
        ("rate = inf", "rate=inf; give a positive learning rate"),
        ("rate = nan", "rate=nan"),
        ('alpha = "0.3"', "alpha='0.3'"),
        ('partition = "dirichlet:alpha=0"', "alpha=0.0"),
        ('partition = "dirichlet"\nalpha = nan', "alpha=nan"),
        ("seeds = 2.0", "seeds=2.0; give how many"),
        ("seeds = true", "seeds=True"),
        ("clients = 1", "clients=1; give a whole number, 2 or more"),
        ('redraw = "no"', "redraw='no'; give True or False"),
        ('parts = ["whole", "nope"]', "'nope' is not known"),
        ('parts = ["whole", "rows:nope"]', "no tensor matches 'nope'"),
        ('rule = ["mean", "median"]\nparts = "tensor"', "column by column"),
        ('attack = ["none", "ep"]', "'ep' is made for tokens; task 'digits' has images"),
        ('rule = ["mean", "krum"]\neps = 0.4', "needs at least 7 rows, found n=5"),
        ('rule = ["mean", "nnm+bulyan"]', "needs at least 7 rows, found 5"),
        ('rule = ["mean", "nnm+tukey"]', "rows of at most 100 columns"),
        ("clients = [5, 5000]", "5000 clients cannot share 1297 images"),
    ],
)
def test_what_cannot_run_is_refused_in_one_sentence(
    tmp_path: Path, line: str, said: str, dry: tuple[str, ...]
) -> None:
    assert said in refused(sweep(tmp_path, line, *dry))
    assert not (tmp_path / "out").exists(), "something ran"


@needs_toml
@pytest.mark.parametrize("dry", [("--dry-run",), ()], ids=["dry", "run"])
def test_a_table_that_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: Path, dry: tuple[str, ...]
) -> None:
    words = ("--csv", str(tmp_path / "nowhere" / "runs.csv"), *dry)
    assert f"there is no folder {tmp_path / 'nowhere'}" in refused(sweep(tmp_path, "", *words))
    assert "is a folder" in refused(sweep(tmp_path, "", "--csv", str(tmp_path), *dry))
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").write_text("not a folder")
    assert "is a file; give a folder" in refused(sweep(tmp_path, "", *dry))


@needs_toml
def test_the_table_may_lie_in_the_folder_that_the_sweep_makes(tmp_path: Path) -> None:
    result = sweep(tmp_path, 'rule = "mean"', "--csv", str(tmp_path / "out" / "runs.csv"))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "runs.csv").exists()


@needs_toml
def test_a_device_that_is_not_there_is_refused_by_the_dry_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in refused(sweep(tmp_path, "", "--device", "cuda", "--dry-run"))
    with pytest.raises(BadParameter, match="no CUDA device"):
        run_sweep([FederatedConfig()], tmp_path / "out", device="cuda")


def test_python_callers_are_refused_as_early(tmp_path: Path) -> None:
    configs = [FederatedConfig(**QUICK), FederatedConfig(rounds=1, clients=5, attack="ep")]
    with pytest.raises(BadParameter, match="made for tokens"):
        run_sweep(configs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_configuration_that_leaves_training_to_the_task_is_not_run_again(tmp_path: Path) -> None:
    steps: list[bool] = []
    for _ in range(2):
        run_sweep([FederatedConfig(**QUICK)], tmp_path, on_step=lambda step: steps.append(step.reused))
    assert steps == [False, True]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda record: record["spec"].update(rounds=3), "rounds=3 where the run has 2"),
        (lambda record: record["spec"].update(seed=1.5), "cannot be read as one"),
        (lambda record: record.clear(), "cannot be read as one"),
        (lambda record: record["history"].pop(), "should hold rounds 1 to 2 and has 1"),
        (lambda record: record["history"].clear(), "its history is empty"),
        (lambda record: record.update(accuracy=0.99), "its accuracy is 0.99 and that of its last round"),
    ],
    ids=["another spec", "no spec", "foreign", "a round less", "no round", "accuracy"],
)
def test_what_somebody_edited_is_neither_counted_nor_overwritten(
    tmp_path: Path, edit: object, said: str
) -> None:
    configs = Sweep({"rule": ["mean", "median"], "rounds": 2, "clients": 5}).configs()
    path = run_sweep(configs[1:], tmp_path)[0]
    record = json.loads(path.read_text())
    edit(record)  # type: ignore[operator]
    path.write_text(json.dumps(record))
    files = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(BadFile, match=said) as caught:
        run_sweep(configs, tmp_path)
    assert str(path) in str(caught.value)
    assert "move or delete it" in str(caught.value)
    words = ("--rule", "mean", "--rule", "median", "--rounds", "2", "--clients", "5", "--out", str(tmp_path))
    for dry in ((), ("--dry-run",)):
        assert said in refused(CliRunner().invoke(app, ["sweep", *words, *dry]))
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == files, "something ran"
    path.unlink()
    assert len(run_sweep(configs, tmp_path)) == 2


@needs_toml
@pytest.mark.parametrize(
    ("line", "words", "line_of_run"),
    [
        ("eps = [0.1, 0.2]", ("--f", "1"), "eps 0.2"),
        ("f = 1", ("--eps", "0.3"), "eps 0.3"),
        ("partition = 'dirichlet'\nalpha = [1, 2]", ("--partition", "dirichlet:alpha=0.1"), "dirichlet(0.1)"),
        ("partition = 'dirichlet'\nalpha = [1, 2]", ("--partition", "iid"), "digits none"),
    ],
)
def test_an_option_wins_over_the_other_word_of_the_file(
    tmp_path: Path, line: str, words: tuple[str, ...], line_of_run: str
) -> None:
    result = sweep(tmp_path, line, *words, "--dry-run")
    assert result.exit_code == 0, result.output
    assert line_of_run in result.output.splitlines()[0]
    assert result.output.splitlines()[-1] == "1 run"


@needs_toml
def test_two_words_for_one_thing_in_one_place_are_refused(tmp_path: Path) -> None:
    assert "one of eps and f" in refused(sweep(tmp_path, "eps = 0.2\nf = 1"))
    assert "one of eps and f" in refused(sweep(tmp_path, "", "--eps", "0.2", "--f", "1"))
    assert "both say what alpha is" in refused(
        sweep(tmp_path, 'partition = "dirichlet:alpha=0.1"\nalpha = 0.3')
    )


@needs_toml
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('server = ["sgd", "adam"]', ("server sgd", "server adam")),
        ("calm = [0, 1]", ("attack start 0", "attack start 1")),
        ("eps = [0.1234567, 0.1234568]", ("eps 0.1234567", "eps 0.1234568")),
        ("assumed-eps = [0.1, 0.3]", ("assumed eps 0.1", "assumed eps 0.3")),
        ("clients = [5, 6]", ("clients 5", "clients 6")),
    ],
)
def test_no_two_lines_of_a_dry_run_are_equal(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    *lines, total = sweep(tmp_path, text, "--dry-run").output.splitlines()
    assert total == "2 runs"
    assert all(f" {word} " in f"{line} " for word, line in zip(words, lines, strict=True)), lines


@needs_toml
def test_an_iid_partition_has_no_alpha_and_is_run_once(tmp_path: Path) -> None:
    assert "an iid partition has no alpha" in refused(sweep(tmp_path, "alpha = [0.1, 0.3]", "--dry-run"))
    result = sweep(tmp_path, 'partition = ["iid", "dirichlet"]\nalpha = [0.1, 0.3]', "--dry-run")
    assert result.exit_code == 0, result.output
    assert "Note: an iid partition has no alpha" in result.output
    lines = result.stdout.splitlines()
    assert lines[-1] == "3 runs"
    assert len(set(lines)) == 4, "a line is there twice"


@needs_toml
def test_a_folder_or_nothing_in_place_of_a_toml_file_is_named(tmp_path: Path) -> None:
    for path, said in ((tmp_path, "is a folder"), (tmp_path / "none.toml", "is not there")):
        told = " ".join(refused(CliRunner().invoke(app, ["sweep", str(path)])).split())
        assert f"{said}; give a TOML file" in told
