"""A replay recomputes all that an audit says: no field of it can be changed without being named."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

import typer

from commands import cli
from randeigen.cli import audit_comparison
from randeigen.cli.audit_comparison import SENTENCES_BEFORE, _same, apart
from randeigen.cli.audit_reading import INFORMATION
from randeigen.cli.commands.replay import replay
from randeigen.rows import write_answer
from randeigen.types import Stop

FIRST = Path(__file__).parents[1] / "fixtures" / "audit-0.1"
MISSING = object()

Field = tuple[Any, ...]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven updates (one far out, one cut short, one of another format), their mean and its audit."""
    home = tmp_path_factory.mktemp("home")
    (home / "updates").mkdir()
    rng = np.random.default_rng(1)
    for client in range(6):
        row = rng.standard_normal(12) * (30 if client == 4 else 1)
        np.save(home / "updates" / f"{client}.npy", row)
    path = home / "updates" / "5.npy"
    path.write_bytes(path.read_bytes()[:-8])
    np.savez(home / "updates" / "6.npz", rng.standard_normal(12))
    made = cli("aggregate", home / "updates", "--f", 1, "--on-excess", "drop", "--seed", 3,
               "--out", home / "mean.npy", "--audit", home / "audit.json", "--quiet")  # fmt: skip
    assert made.exit_code == 0, made.output
    assert cli("replay", home / "audit.json", "--quiet").exit_code == 0
    return home


def leaves(content: Any, at: Field = ()) -> Iterator[Field]:
    """The way to each value that is no container, and to each that is an empty one."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        if isinstance(value, (dict, list)) and value:
            yield from leaves(value, (*at, key))
        else:
            yield (*at, key)


def set_to(content: Any, field: Field, value: Any) -> Any:
    """A copy of an audit with one field changed."""
    content = copy.deepcopy(content)
    inner = content
    for key in field[:-1]:
        inner = inner[key]
    if value is MISSING:
        del inner[field[-1]]
    else:
        inner[field[-1]] = value
    return content


def get(content: Any, field: Field) -> Any:
    for key in field:
        content = content[key]
    return content


def another(value: Any) -> Any:
    """Another value of the same type."""
    if value is None:
        return "something"
    if isinstance(value, str):
        return value[:-1] + ("0" if value[-1:] != "0" else "1") if value else "something"
    if isinstance(value, list):
        return ["something"]
    return value + 1 if isinstance(value, int) else value * 1.01 + 0.001


def replayed(home: Path, content: Any) -> tuple[int, str]:
    """Exit code and output of the command, without the parsing of its options."""
    path = home / "forged.json"
    path.write_text(json.dumps(content))
    said, code = io.StringIO(), 0
    with redirect_stdout(said), redirect_stderr(said):
        try:
            replay(str(path))
        except typer.Exit as end:
            code = end.exit_code
    path.unlink()
    return code, said.getvalue()


WAYS: dict[str, Callable[[Any], Any]] = {
    "another value": another,
    "null": lambda value: None if value is not None else 0,
    "missing": lambda value: MISSING,
    "a list": lambda value: [value, value],
    "text": lambda value: "NaN" if value != "NaN" else "inf",
    "a number": lambda value: -1e300,
    "true": lambda value: True,
}


@pytest.mark.parametrize("way", WAYS)
def test_no_field_can_be_changed_without_being_named(home: Path, way: str) -> None:
    content = json.loads((home / "audit.json").read_text())
    fields = [field for field in leaves(content) if field[0] not in INFORMATION]
    if way != "another value":  # one file of each fate stands for all
        fields = [field for field in fields if field[0] != "files" or field[1] in (0, 4, 6)]
    assert len(fields) > 60
    unnoticed = []
    for field in fields:
        code, said = replayed(home, set_to(content, field, WAYS[way](get(content, field))))
        name = next(str(key) for key in reversed(field) if isinstance(key, str))
        if code not in (1, 2) or name not in said or "Traceback" in said:
            unnoticed.append((field, code, said))
    assert unnoticed == []


def test_what_is_only_information_is_listed_and_may_differ(home: Path) -> None:
    content = json.loads((home / "audit.json").read_text())
    assert {"time", "versions"} == INFORMATION
    content["versions"]["numpy"] = "0.0.1"
    content["time"] = "1999-01-01T00:00:00+00:00"
    assert replayed(home, content)[0] == 0


@pytest.mark.parametrize(
    "part", [(), ("verdict",), ("rule",), ("call",), ("output",), ("files", 2), ("seal",)]
)
def test_a_claim_that_no_audit_makes_is_not_confirmed(home: Path, part: Field) -> None:
    content = json.loads((home / "audit.json").read_text())
    code, said = replayed(home, set_to(content, (*part, "approved"), True))
    assert code == 1
    assert "approved" in said


def test_an_audit_of_version_0_1_is_still_confirmed(tmp_path: Path) -> None:
    shutil.copytree(FIRST, tmp_path / "there")
    for audit in (FIRST / "audit.json", tmp_path / "there" / "audit.json"):
        result = cli("replay", audit)
        assert result.exit_code == 0, result.output
        assert result.output.startswith("Confirmed: the same 6 files")


def test_in_an_audit_of_version_0_1_every_result_is_compared() -> None:
    content = json.loads((FIRST / "audit.json").read_text())
    tried = 0
    for field in leaves(content):
        if field[0] in ("verdict", "rule", "files") and field[-1] != "file":
            code, said = replayed(FIRST, set_to(content, field, another(get(content, field))))
            name = next(str(key) for key in reversed(field) if isinstance(key, str))
            assert code in (1, 2), field
            assert name in said, (field, said)
            tried += 1
    assert tried > 60


# The answer.


def answered(folder: Path, *more: object) -> Path:
    """A folder with five updates of two arrays and a counter, their mean and its audit."""
    rng = np.random.default_rng(2)
    (folder / "updates").mkdir()
    for client in range(5):
        leaf = {"w": rng.standard_normal((3, 4)).astype(np.float32), "steps": np.array([client, 7])}
        write_answer(folder / "updates" / f"{client}.npz", leaf)
    made = cli("aggregate", folder / "updates", "--f", 1, "--out", folder / "mean.npz",
               "--audit", folder / "audit.json", "--quiet", *more)  # fmt: skip
    assert made.exit_code == 0
    return folder / "mean.npz"


def poisoned(arrays: dict[str, Any], value: float) -> dict[str, Any]:
    arrays["w"] = np.full((3, 4), 1e6, np.float32)
    arrays["w"][-1, -1] = value
    return arrays


FALSE: dict[str, Callable[[dict[str, Any], bytes], dict[str, Any] | bytes]] = {
    "a NaN among large numbers": lambda arrays, raw: poisoned(arrays, np.nan),
    "an infinity among large numbers": lambda arrays, raw: poisoned(arrays, np.inf),
    "one NaN": lambda arrays, raw: arrays | {"w": np.where(arrays["w"] > 0, arrays["w"], np.float32(np.nan))},
    "all NaN": lambda arrays, raw: arrays | {"w": arrays["w"] * np.float32(np.nan)},
    "garbage": lambda arrays, raw: b"garbage",
    "nothing": lambda arrays, raw: b"",
    "its first half": lambda arrays, raw: raw[: len(raw) // 2],
    "all but its last byte": lambda arrays, raw: raw[:-1],
    "another array": lambda arrays, raw: {"v": arrays["w"], "steps": arrays["steps"]},
    "one array less": lambda arrays, raw: {"w": arrays["w"]},
    "another shape": lambda arrays, raw: arrays | {"w": arrays["w"].T},
    "another dtype": lambda arrays, raw: arrays | {"w": arrays["w"].astype(np.float64)},
    "other integers": lambda arrays, raw: arrays | {"steps": arrays["steps"] + 1},
    "zeros": lambda arrays, raw: arrays | {"w": 0 * arrays["w"]},
}


@pytest.mark.parametrize("lie", FALSE)
def test_an_answer_that_is_not_the_answer_is_not_confirmed(lie: str, tmp_path: Path) -> None:
    path = answered(tmp_path)
    with np.load(path) as found:
        false = FALSE[lie](dict(found), path.read_bytes())
    if isinstance(false, bytes):
        path.write_bytes(false)
    else:
        np.savez(path, **false)
    content = json.loads((tmp_path / "audit.json").read_text())
    content["output"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    content["output"]["bytes"] = path.stat().st_size
    code, said = replayed(tmp_path, content)
    assert code == 1
    assert "the output mean.npz" in said
    assert "output.sha256" in said


@pytest.mark.parametrize("rule", ["randeigen", "median", "nnm+krum"])
@pytest.mark.parametrize(("factor", "code"), [(1 + 2e-7, 0), (1.01, 1)])
def test_a_small_number_beside_large_ones_is_held_to_its_own_size(
    rule: str, factor: float, code: int, tmp_path: Path
) -> None:
    (tmp_path / "updates").mkdir()
    for client in range(7):
        row = np.random.default_rng(client).standard_normal(9000).astype(np.float32)
        row[3] *= 1e12
        row[-1] = 2.0 + client / 10
        np.save(tmp_path / "updates" / f"{client}.npy", row)
    made = cli("aggregate", tmp_path / "updates", "--f", 1, "--rule", rule, "--out", tmp_path / "mean.npy",
               "--audit", tmp_path / "audit.json", "--quiet")  # fmt: skip
    assert made.exit_code == 0, made.output
    answer = np.load(tmp_path / "mean.npy")
    answer[-1] *= np.float32(factor)
    np.save(tmp_path / "mean.npy", answer)
    content = json.loads((tmp_path / "audit.json").read_text())
    content["output"]["sha256"] = hashlib.sha256((tmp_path / "mean.npy").read_bytes()).hexdigest()
    assert replayed(tmp_path, content)[0] == code


@pytest.mark.parametrize("lost", ["one", "all", "replaced", "cut while it is read"])
def test_an_answer_is_not_blamed_for_judged_files_that_can_no_longer_be_read(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(0).standard_normal((5, 12))
    kept = [str(tmp_path / f"{client}.npy") for client in range(5)]
    for path, row in zip(kept, rows, strict=True):
        np.save(path, row)
    answers = [str(tmp_path / name) for name in ("stored.npy", "again.npy")]
    for answer in answers:
        np.save(answer, rows.mean(0))
    assert apart(*answers, kept) is None
    for path in kept if lost == "all" else kept[1:2] if lost == "one" else ():
        os.unlink(path)
    for path in kept if lost == "replaced" else ():
        np.save(path, np.zeros(3))
    if lost == "cut while it is read":
        side_by_side = audit_comparison._side_by_side

        def cut(one: Any, other: Any) -> Any:
            os.truncate(kept[2], 140)
            return side_by_side(one, other)

        monkeypatch.setattr(audit_comparison, "_side_by_side", cut)
    told = apart(*answers, kept)
    assert told is not None
    assert "judged files can no longer be read" in told
    assert "away from" not in told


def test_an_answer_in_a_folder_or_a_pipe_is_not_confirmed_and_not_waited_for(tmp_path: Path) -> None:
    path = answered(tmp_path)
    content = json.loads((tmp_path / "audit.json").read_text())
    content["output"]["sha256"] = "0" * 64
    path.unlink()
    os.mkfifo(path)
    code, said = replayed(tmp_path, content)
    assert (code, "is not a regular file" in said) == (1, True)


# Names.

NAMES = [
    "new\nline.npy",
    "\x1b[2J\x1b]0;title\x07.npy",
    "tab\t and space .npy",
    "é\u202egnp.npy",
    "[bold]x.npy",
]


def test_hostile_names_go_through_audit_and_replay(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = [os.fsencode(name) for name in NAMES] + [b"\xff\xfe.npy", b"-f.npy", b"a.npy", b"b.npy"]
    (tmp_path / "updates").mkdir()
    for name in names:
        np.save(os.path.join(os.fsencode(tmp_path), b"updates", name).decode("utf-8", "surrogateescape"),
                rng.standard_normal(6))  # fmt: skip
    for name in names[:2]:
        with open(os.path.join(os.fsencode(tmp_path / "updates"), name), "r+b") as file:
            file.truncate(90)
    made = cli("aggregate", tmp_path / "updates", "--f", 3, "--out", tmp_path / "mean.npy",
               "--audit", tmp_path / "audit.json", "--all")  # fmt: skip
    assert made.exit_code == 0, made.output
    assert not set(made.output) & set("\x1b\x07\u202e")
    said = json.loads((tmp_path / "audit.json").read_text())
    assert sorted(os.fsencode(each["file"]) for each in said["files"]) == sorted(names)
    assert all(str(tmp_path) not in each["reason"] for each in said["files"])
    shutil.move(tmp_path / "updates", tmp_path / "moved")
    result = cli("replay", tmp_path / "audit.json", "--data", tmp_path / "moved")
    assert result.exit_code == 0, result.output
    (tmp_path / "moved" / NAMES[1]).unlink()
    result = cli("replay", tmp_path / "audit.json", "--data", tmp_path / "moved")
    assert result.exit_code == 1
    assert not set(result.output) & set("\x1b\x07\u202e")


def test_notes_name_files_without_their_folder(home: Path, tmp_path: Path) -> None:
    content = json.loads((home / "audit.json").read_text())
    assert "unusable rows were dropped" in content["verdict"]["notes"][0]
    assert str(home) not in json.dumps(content)
    shutil.copytree(home, tmp_path / "moved")
    assert cli("replay", tmp_path / "moved" / "audit.json", "--quiet").exit_code == 0


def test_a_first_audit_with_notes_is_confirmed_wherever_its_files_are(home: Path, tmp_path: Path) -> None:
    content = json.loads((home / "audit.json").read_text())
    note = content["verdict"]["notes"][0]
    content["verdict"]["notes"] = [note.replace("no usable file: ", "no usable file: /of/old/")]
    content.pop("seal")
    content.pop("numbers")
    assert replayed(home, content)[0] == 0
    content["verdict"]["notes"] = [note.replace("no usable file: ", "no usable rows: ")]
    assert replayed(home, content)[0] == 1


def test_reasons_are_compared_across_the_words_of_older_audits() -> None:
    before = "no direction is wider than any single row makes it: nothing stands out"
    assert _same("stop", before, str(Stop.ISOTROPIC), 10)
    assert not _same("stop", before, str(Stop.BUDGET), 10)
    assert not _same("notes", before, str(Stop.ISOTROPIC), 10)
    assert set(SENTENCES_BEFORE).isdisjoint(Stop)
