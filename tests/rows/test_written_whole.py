"""What is written is whole, or is not there: a full disk, a quota, a short write and a failure in between."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import randeigen
from randeigen.rows import write as save
from randeigen.rows import write_answer
from randeigen.rows.write import CheckedFile, replacing

ANSWER = {"w": np.arange(5000, dtype=np.float32), "b": np.ones(3)}
FORMATS = {".npy": ANSWER["w"], ".npz": ANSWER, ".safetensors": ANSWER}


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """A disk on which no file grows beyond this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("size", [0, 1, 100, 4096, 20_000])
def test_a_full_disk_is_an_error_and_leaves_what_was_there(suffix: str, size: int, tmp_path: Path) -> None:
    path = tmp_path / f"mean{suffix}"
    path.write_bytes(b"before")
    with room_for(size), pytest.raises(OSError, match="nothing was written") as caught:
        write_answer(path, FORMATS[suffix])
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_fits_exactly_is_written(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"mean{suffix}"
    write_answer(path, FORMATS[suffix])
    whole = path.read_bytes()
    with room_for(len(whole)):
        write_answer(path, FORMATS[suffix])
    assert path.read_bytes() == whole
    with room_for(len(whole) - 1), pytest.raises(OSError, match="nothing was written"):
        write_answer(path, FORMATS[suffix])


def test_numpy_cannot_write_past_the_check(tmp_path: Path) -> None:
    """`tofile` would: it does not tell of a short write."""
    for write in (np.save, np.savez):
        with (
            room_for(100),
            pytest.raises(OSError, match="nothing was written"),
            replacing(tmp_path / "x") as out,
        ):
            write(out, ANSWER["w"])
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_takes_few_bytes_at_a_time_gets_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Few:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def write(self, data: Any) -> int:
            return int(self._file.write(data[:7]))

    def few(checked: CheckedFile, path: str, name: Any) -> None:
        opened(checked, path, name)
        checked._file = Few(checked._file)  # type: ignore[assignment]

    opened = CheckedFile.__init__
    monkeypatch.setattr(CheckedFile, "__init__", few)
    for suffix, answer in FORMATS.items():
        write_answer(tmp_path / f"mean{suffix}", answer)
    assert np.array_equal(np.load(tmp_path / "mean.npy"), ANSWER["w"])
    assert np.array_equal(np.load(tmp_path / "mean.npz")["b"], ANSWER["b"])


def test_bytes_that_did_not_arrive_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save.os, "fsync", lambda handle: os.ftruncate(handle, 100))
    with pytest.raises(OSError, match=r"100 of 20,128 bytes arrived; nothing was written"):
        write_answer(tmp_path / "mean.npy", ANSWER["w"])
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_when_it_is_asked_to_keep_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(handle: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(save.os, "fsync", fails)
    with pytest.raises(OSError, match="nothing was written"):
        write_answer(tmp_path / "mean.npy", ANSWER["w"])
    assert list(tmp_path.iterdir()) == []


def test_a_name_as_long_as_names_may_be_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("m" * 251 + ".npy")
    write_answer(path, ANSWER["w"])
    assert list(tmp_path.iterdir()) == [path]


# The command.


@pytest.fixture
def updates(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for client in range(6):
        np.save(tmp_path / "in" / f"{client}.npy", rng.standard_normal(1000).astype(np.float32))
    return tmp_path


@pytest.fixture(params=[False, True], ids=["in memory", "in the file"])
def made_in_file(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the command writes its answer while it is made, as it does if that is large."""
    pytest.importorskip("typer")
    if request.param:
        monkeypatch.setattr("randeigen.cli.aggregate_files.MAPPED_BYTES", 0)
    return bool(request.param)


@pytest.mark.usefixtures("made_in_file")
@pytest.mark.parametrize("size", [0, 1024, 4096, 4127])
def test_the_command_fails_on_a_full_disk_and_leaves_nothing(updates: Path, size: int) -> None:
    from commands import cli

    call = ["aggregate", updates / "in", "--f", 1, "--out", updates / "m.npy", "--audit", updates / "a.json"]
    with room_for(size):
        result = cli(*call)
    assert result.exit_code == 2
    assert "nothing was written" in result.output
    assert "m.npy" in result.output
    assert sorted(path.name for path in updates.iterdir()) == ["in"]


@pytest.mark.usefixtures("made_in_file")
def test_an_audit_that_cannot_be_written_takes_the_answer_with_it(
    updates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from commands import cli
    from randeigen.cli import audit as audits

    def full(path: str, content: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device; nothing was written", path)

    call = ["aggregate", updates / "in", "--f", 1, "--out", updates / "m.npy", "--audit", updates / "a.json"]
    monkeypatch.setattr(audits, "save", full)
    result = cli(*call)
    assert result.exit_code == 2
    assert "a.json" in result.output
    assert sorted(path.name for path in updates.iterdir()) == ["in"]
    monkeypatch.undo()
    assert cli(*call).exit_code == 0
    assert json.loads((updates / "a.json").read_text())["output"]["bytes"] == 4128


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
@pytest.mark.parametrize("rule", ["randeigen", "median", "centered-clipping"])
def test_a_large_answer_that_is_written_while_it_is_made_has_the_same_bytes(
    suffix: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("typer")
    from commands import cli

    rng, (updates, out) = np.random.default_rng(0), (tmp_path / "in", tmp_path / f"m.{suffix}")
    updates.mkdir()
    for i in range(7):
        rows = {"a": rng.standard_normal((30, 7)), "b": np.float32([i, 2, 3]), "steps": np.int64([i])}
        save.write_safetensors(updates / f"{i}.safetensors", rows, {"a": "BF16"})
    (updates / "6.safetensors").write_bytes(b"short")
    call = ["aggregate", updates, "--f", 2, "--seed", 1, "--rule", rule, "--out", out, "--force"]
    assert cli(*call).exit_code == 0
    plain = out.read_bytes()
    monkeypatch.setattr("randeigen.cli.aggregate_files.MAPPED_BYTES", 0)
    assert cli(*call).exit_code == 0
    assert out.read_bytes() == plain
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", f"m.{suffix}"]


def test_a_large_answer_is_made_in_a_file_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, rng = [], np.random.default_rng(0)
    for i in range(5):
        paths.append(tmp_path / f"{i}.safetensors")
        write_answer(
            paths[-1], {"a": rng.standard_normal((30, 7)).astype(np.float32), "b": np.float64([i, 2, 3])}
        )
    plain = randeigen.aggregate(paths, f=1, seed=0)
    monkeypatch.setattr("randeigen.rows.file_rows.MAPPED_BYTES", 0)
    mapped = randeigen.aggregate(paths, f=1, seed=0)
    assert all(np.array_equal(mapped.mean[name], plain.mean[name]) for name in ("a", "b"))
    write_answer(tmp_path / "mean.safetensors", mapped.mean)
    assert len(list(tmp_path.iterdir())) == 6
