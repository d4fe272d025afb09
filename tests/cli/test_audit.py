"""An audit names what was judged; a replay confirms it, or says exactly what differs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

import randeigen
from commands import cli, fails
from randeigen.cli import audit_reading
from randeigen.cli.audit import Fingerprints
from randeigen.rows.file_rows import FileRows

Content = dict[str, Any]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with ten updates, their mean and its audit."""
    rng = np.random.default_rng(0)
    (tmp_path / "updates").mkdir()
    for client in range(10):
        row = rng.standard_normal(30).astype(np.float32) * (20 if client == 7 else 1)
        np.save(tmp_path / "updates" / f"{client}.npy", row)
    made = cli("aggregate", tmp_path / "updates", "--f", 2, "--out", tmp_path / "mean.npy", "--audit",
               tmp_path / "audit.json", "--seed", 4, "--quiet")  # fmt: skip
    assert made.exit_code == 0
    return tmp_path


def content_of(home: Path) -> Content:
    found: Content = json.loads((home / "audit.json").read_text())
    return found


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def differences(home: Path, *more: object) -> list[Content]:
    result = cli("replay", home / "audit.json", "--json", *more)
    said = json.loads(result.stdout)
    assert result.exit_code == (0 if said["confirmed"] else 1)
    assert said["confirmed"] == (not said["differences"])
    found: list[Content] = said["differences"]
    return found


def test_the_audit_names_every_byte_that_was_judged(home: Path) -> None:
    said = content_of(home)
    result = randeigen.aggregate([home / "updates" / f"{c}.npy" for c in range(10)], f=2, seed=4)
    assert said["schema"] == "randeigen-audit/1"
    assert (said["folder"], said["output"]["file"]) == ("updates", "mean.npy")
    assert said["output"]["sha256"] == sha256(home / "mean.npy")
    for client, each in enumerate(said["files"]):
        path = home / "updates" / each["file"]
        assert (each["sha256"], each["bytes"]) == (sha256(path), path.stat().st_size)
        assert each["weight"] == pytest.approx(float(result.weights[client]), abs=1e-12)
    assert said["files"][7]["fate"] == "left out"
    assert said["files"][7]["round"] == 1
    assert said["verdict"]["bias_bound"] == pytest.approx(result.bias_bound)
    assert said["verdict"]["stop"] == str(result.verdict.stop)
    assert len(said["verdict"]["spreads"]) == len(said["verdict"]["bounds"]) == said["verdict"]["rounds"]
    assert said["call"] == {
        "rule": "randeigen", "eps": None, "f": 2, "seed": 4, "geometry": "auto", "on_excess": "raise",
        "partition": "whole",
    }  # fmt: skip
    assert said["rule"] == {"name": "RandEigen", "eps": None, "f": 2, "removal": "soft"}
    assert {"randeigen", "numpy", "python", "platform"} <= said["versions"].keys()
    assert said["time"].endswith("+00:00")


def test_a_replay_confirms_what_it_finds(home: Path) -> None:
    result = cli("replay", home / "audit.json")
    assert result.exit_code == 0
    assert result.stdout.startswith("Confirmed: the same 10 files")
    assert cli("replay", home / "audit.json", "--quiet").output == ""


def test_a_replay_writes_nothing(home: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    cli("replay", home / "audit.json")
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before


@pytest.mark.parametrize("rule", ["random", "published", "mean", "converging"])
def test_rules_that_toss_coins_replay_too(home: Path, rule: str) -> None:
    made = cli("aggregate", home / "updates", "--eps", 0.2, "--rule", rule, "--out", home / "mean.npy",
               "--audit", home / "audit.json", "--force", "--quiet")  # fmt: skip
    assert made.exit_code == 0
    assert differences(home) == []


def test_the_whole_folder_may_move(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    there = tmp_path_factory.mktemp("there") / "moved"
    shutil.move(home, there)
    assert differences(there) == []


def test_the_data_alone_may_move(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    there = tmp_path_factory.mktemp("there") / "archive"
    shutil.move(home / "updates", there)
    assert differences(home, "--data", there) == []
    assert len([each for each in differences(home) if each["what"] == "file"]) == 10
    fails(2, "replay", home / "audit.json", "--data", there / "nowhere", saying="is not a folder")


def test_one_byte_of_one_file_is_noticed_and_named(home: Path) -> None:
    path = home / "updates" / "3.npy"
    data = bytearray(path.read_bytes())
    data[-2] ^= 0x40
    path.write_bytes(bytes(data))
    found = differences(home)
    assert found[0]["what"] == "file"
    assert found[0]["file"] == "3.npy"
    assert found[0]["found"] == sha256(path)
    assert any(each["what"] == "weight" and each["file"] == "3.npy" for each in found)
    said = cli("replay", home / "audit.json")
    assert said.exit_code == 1
    assert "DIFFERS  3.npy changed" in said.stdout
    assert "Not confirmed" in said.stdout


def test_a_file_that_is_gone_is_named(home: Path) -> None:
    (home / "updates" / "5.npy").unlink()
    assert differences(home)[0]["file"] == "5.npy"
    assert "5.npy cannot be opened" in cli("replay", home / "audit.json").stdout


def test_files_that_can_no_longer_be_judged_are_reported(home: Path) -> None:
    for client in range(4):
        (home / "updates" / f"{client}.npy").write_bytes(b"")
    assert [each["what"] for each in differences(home)] == ["file"] * 4 + ["verdict"]


def test_another_output_is_noticed(home: Path) -> None:
    np.save(home / "mean.npy", np.load(home / "mean.npy") + 1)
    assert [each["what"] for each in differences(home)] == ["output"]


def test_a_missing_output_is_confirmed_by_its_digest(home: Path) -> None:
    (home / "mean.npy").unlink()
    assert differences(home) == []


def forge(home: Path, change: Callable[[Content], None]) -> None:
    content = content_of(home)
    change(content)
    (home / "audit.json").write_text(json.dumps(content))


def test_an_answer_that_differs_by_rounding_alone_is_confirmed(home: Path) -> None:
    np.save(home / "mean.npy", np.nextafter(np.load(home / "mean.npy"), np.float32(9)))
    forge(home, lambda said: said["output"].update(sha256=sha256(home / "mean.npy")))
    assert differences(home) == []


def test_an_answer_that_was_never_the_answer_is_not_confirmed(home: Path) -> None:
    np.save(home / "mean.npy", np.load(home / "mean.npy") + np.float32(0.01))
    forge(home, lambda said: said["output"].update(sha256=sha256(home / "mean.npy")))
    assert [each["what"] for each in differences(home)] == ["output"]
    (home / "mean.npy").unlink()
    assert "could not be compared" in differences(home)[0]["told"]


FORGERIES: dict[str, tuple[Callable[[Content], None], set[str]]] = {
    "a weight": (lambda said: said["files"][7].update(weight=0.1), {"weight"}),
    "a tiny weight for a row left out": (lambda said: said["files"][7].update(weight=1e-9), {"weight"}),
    "the bound": (lambda said: said["verdict"].update(bias_bound=1e-3), {"bias_bound"}),
    "no bound": (lambda said: said["verdict"].update(bias_bound=None), {"bias_bound"}),
    "f": (lambda said: said["verdict"].update(f=1), {"f"}),
    "the distance": (lambda said: said["verdict"].update(distance_to_mean=0.0), {"distance_to_mean"}),
    "no distance": (lambda said: said["verdict"].update(distance_to_mean=None), {"distance_to_mean"}),
    "a digest": (lambda said: said["files"][2].update(sha256="0" * 64), {"file"}),
    "a digest left out": (lambda said: said["files"][2].update(sha256=None), {"file"}),
}


@pytest.mark.parametrize("lie", FORGERIES)
def test_a_forged_verdict_is_not_confirmed(home: Path, lie: str) -> None:
    change, kinds = FORGERIES[lie]
    forge(home, change)
    assert {each["what"] for each in differences(home)} == kinds


def test_an_audit_older_than_the_distance_to_the_plain_mean_is_confirmed(home: Path) -> None:
    forge(home, lambda said: (said["verdict"].pop("distance_to_mean"), said.pop("seal"), said.pop("numbers")))
    assert differences(home) == []


def setting(*keys: Any, value: Any) -> Callable[[Content], None]:
    def change(said: Content) -> None:
        inner: Any = said
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value

    return change


MANGLED: dict[str, tuple[Callable[[Content], None], str]] = {
    "another schema": (setting("schema", value="randeigen-audit/9"), "not an audit this version reads"),
    "no schema": (lambda said: said.pop("schema"), "its schema is None"),
    "a schema that is a list": (setting("schema", value=[[]]), "not an audit this version reads"),
    "no files": (lambda said: said.pop("files"), "'files' is missing"),
    "empty files": (setting("files", value=[]), "'files' is not a list of records"),
    "files a table": (setting("files", value={}), "'files' is"),
    "files of numbers": (setting("files", value=[1, 2]), "'files' is not a list of records"),
    "a path upwards": (setting("files", 0, "file", value="../../etc/x.npy"), "does not stay in its folder"),
    "an absolute path": (setting("files", 0, "file", value="/etc/passwd"), "does not stay in its folder"),
    "a path with a nul": (setting("files", 0, "file", value="a\0b.npy"), "does not stay in its folder"),
    "an empty path": (setting("files", 0, "file", value=""), "does not stay in its folder"),
    "a path that is a number": (setting("files", 0, "file", value=3), "'file' is 3"),
    "a file twice": (setting("files", 0, "file", value="1.npy"), "listed twice"),
    "a file twice, spelt otherwise": (setting("files", 0, "file", value="./1.npy"), "listed twice"),
    "a short digest": (setting("files", 0, "sha256", value="abc"), "is not a SHA-256"),
    "a digest in capitals": (setting("files", 0, "sha256", value="A" * 64), "is not a SHA-256"),
    "a weight that is text": (setting("files", 0, "weight", value="0.1"), "'weight' is '0.1'"),
    "a negative weight": (setting("files", 0, "weight", value=-1), "a weight is -1"),
    "a weight that is true": (setting("files", 0, "weight", value=True), "'weight' is True"),
    "a seed that is text": (setting("call", "seed", value="4"), "'seed' is '4'"),
    "no seed": (setting("call", "seed", value=None), "'seed' is None"),
    "a negative seed": (setting("call", "seed", value=-1), "'seed' is not one of ours"),
    "a boundless seed": (setting("call", "seed", value=10**1000), "'seed' is not one of ours"),
    "a rule that is code": (setting("call", "rule", value="__import__('os')"), "there is no rule"),
    "an unknown rule": (setting("call", "rule", value="oracle"), "there is no rule 'oracle'"),
    "eps and f": (setting("call", "eps", value=0.1), "exactly one of eps"),
    "eps too large": (lambda said: said["call"].update(eps=0.9, f=None), "no rule can tolerate half"),
    "an unknown geometry": (setting("call", "geometry", value="flat"), "geometry='flat' is not known"),
    "an unknown on_excess": (setting("call", "on_excess", value="hide"), "on_excess='hide' is not known"),
    "no output": (lambda said: said.pop("output"), "'output' is missing"),
    "an output of no format": (setting("output", "file", value="../x.sh"), "in no format we know"),
    "a boundless bound": (setting("verdict", "bias_bound", value="inf"), "'bias_bound' is 'inf'"),
    "versions a list": (setting("versions", value=[]), "'versions' is"),
    "mixed formats": (
        lambda said: [each.update(file=each["file"] + "z") for each in said["files"][:5]],
        "not of one format",
    ),
    "a value without a bottom": (setting("verdict", "stop", value=json.loads("[" * 20 + "]" * 20)), "nested"),
}


@pytest.mark.parametrize("way", MANGLED)
def test_a_mangled_audit_is_refused_in_one_line(home: Path, way: str) -> None:
    change, saying = MANGLED[way]
    forge(home, change)
    fails(2, "replay", home / "audit.json", saying=saying)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"null", b"\x80\x04pickle.", b"\xff\xfe", b'{"schema": NaN}', b"[" * 200_000,
     b'{"schema": 1, "schema": "randeigen-audit/1"}', b'"randeigen-audit/1"'],
)  # fmt: skip
def test_what_is_no_audit_is_refused_in_one_line(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.json").write_bytes(text)
    fails(2, "replay", tmp_path / "a.json", saying="is not an audit")


def test_an_audit_that_is_not_there_is_refused(tmp_path: Path) -> None:
    fails(2, "replay", tmp_path / "none.json", saying="is not a file")
    fails(2, "replay", tmp_path, saying="is not a file")


def test_an_audit_too_large_is_not_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_reading, "MAX_AUDIT_BYTES", 100)
    fails(2, "replay", home / "audit.json", saying="too large")


def test_a_file_that_changes_between_digest_and_verdict_is_left_out(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregate = randeigen.aggregate

    def after_a_change(rows: Any, **options: Any) -> Any:
        path = home / "updates" / "1.npy"
        before = path.stat()
        with path.open("r+b") as file:
            file.seek(-4, 2)
            file.write(np.float32(5).tobytes())
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return aggregate(rows, **options)

    monkeypatch.setattr(randeigen, "aggregate", after_a_change)
    made = cli("aggregate", home / "updates", "--f", 2, "--out", home / "m.npy", "--audit", home / "a.json")
    assert made.exit_code == 0
    said = json.loads((home / "a.json").read_text())["files"][1]
    assert (said["weight"], said["reason"]) == (0.0, "unreadable: changed between two passes over it")


def test_digests_are_computed_with_progress(home: Path) -> None:
    paths = [str(home / "updates" / f"{client}.npy") for client in range(3)] + [str(home / "none.npy")]
    seen: list[tuple[str, int, int]] = []
    prints = Fingerprints(paths, lambda *step: seen.append(step))
    FileRows(paths, 2**20, 1, prints.visit)
    found = prints.all()
    assert seen[0] == ("fingerprinting", 1, 4)
    assert seen[-1] == ("fingerprinting", 4, 4)
    assert [each.sha256 for each in found[:3]] == [sha256(Path(path)) for path in paths[:3]]
    assert found[-1].sha256 is None
    assert "No such file" in str(found[-1].unread)
