"""However many files there are: each is opened three times, few descriptors are taken, and none is missed."""

from __future__ import annotations

import errno
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import randeigen
from randeigen.rows import as_rows, file_rows, write_safetensors
from randeigen.rows.formats import io, reader, transposed
from randeigen.rows.formats.io import MAX_OPEN_FILES, most_open_files, open_regular

MANY, FEW = 300, 40  # files; so few are read in parts by threads
WIDE = 120_000  # columns of them


def in_use() -> int:
    """Descriptors of this process."""
    return len(os.listdir("/dev/fd")) - 1  # less that of this look


@contextmanager
def descriptors(limit: int) -> Iterator[None]:
    """A process that may have so many."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def all_taken_but(left: int) -> Iterator[None]:
    """A process whose other parts hold all of its descriptors but these."""
    taken = []
    with descriptors(in_use() + 100):
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for each in taken[:left]:
            os.close(each)
        try:
            yield
        finally:
            for each in taken[left:]:
                os.close(each)


def saved(folder: Path, n: int, d: int, turn: Callable[[Any], Any] = np.asarray) -> list[str]:
    rng = np.random.default_rng(0)
    paths = [str(folder / f"{i}.npy") for i in range(n)]
    for path in paths:
        np.save(path, turn(rng.standard_normal(d).astype(np.float32)))
    return paths


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was opened so far; under `most`, how many descriptors were in use at most."""
    counted: Counter[str] = Counter()

    def counting(path: str) -> Any:
        counted[path] += 1
        file = open_regular(path)
        counted["most"] = max(counted["most"], in_use())
        return file

    monkeypatch.setattr(reader, "open_regular", counting)
    return counted


def same(one: Any, other: Any) -> bool:
    """Whether two verdicts are equal, bit by bit."""
    arrays = np.array_equal(one.mean, other.mean) and np.array_equal(one.weights, other.weights)
    return bool(arrays and one.bias_bound == other.bias_bound and not one.unusable and not other.unusable)


# Three times.


def test_hundreds_of_files_of_several_blocks_are_each_opened_three_times(
    tmp_path: Path, openings: Counter[str]
) -> None:
    paths = saved(tmp_path, MANY, 70_000)  # 84 MB
    with descriptors(in_use() + 2 * MANY + 10):
        result = randeigen.aggregate(paths, eps=0.1, seed=1)
    assert not result.unusable
    assert {openings[path] for path in paths} == {3}


def test_integers_beside_the_numbers_of_hundreds_of_files_take_no_opening_of_their_own(
    tmp_path: Path, openings: Counter[str]
) -> None:
    paths = [str(tmp_path / f"{i}.safetensors") for i in range(MANY)]
    for i, path in enumerate(paths):  # 150,000 integers in all
        leaves = {"w": np.full(30, i, np.float32), "steps": np.arange(500)}
        write_safetensors(path, leaves)
    with descriptors(in_use() + 2 * MANY + 10):
        result = randeigen.aggregate(paths, eps=0.1, seed=1)
    assert np.array_equal(result.mean["steps"], np.arange(500))
    assert {openings[path] for path in paths} == {3}


def test_where_the_limit_is_low_files_are_opened_again_for_each_64_mb_and_the_verdict_is_the_same(
    tmp_path: Path, openings: Counter[str]
) -> None:
    paths = saved(tmp_path, MANY, 70_000)  # 84 MB
    expected = randeigen.aggregate(paths, eps=0.1, seed=1)
    openings.clear()
    with descriptors(in_use() + 64):
        result = randeigen.aggregate(paths, eps=0.1, seed=1)
        assert openings["most"] < in_use() + 40
    assert same(result, expected)
    assert max(openings[path] for path in paths) <= 1 + 2 * 2


@pytest.mark.parametrize("n", [FEW, 200])
def test_no_bit_depends_on_how_many_files_stay_open(
    n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = saved(tmp_path, n, WIDE)
    expected = randeigen.aggregate(paths, eps=0.1, seed=1)
    monkeypatch.setattr(io, "MAX_OPEN_FILES", 3)
    assert same(randeigen.aggregate(paths, eps=0.1, seed=1), expected)
    monkeypatch.setattr(file_rows, "REOPENED_BYTES", 1)
    assert same(randeigen.aggregate(paths, eps=0.1, seed=1), expected)


# How many stay open.


def test_a_pass_takes_half_of_the_descriptors_that_are_free() -> None:
    used = in_use() + 1  # the look itself takes one
    for free, most in ((2000, 1000), (600, 300), (64, 32), (200, 128), (150, 118), (2, 1), (0, 1)):
        with descriptors(used + free + 1):
            assert most_open_files() in (most, most + 1), free


@pytest.mark.parametrize("limit", [resource.RLIM_INFINITY, 2**62])
def test_without_a_limit_a_pass_takes_no_more_than_a_few_ten_thousand(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io.resource, "getrlimit", lambda which: (limit, limit))
    assert most_open_files() == MAX_OPEN_FILES


def test_a_system_that_tells_nothing_of_limits_is_taken_to_allow_the_usual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(io, "resource", None)
    monkeypatch.setattr(os, "listdir", lambda path: os.stat(f"{path}/not there"))
    assert most_open_files() == 512


def test_each_of_two_passes_at_once_leaves_the_other_some(tmp_path: Path) -> None:
    paths = saved(tmp_path, MANY, 20_000)
    with descriptors(in_use() + 400):
        one, other = as_rows(paths).blocks(), as_rows(paths).blocks()
        for (columns, first), (same_columns, second) in zip(one, other, strict=True):
            assert columns == same_columns
            assert np.array_equal(first, second)
            assert np.isfinite(first).all()


def test_a_library_leaves_its_callers_limit_alone(tmp_path: Path) -> None:
    paths = saved(tmp_path, FEW, 10)
    with descriptors(in_use() + 64):
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        randeigen.aggregate(paths, eps=0.1)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


# No descriptor left is no evidence against a sender.


@pytest.mark.parametrize("left", [3, 6])
def test_where_few_descriptors_are_left_every_sender_is_judged(left: int, tmp_path: Path) -> None:
    paths = saved(tmp_path, FEW, WIDE)
    expected = randeigen.aggregate(paths, eps=0.1, seed=1)
    with all_taken_but(left):
        assert same(randeigen.aggregate(paths, eps=0.1, seed=1), expected)


def test_where_none_is_left_the_caller_hears_of_it_and_no_sender_is_blamed(tmp_path: Path) -> None:
    paths = saved(tmp_path, FEW, 10)
    randeigen.aggregate(paths, eps=0.1)
    with (
        all_taken_but(0),
        pytest.raises(OSError, match=r"Too many open files; let this process open more .*0\.npy") as caught,
    ):
        randeigen.aggregate(paths, eps=0.1)
    assert caught.value.errno == errno.EMFILE


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("at", [5, FEW + 8, 2 * FEW])
def test_where_descriptors_run_out_within_a_reading_fewer_files_stay_open(
    number: int, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = saved(tmp_path, FEW, WIDE)
    expected = randeigen.aggregate(paths, eps=0.1, seed=1)
    calls = 0

    def opened(path: str) -> Any:
        nonlocal calls
        calls += 1
        if at <= calls < at + 3:
            raise OSError(number, os.strerror(number), path)
        return open_regular(path)

    monkeypatch.setattr(reader, "open_regular", opened)
    assert same(randeigen.aggregate(paths, eps=0.1, seed=1), expected)
    assert calls >= 3 * FEW + 3


def test_a_leaf_in_fortran_order_that_finds_no_descriptor_is_the_callers_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = saved(tmp_path, FEW, 9000, lambda row: np.asfortranarray(row.reshape(90, 100)))

    def none_left(**options: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(transposed, "TemporaryFile", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        list(as_rows(paths, block_bytes=2**14).blocks())
