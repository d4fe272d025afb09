"""The command opens thousands of files at full speed, whatever limit its shell has set."""

from __future__ import annotations

import errno
import os
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import cli
from randeigen.cli import audit
from randeigen.cli.app import OPEN_FILES, allow_open_files
from randeigen.rows.formats import reader
from randeigen.rows.formats.io import open_regular

N, SOFT = 300, 256  # files, and the limit of a macOS shell


@pytest.fixture(autouse=True)
def soft_limit() -> Iterator[int]:
    """A low soft limit, and afterwards the one before; the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home, rng = tmp_path / "in", np.random.default_rng(0)
    home.mkdir()
    for i in range(N):
        np.save(home / f"{i}.npy", rng.standard_normal(20_000).astype(np.float32))
    return home


def test_aggregate_and_replay_open_each_of_hundreds_of_files_three_times(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: Counter[str] = Counter()

    def counting(path: str) -> Any:
        opened[path] += 1
        return open_regular(path)

    monkeypatch.setattr(reader, "open_regular", counting)
    out, record = tmp_path / "mean.npy", tmp_path / "audit.json"
    assert cli("aggregate", folder, "--eps", 0.1, "--out", out, "--audit", record).exit_code == 0
    assert set(opened.values()) == {3}
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, hard))
    opened.clear()
    assert cli("replay", record).exit_code == 0
    assert set(opened.values()) == {3}


def test_the_soft_limit_is_raised_to_the_hard_one_at_most(soft_limit: int) -> None:
    allow_open_files()
    after = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A system whose hard limit is infinite allows what macOS does.
    assert after in ((min(soft_limit, OPEN_FILES[0]), soft_limit), (OPEN_FILES[1], soft_limit))
    allow_open_files()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == after, "a limit that is enough is left alone"


@pytest.mark.parametrize(
    ("limits", "refused", "asked"),
    [
        ((256, resource.RLIM_INFINITY), 10**9, [OPEN_FILES[0]]),
        ((256, resource.RLIM_INFINITY), 20_000, list(OPEN_FILES)),
        ((256, resource.RLIM_INFINITY), 500, list(OPEN_FILES)),
        ((256, 300), 10**9, [300]),
        ((300, 300), 10**9, []),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 10**9, []),
    ],
)
def test_what_the_system_does_not_allow_is_no_error(
    limits: tuple[int, int], refused: int, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def setrlimit(which: int, pair: tuple[int, int]) -> None:
        calls.append(pair[0])
        if pair[0] > refused:
            raise ValueError("current limit exceeds maximum limit")

    with monkeypatch.context() as patched:
        patched.setattr(resource, "getrlimit", lambda which: limits)
        patched.setattr(resource, "setrlimit", setrlimit)
        allow_open_files()
    assert calls == asked


def test_a_fingerprint_for_which_no_descriptor_is_left_is_no_unreadable_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(path: str) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    np.save(tmp_path / "0.npy", np.zeros(3))
    monkeypatch.setattr(audit, "open_regular", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        audit.digest(str(tmp_path / "0.npy"))
