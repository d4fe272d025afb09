"""The command: what it teaches, what it refuses, and that nothing a stranger sends makes it stumble."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")


import randeigen
from commands import cli, fails
from randeigen import registry
from randeigen.cli import audit as audits
from randeigen.cli import console
from randeigen.cli.commands import aggregate as command
from randeigen.rows import write_answer, write_safetensors

SHAPE = {"w": (4, 5), "b": (5,)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve honest updates and a boosted one, client-11, as safetensors."""
    made = tmp_path / "updates"
    made.mkdir()
    rng = np.random.default_rng(0)
    for client in range(13):
        boost = 30.0 if client == 11 else 1.0
        leaves = {k: boost * rng.standard_normal(s).astype(np.float32) for k, s in SHAPE.items()}
        write_safetensors(made / f"client-{client}.safetensors", leaves)
    return made


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "mean.safetensors"


def rows_of(folder: Path) -> list[str]:
    return [str(folder / f"client-{client}.safetensors") for client in range(13)]


# What it teaches


@pytest.mark.parametrize("arguments", [["--help"], ["aggregate", "--help"], ["replay", "-h"]])
def test_help_teaches_with_examples_and_exit_codes(arguments: list[str]) -> None:
    result = cli(*arguments)
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert "Exit codes:" in result.stdout
    assert "randeigen " in result.stdout
    assert "130" in result.stdout


def test_version_is_the_packages_own() -> None:
    assert cli("--version").stdout.strip() == f"randeigen {randeigen.__version__}"


def test_a_missing_extra_is_one_line_and_exit_code_3() -> None:
    code = "import sys; sys.modules['typer'] = None; from randeigen.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "pip install 'randeigen[cli]'" in done.stderr


def test_the_command_installed_is_this_one() -> None:
    code = "import sys; sys.argv = ['randeigen', '--version']; from randeigen.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"randeigen {randeigen.__version__}\n")


# What it answers


def test_the_answer_is_that_of_the_function(folder: Path, out: Path) -> None:
    assert cli("aggregate", folder, "--f", 2, "--out", out, "--seed", 5).exit_code == 0
    expected = randeigen.aggregate(rows_of(folder), f=2, seed=5).mean
    found = randeigen.aggregate([out], f=0).mean
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_the_byzantine_file_is_named_with_the_reason_and_a_certificate(folder: Path, out: Path) -> None:
    said = cli("aggregate", folder, "--f", 2, "--out", out).stdout
    line = next(line for line in said.splitlines() if "client-11." in line)
    assert "left out" in line
    assert "filtered in round 1 with" in line
    assert "× the cloud's variance" in line
    assert re.search(r"2 corrupt files can have moved the answer by at most [\d.]+ at these weights: ", said)
    assert "and may be further from their plain mean. That is " in said
    assert re.search(r"It is [\d.]+ from the plain mean of all usable files: what robustness cost", said)
    assert "times the spread of the kept files" in said
    assert "Seed " in said
    assert str(out) in said


def test_json_stands_alone_on_stdout(folder: Path, out: Path) -> None:
    result = cli("aggregate", folder, "--eps", 0.1, "--out", out, "--seed", 3, "--json")
    said = json.loads(result.stdout)
    assert result.stderr == ""
    assert (said["f"], said["eps"], said["seed"], said["out"]) == (2, 0.1, 3, str(out))
    assert sum(each["weight"] for each in said["files"]) == pytest.approx(1)
    assert [each["file"] for each in said["files"]] == rows_of(folder), "natural order: 2 before 10"
    assert said["files"][11]["fate"] == "left out"
    assert not said["files"][11]["kept"]
    assert said["bias_bound"] == randeigen.aggregate(rows_of(folder), eps=0.1, seed=3).bias_bound


def test_quiet_says_nothing(folder: Path, out: Path) -> None:
    result = cli("aggregate", folder, "--f", 2, "--out", out, "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert out.exists()


def test_an_unbounded_certificate_is_null_in_json_and_explained_in_words(tmp_path: Path) -> None:
    for client in range(30):
        np.save(tmp_path / f"{client}.npy", np.random.default_rng(client).standard_normal(40))
    call = ["aggregate", tmp_path, "--eps", 0.3, "--rule", "published", "--out", tmp_path.parent / "m.npy"]
    said = json.loads(cli(*call, "--seed", 0, "--json", "--force").stdout)
    assert said["bias_bound"] is None
    assert "Nothing can be promised" in cli(*call, "--seed", 0, "--force").stdout


@pytest.mark.parametrize(
    ("f", "rows", "sentence"),
    [
        (0, np.eye(3), "nothing to certify"),
        (1, np.eye(3), "1 corrupt file can have moved"),
        (1, np.array([[1.0] * 4, [2.0] * 4, [np.nan] * 4]), "1 unusable file used up f = 1"),
    ],
)
def test_the_certificate_in_words_handles_its_edges(f: int, rows: np.ndarray, sentence: str) -> None:
    assert sentence in audits.certificate(randeigen.aggregate(rows, f=f, seed=0))


@pytest.mark.parametrize(
    ("rows", "eps", "f", "sentence"),
    [
        ([[0.0], [1e6]], 0.49, None, "1 file may be corrupt, half of the usable files or more"),
        (
            [[np.nan]] * 3 + [[0.0], [1e6]],
            None,
            2,
            "2 files may be corrupt, half of the usable files or more",
        ),
        ([[np.nan]] * 3 + [[0.0]] * 6 + [[1.0]], None, 2, "2 corrupt files can have moved"),
    ],
)
def test_a_promise_that_is_broken_or_too_wide_is_said_in_words(
    rows: list[list[float]], eps: float | None, f: int | None, sentence: str
) -> None:
    result = randeigen.aggregate(np.array(rows), eps, f=f, seed=0, on_excess="drop")
    assert sentence in audits.certificate(result)


def test_files_that_were_cut_together_are_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for client in range(30):
        np.save(tmp_path / f"client-{client:02d}.npy", 1e-3 * rng.standard_normal(5) + (client < 8))
    said = cli("aggregate", tmp_path, "--f", 5, "--out", tmp_path.parent / "cut.npy", "--force").stdout
    assert "Note: rows 0, 1, 2, 3, 4, 5, 6, 7 were cut together" in said
    assert "Rows are the files, counted from 0: 0 is client-00.npy, 1 is client-01.npy" in said


def test_json_has_the_distance_to_the_plain_mean(folder: Path, out: Path) -> None:
    said = json.loads(cli("aggregate", folder, "--f", 2, "--out", out, "--seed", 3, "--json").stdout)
    assert said["distance_to_mean"] == randeigen.aggregate(rows_of(folder), f=2, seed=3).distance_to_mean > 0


def test_a_seed_that_no_audit_could_hold_is_refused(folder: Path, out: Path) -> None:
    fails(2, "aggregate", folder, "--f", 2, "--out", out, "--seed", 2**128, saying="--seed")


def test_many_files_show_the_left_out_and_count_the_rest(folder: Path, out: Path) -> None:
    rng = np.random.default_rng(1)
    for client in range(13, 60):
        leaves = {k: rng.standard_normal(s).astype(np.float32) for k, s in SHAPE.items()}
        write_safetensors(folder / f"client-{client}.safetensors", leaves)
    brief = cli("aggregate", folder, "--f", 2, "--out", out).stdout
    assert "client-11." in brief
    assert re.search(r"\d\d others", brief)
    assert "client-12." not in brief
    whole = cli("aggregate", folder, "--f", 2, "--out", out, "--force", "--all").stdout
    assert "others" not in whole
    assert all(f"client-{c}." in whole for c in range(60))


def test_a_thousand_files_work(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for client in range(1000):
        np.save(tmp_path / "in" / f"{client}.npy", rng.standard_normal(8).astype(np.float32))
    call = ["aggregate", tmp_path / "in", "--eps", 0.1, "--out", tmp_path / "m.npy", "--json"]
    said = json.loads(cli(*call, "--audit", tmp_path / "a.json").stdout)
    assert len(said["files"]) == 1000
    assert np.load(tmp_path / "m.npy").shape == (8,)
    assert cli("replay", tmp_path / "a.json").exit_code == 0


@pytest.mark.parametrize("how", ["files", "folder", "glob", "recursive glob"])
def test_files_folders_and_patterns_mean_the_same(folder: Path, out: Path, how: str) -> None:
    given: dict[str, list[Any]] = {
        "files": rows_of(folder),
        "folder": [folder],
        "glob": [folder / "client-*.safetensors"],
        "recursive glob": [folder.parent / "**" / "*.safetensors"],
    }
    result = cli("aggregate", *given[how], "--f", 2, "--out", out.with_suffix(".npz"), "--json")
    assert [each["file"] for each in json.loads(result.stdout)["files"]] == rows_of(folder)


def test_a_folder_is_read_without_hidden_files_strangers_and_subfolders(folder: Path, out: Path) -> None:
    (folder / ".client-99.safetensors").write_bytes(b"hidden")
    (folder / "README.txt").write_text("not an update")
    (folder / "old.safetensors").mkdir()
    assert len(json.loads(cli("aggregate", folder, "--f", 2, "--out", out, "--json").stdout)["files"]) == 13


# Formats


def test_bfloat16_comes_back_as_bfloat16(tmp_path: Path, out: Path) -> None:
    for client in range(5):
        leaves = {"w": np.full((2, 3), client, np.float32), "steps": np.array([client])}
        write_safetensors(tmp_path / f"{client}.safetensors", leaves, {"w": "BF16"})
    call = [*(tmp_path / f"{client}.safetensors" for client in range(5)), "--f", 1, "--out", out]
    assert cli("aggregate", *call).exit_code == 0
    header = out.read_bytes()[8 : 8 + int.from_bytes(out.read_bytes()[:8], "little")]
    codes = {name: info["dtype"] for name, info in json.loads(header).items()}
    assert codes == {"w": "BF16", "steps": "I64"}


@pytest.mark.parametrize("target", [".safetensors", ".npz", ".npy"])
@pytest.mark.parametrize("source", [".safetensors", ".npz", ".npy"])
def test_one_array_may_go_to_any_format(tmp_path: Path, source: str, target: str) -> None:
    for client in range(5):
        array = np.full(3, client, np.float32)
        write_answer(tmp_path / f"{client}{source}", array if source == ".npy" else {"w": array})
    out = tmp_path.parent / f"{tmp_path.name}{target}"
    assert cli("aggregate", tmp_path, "--f", 0, "--out", out).exit_code == 0
    found = randeigen.aggregate([out], f=0).mean
    array = found if target == ".npy" else next(iter(found.values()))
    assert np.allclose(array, 2)


def test_many_arrays_do_not_fit_an_npy_and_this_is_said_before_any_pass(folder: Path, tmp_path: Path) -> None:
    fails(2, "aggregate", folder, "--f", 2, "--out", tmp_path / "m.npy", saying="one array, the files hold 2")


def test_what_safetensors_cannot_hold_is_refused_before_any_pass(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for client in range(3):
        np.savez(tmp_path / f"{client}.npz", w=np.ones(3, np.longdouble))
    monkeypatch.setattr(randeigen, "aggregate", lambda *a, **k: pytest.fail("a pass was made"))
    fails(2, "aggregate", tmp_path / "*.npz", "--f", 0, "--out", out, saying="safetensors cannot hold")


# The caller's mistakes: exit code 2, one line, nothing written


MISTAKES: dict[str, tuple[list[str], str]] = {
    "no eps": ([], "--eps, a fraction, or --f"),
    "both": (["--eps", "0.1", "--f", "1"], "exactly one"),
    "eps too large": (["--eps", "0.6"], r"eps=0.6, but no rule can tolerate half"),
    "eps negative": (["--eps", "-0.1"], "eps=-0.1; give the fraction you fear"),
    "eps nan": (["--eps", "nan"], "eps=nan"),
    "eps a word": (["--eps", "few"], "--eps"),
    "f too large": (["--f", "7"], "f=7 of 13 rows"),
    "f negative": (["--f", "-1"], "f=-1"),
    "f a fraction": (["--f", "0.5"], "--f"),
    "seed negative": (["--f", "1", "--seed", "-1"], "--seed"),
    "geometry": (["--f", "1", "--geometry", "round"], "--geometry"),
    "on excess": (["--f", "1", "--on-excess", "ignore"], "--on-excess"),
    "rule misspelt": (["--f", "1", "--rule", "randegen"], "did you mean 'randeigen'.*Known are: randeigen, "),
    "rule unknown": (["--f", "1", "--rule", "zzz"], r"no rule 'zzz'\. Known are"),
    "rule only a stage": (["--f", "1", "--rule", "nnm"], "ends in a pre-aggregator.*'nnm\\+krum'"),
    "rule before a rule": (["--f", "1", "--rule", "krum+mean"], "has 'krum', a rule, where a pre-aggregator"),
    "rule empty": (["--f", "1", "--rule", ""], "no rule ''"),
    "no such parameter": (["--f", "1", "--rule", "mean:gamma=1"], "'gamma=1'; it takes none"),
    "parameter without value": (["--f", "1", "--rule", "filtering:gamma"], "it takes gamma=..."),
    "parameter empty": (["--f", "1", "--rule", "filtering:"], "no parameter ''"),
    "parameter twice": (["--f", "1", "--rule", "filtering:gamma=1,gamma=2"], "gamma twice"),
    "parameter no number": (["--f", "1", "--rule", "filtering:gamma=big"], "gamma='big' is not a value"),
    "parameter infinite": (["--f", "1", "--rule", "filtering:gamma=inf"], "gamma='inf' is not a value"),
    "parameter code": (["--f", "1", "--rule", "filtering:gamma=__import__('os')"], "is not a value"),
    "parameter eps": (["--f", "1", "--rule", "randeigen:eps=0.2"], "give eps=0.2 beside"),
    "parameter missing": (["--f", "1", "--rule", "filtering"], "Filtering needs gamma"),
    "unknown option": (["--f", "1", "--fast"], "--fast"),
    "out twice the wrong kind": (["--f", "1", "--out", "mean.pt"], "ends in .safetensors, .npz, .npy"),
    "out without suffix": (["--f", "1", "--out", "mean"], "ends in"),
    "out in no folder": (["--f", "1", "--out", "no/such/mean.npz"], "there is no folder no/such"),
    "audit not json": (["--f", "1", "--audit", "audit.txt"], r"ends in \.json"),
    "audit in no folder": (["--f", "1", "--audit", "no/such/a.json"], "there is no folder"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_before_any_file_is_opened(
    folder: Path, out: Path, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("randeigen.cli.aggregate_files.as_rows", lambda *a: pytest.fail("files were opened"))
    monkeypatch.setattr("randeigen.cli.audit.open_regular", lambda *a: pytest.fail("files were opened"))
    arguments, saying = MISTAKES[mistake]
    before = sorted(folder.parent.rglob("*"))
    fails(2, "aggregate", folder, "--out", out, *arguments, saying=saying)
    assert sorted(folder.parent.rglob("*")) == before


def test_no_files_is_a_mistake(out: Path) -> None:
    fails(2, "aggregate", "--f", 1, "--out", out, saying="Missing argument")


@pytest.mark.parametrize(
    ("given", "saying"),
    [
        ("empty", "holds no files that end in"),
        ("missing.npy", "does not exist"),
        ("", "does not exist"),
        ("*.nothing", "no file matches"),
        ("nul\0byte.npy", "does not exist"),
        ("note.txt", "is not a file of updates"),
    ],
)
def test_inputs_that_are_none_are_refused(
    tmp_path: Path, out: Path, given: str, saying: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.txt").write_text("no numbers")
    fails(2, "aggregate", given, "--f", 0, "--out", out, saying=saying)


def test_formats_none_of_which_is_that_of_most_files_are_refused(folder: Path, out: Path) -> None:
    for index in range(len(rows_of(folder))):
        np.save(folder / f"{index}.npy", np.ones(3))
    fails(2, "aggregate", folder, "--f", 1, "--out", out, saying="different formats")


def test_a_file_given_twice_is_refused_however_it_is_spelt(folder: Path, out: Path) -> None:
    one = rows_of(folder)[0]
    again = folder / ".." / "updates" / "client-0.safetensors"
    fails(2, "aggregate", folder, one, "--f", 1, "--out", out, saying="the same file")
    fails(2, "aggregate", one, again, "--f", 0, "--out", out, saying="the same file")
    (folder / "link.safetensors").symlink_to(one)
    fails(2, "aggregate", folder, "--f", 1, "--out", out, saying="the same file")


def test_an_existing_output_is_kept_unless_forced(folder: Path, out: Path) -> None:
    out.write_text("precious")
    fails(2, "aggregate", folder, "--f", 1, "--out", out, saying="exists; give another name, or --force")
    assert out.read_text() == "precious"
    assert cli("aggregate", folder, "--f", 1, "--out", out, "--force").exit_code == 0
    assert out.read_bytes() != b"precious"


def test_an_existing_audit_is_kept_unless_forced(folder: Path, out: Path, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("precious")
    call = ["aggregate", folder, "--f", 1, "--out", out, "--audit", tmp_path / "a.json"]
    fails(2, *call, saying="exists")
    assert not out.exists()
    assert (tmp_path / "a.json").read_text() == "precious"


def test_the_output_may_not_be_an_input_even_by_force(folder: Path) -> None:
    one = rows_of(folder)[0]
    fails(2, "aggregate", *rows_of(folder), "--f", 1, "--out", one, "--force", saying="one of the inputs")
    link = folder.parent / "link.safetensors"
    link.symlink_to(one)
    fails(2, "aggregate", *rows_of(folder), "--f", 1, "--out", link, "--force", saying="one of the inputs")


def test_the_output_may_not_lie_among_a_folder_of_updates(folder: Path) -> None:
    mean = folder / "mean.safetensors"
    fails(2, "aggregate", folder, "--f", 1, "--out", mean, saying="take it for one")


def test_the_output_may_not_replace_a_folder_or_a_device(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "dir.npz").mkdir()
    fails(2, "aggregate", folder, "--f", 1, "--out", tmp_path / "dir.npz", "--force", saying="is not a file")
    os.mkfifo(tmp_path / "pipe.npz")
    fails(2, "aggregate", folder, "--f", 1, "--out", tmp_path / "pipe.npz", "--force", saying="not a file")


def test_a_read_only_folder_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write anywhere, so what the system would say is put into its mouth.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    fails(2, "aggregate", folder, "--f", 1, "--out", tmp_path / "m.npz", saying="cannot be written to")


def test_a_full_disk_is_an_error_and_leaves_nothing(
    folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = sorted(folder.parent.rglob("*"))
    fails(2, "aggregate", folder, "--f", 1, "--out", out, saying="No space left on device")
    assert sorted(folder.parent.rglob("*")) == before


# Strangers' files: evidence within f, exit code 4 beyond it


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "truncated": b"whole",  # cut below
    "not safetensors": b"\x80\x04pickle me.",
    "an endless header": b"\xff" * 64,
    "another model": b"other",  # written below
}


@pytest.mark.parametrize("kind", [*HOSTILE, "a pipe", "a broken link", "not finite"])
def test_a_hostile_file_is_one_corrupt_row_and_named(folder: Path, out: Path, kind: str) -> None:
    path = folder / "client-4.safetensors"
    whole = path.read_bytes()
    path.unlink()
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a broken link":
        path.symlink_to("nowhere")
    elif kind == "another model":
        write_safetensors(path, {"w": np.ones(3, np.float32)})
    elif kind == "not finite":
        leaves = {k: np.full(s, np.inf, np.float32) for k, s in SHAPE.items()}
        write_safetensors(path, leaves)
    else:
        path.write_bytes(whole[:-9] if kind == "truncated" else HOSTILE[kind])
    call = ["aggregate", folder, "--out", out, "--audit", out.with_suffix(".json")]
    fails(4, *call, "--f", 0, saying=r"1 of 13 files are unusable.*client-4\.safetensors \(")
    assert not out.exists()
    said = json.loads(cli(*call, "--f", 2, "--json").stdout)["files"][4]
    assert said["weight"] == 0
    assert said["fate"] == "left out"
    assert said["reason"].startswith("not finite" if kind == "not finite" else "unreadable: ")
    assert cli("replay", out.with_suffix(".json")).exit_code == 0


def test_too_many_unusable_files_can_be_dropped_and_it_is_said(folder: Path, out: Path) -> None:
    for client in range(3):
        (folder / f"client-{client}.safetensors").write_bytes(b"junk")
    fails(4, "aggregate", folder, "--f", 2, "--out", out, saying="--on-excess drop")
    result = cli("aggregate", folder, "--f", 2, "--out", out, "--on-excess", "drop")
    assert result.exit_code == 0
    assert "Note: 3 unusable rows were dropped" in result.stdout


def test_no_readable_file_at_all_is_more_than_f(folder: Path, out: Path) -> None:
    for path in folder.iterdir():
        path.write_bytes(b"junk")
    fails(4, "aggregate", folder, "--f", 2, "--out", out, saying="more than 2 of 13 files are unusable")


def test_a_extreme_file_says_why(folder: Path, out: Path) -> None:
    leaves = {k: np.full(s, 1e30, np.float32) for k, s in SHAPE.items()}
    write_safetensors(folder / "client-3.safetensors", leaves)
    said = cli("aggregate", folder, "--f", 2, "--out", out).stdout
    assert re.search(r"client-3\.safetensors +0 +left out +wild", said)


NAMES = [
    "[red]x.npy",
    "[bold].npy",
    "new\nline.npy",
    "\x1b[31mescape.npy",
    "bidi\u202etxt.npy",
    "carriage\rreturn.npy",
    "tab\there.npy",
    " space .npy",
    ":smile:.npy",
    "-dash.npy",
    "$(touch owned).npy",
    "ünïcode.npy",
    "{task}.npy",
    "%s%n.npy",
    os.fsdecode(b"not\xfftext.npy"),
]


def test_hostile_names_are_shown_not_obeyed(tmp_path: Path) -> None:
    made = tmp_path / "in"
    made.mkdir()
    for seed, name in enumerate(NAMES):
        np.save(made / name, np.random.default_rng(seed).standard_normal(20))
    call = ["aggregate", made, "--f", 2, "--out", tmp_path / "m.npy", "--audit", tmp_path / "a.json"]
    said = cli(*call, "--all").stdout
    for name in NAMES:
        assert console.plain(name) in said
    assert not set(said) & {"\x1b", "\r", "\u202e", "\t"}
    (made / NAMES[2]).write_bytes(b"")
    (made / NAMES[3]).write_bytes(b"")
    (made / NAMES[4]).write_bytes(b"")
    error = cli(*call, "--force").stderr
    assert error.count("\n") == 1
    assert not set(error) & {"\x1b", "\u202e"}
    assert cli("replay", tmp_path / "a.json").exit_code == 1
    listed = json.loads(cli("replay", tmp_path / "a.json", "--json").stdout)["differences"]
    assert {each["file"] for each in listed if each["what"] == "file"} == set(NAMES[2:5])


def test_a_narrow_terminal_loses_no_name(folder: Path, out: Path) -> None:
    said = cli("aggregate", folder, "--f", 2, "--out", out, columns=40).stdout
    shown = "".join(line[:16] for line in said.splitlines()).replace(" ", "")
    assert "client-11.safetensors" in shown


def test_a_terminal_without_our_signs_gets_escapes(folder: Path, out: Path) -> None:
    code = f"""
import sys; sys.argv = ['randeigen', 'aggregate', {str(folder)!r}, '--f', '2', '--out', {str(out)!r}]
from randeigen.cli import main; main()"""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    done.stdout.decode("ascii")


# Interruption


@pytest.mark.parametrize("stage", ["aggregate_files", "write", "file_outcomes"])
def test_an_interrupt_is_130_and_leaves_nothing(
    folder: Path, out: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, stage, interrupted)
    before = sorted(folder.parent.rglob("*"))
    fails(130, "aggregate", folder, "--f", 2, "--out", out, saying="Interrupted")
    assert sorted(folder.parent.rglob("*")) == before


def test_an_interrupt_within_writing_leaves_no_part(
    folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    before = sorted(folder.parent.rglob("*"))
    fails(130, "aggregate", folder, "--f", 2, "--out", out, saying="Interrupted")
    assert sorted(folder.parent.rglob("*")) == before


def test_a_real_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for client in range(3):
        np.save(tmp_path / "in" / f"{client}.npy", np.zeros(10))
    # It stops inside the pass and waits there, so that the signal comes at a known moment. What a shell runs
    # in the background inherits that SIGINT is ignored.
    code = """
import signal, sys, time, randeigen.cli.aggregate_files as judge
signal.signal(signal.SIGINT, signal.default_int_handler)
def wait(*a, **k): print('ready', flush=True); time.sleep(60)
judge.randeigen.aggregate = wait
sys.argv = ['randeigen', 'aggregate', 'in', '--f', '1', '--out', 'm.npy']
from randeigen.cli import main; main()"""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Interrupted" in stderr
    assert "Traceback" not in stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


# Rules by name


PROMISES = {  # rules that ask for a promise about the honest rows
    "filtering": "gamma=2.5",
    "zhu-filtering": "sigma=2.5",
    "no-regret": "sigma=2.5",
    "chunked-filtering": "sigma=2.5",
    "chunked-no-regret": "sigma=2.5",
}


@pytest.mark.parametrize("name", [*randeigen.rules.RULES, "nnm+krum", "bucketing:s=2+nnm+median"])
def test_every_rule_by_name_runs(folder: Path, out: Path, name: str) -> None:
    if name == "semidefinite":
        pytest.importorskip("clarabel")
    text = f"{name}:{PROMISES[name]}" if name in PROMISES else name
    said = json.loads(cli("aggregate", folder, "--eps", 0.1, "--rule", text, "--out", out, "--json").stdout)
    assert said["rule"] == text
    assert sum(each["weight"] for each in said["files"]) == pytest.approx(1)


def test_a_parameter_reaches_its_rule() -> None:
    assert registry.build_rule("filtering:gamma=0.5", 0.1, None) == randeigen.rules.Filtering(0.1, None, 0.5)
    assert registry.build_rule("randeigen:removal=random", None, 2) == randeigen.RandEigen(
        f=2, removal="random"
    )


# Small things


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1, "1.00"), (0.012345, "0.0123"), (1234.5, "1234"), (3e-9, "3.00e-09"), (2e30, "2.00e+30")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert console.short(value) == text


def test_progress_in_a_pipe_comes_with_time_and_not_if_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress_bar(quiet=True) as progress:
        assert progress is None
    with console.progress_bar(quiet=False) as progress:
        assert progress is not None
        progress("measuring", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_progress_shows_each_stage_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with console.progress_bar(quiet=False) as progress:
        assert progress is not None
        progress("measuring", 1, 2)
        progress("averaging", 2, 2)
    said = capsys.readouterr()
    assert said.out == ""
    assert "measuring" in said.err
    assert "averaging" in said.err
