"""Large files are read in parts, by whoever works on them, and give what their numbers give in memory."""

from __future__ import annotations

import os
import threading
from collections import Counter
from io import RawIOBase
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import randeigen
from randeigen.backend import native
from randeigen.backend.chunking import BLOCK_BYTES, parallel_map
from randeigen.backend.host_leaves import HostLeaves, as_copied
from randeigen.backend.thread_memory import memory_of_thread
from randeigen.geometry import measure
from randeigen.geometry.segments import SegmentedGram, Segments
from randeigen.rows import as_rows, write_safetensors
from randeigen.rows.file_rows import FileRows
from randeigen.rows.formats import reader
from randeigen.rows.formats.io import UnreadableFile, open_regular
from randeigen.rows.formats.reader import Reader
from randeigen.types import Array

N, F = 12, 2
SHAPES = {"a": (700, 500), "b": (3,), "c": (2**18 + 5,), "d": ()}  # 29 MB in all: more than one block


@pytest.fixture(params=["with loops", "without"], autouse=True)
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one call for all rows, and row by row."""
    if request.param == "without":
        monkeypatch.setattr(native, "loops", lambda: None)
    elif native.loops() is None:
        pytest.skip("there are no loops in C here")


def updates(folder: Path, halves: tuple[int, ...] = ()) -> tuple[list[str], list[dict[str, Any]]]:
    """Files of some updates, two of them far off, and what they hold; some are stored in half precision."""
    rng, paths, given = np.random.default_rng(5), [], []
    for i in range(N):
        dtype = np.float16 if i in halves else np.float32
        row = {name: np.asarray(rng.standard_normal(shape), dtype) for name, shape in SHAPES.items()}
        if i < F:
            row["c"] += dtype(3)
        paths.append(str(folder / f"{i}.safetensors"))
        write_safetensors(paths[-1], row)
        given.append(row)
    return paths, given


@pytest.mark.parametrize("halves", [(), (4, 7)], ids=["float32", "two in float16"])
def test_they_give_the_answer_of_the_same_numbers_in_memory(tmp_path: Path, halves: tuple[int, ...]) -> None:
    paths, given = updates(tmp_path, halves)
    block = next(as_rows(paths).blocks())[1]
    assert isinstance(block, HostLeaves)
    found, expected = (randeigen.aggregate(as_rows(rows), f=F, seed=1) for rows in (paths, given))
    np.testing.assert_allclose(found.weights, expected.weights, rtol=0, atol=1e-6)
    for name in SHAPES:
        np.testing.assert_allclose(found.mean[name], expected.mean[name], atol=1e-6)


def test_every_cut_of_a_block_holds_the_files_own_numbers(tmp_path: Path) -> None:
    paths, given = updates(tmp_path)
    (d,) = {sum(np.size(leaf) for leaf in row.values()) for row in given}
    rows = np.array([np.concatenate([np.ravel(leaf) for leaf in row.values()]) for row in given])
    seen = np.zeros(d, bool)
    for columns, block in as_rows(paths).blocks():
        width = columns.stop - columns.start
        whole = rows[:, columns]
        for cut in (slice(0, width), slice(5, 2**16), slice(width - 3, width), slice(1, width, width // 7)):
            np.testing.assert_array_equal(block[:, cut].numpy(), whole[:, cut])
        np.testing.assert_array_equal(block[3:5].numpy(), whole[3:5])
        np.testing.assert_array_equal(block[[7, 0, 7]][:, 10:20].numpy(), whole[[7, 0, 7], 10:20])
        seen[columns] = True
    assert seen.all()


@pytest.mark.parametrize("code", ["F16", "BF16"])
@pytest.mark.parametrize("left_out", [(), (0, 5)], ids=["all rows", "not two of them"])
def test_half_precision_is_widened_as_in_memory(tmp_path: Path, code: str, left_out: tuple[int, ...]) -> None:
    rng, d, paths = np.random.default_rng(2), 2**19 + 3, []
    stored = rng.integers(0, 2**16, (N, d), dtype=np.uint16)  # any bits, of NaN and infinity too
    wide = stored.view(np.float16).astype(np.float32) if code == "F16" else None
    rows = (stored.astype(np.uint32) << 16).view(np.float32) if wide is None else wide
    for i, row in enumerate(rows):
        paths.append(str(tmp_path / f"{i}.safetensors"))
        write_safetensors(paths[-1], {"a": row[:100], "b": row[100:]}, {"a": code, "b": code})
    for i in left_out:
        Path(paths[i]).write_bytes(b"no header")
        rows[i] = np.nan
    for columns, block in as_rows(paths).blocks():
        assert isinstance(block, HostLeaves)
        width, whole = columns.stop - columns.start, rows[:, columns]
        for cut in (slice(0, width), slice(90, 110), slice(width - 3, width), slice(1, width, width // 7)):
            np.testing.assert_array_equal(block[:, cut].numpy(), whole[:, cut])


def test_a_file_that_is_gone_before_it_is_read_is_named(tmp_path: Path) -> None:
    paths, _ = updates(tmp_path)
    rows = as_rows(paths)
    os.remove(paths[3])
    _, unusable = measure(rows, seed=3)
    assert list(unusable) == [3]
    assert "cannot be opened" in unusable[3]


def test_segments_measured_together_have_the_bits_of_each_alone(tmp_path: Path) -> None:
    rows = as_rows(updates(tmp_path, halves=(4, 7))[0])
    assert isinstance(rows, FileRows)
    assert rows.segment_columns is not None
    segments = Segments(rows.d, rows.segment_columns)
    together, alone = SegmentedGram(N, 3, segments), SegmentedGram(N, 3, segments)
    widths = []
    for columns, block in rows.blocks():
        widths.append(block.shape[1])
        together.add(columns, block)
    for columns, block in as_copied(rows.blocks()):
        alone.add(columns, block)
    assert max(widths) > segments.width
    first, second = together.geometry(), alone.geometry()
    np.testing.assert_array_equal(first.inner_products(), second.inner_products())
    assert first.precision == second.precision


def test_no_copy_is_wider_than_a_block(tmp_path: Path) -> None:
    rows = as_rows(updates(tmp_path)[0])
    for _, block in as_copied(rows.blocks()):
        assert block.numpy().nbytes <= BLOCK_BYTES


@pytest.mark.parametrize("rule", ["median", "centered-clipping", "krum", "mean", "geometric-median"])
def test_every_kind_of_rule_reads_them(tmp_path: Path, rule: str) -> None:
    paths, given = updates(tmp_path)
    found, expected = (randeigen.aggregate(as_rows(rows), rule=rule, f=F, seed=1) for rows in (paths, given))
    for name in SHAPES:
        np.testing.assert_allclose(found.mean[name], expected.mean[name], atol=1e-5)


def test_a_row_that_is_no_file_is_left_out(tmp_path: Path) -> None:
    paths, given = updates(tmp_path)
    found = randeigen.aggregate(as_rows([*paths[:6], given[0], *paths[6:]]), f=F + 1, seed=1)
    expected = randeigen.aggregate(given, f=F, seed=1)
    assert list(found.unusable) == [6]
    np.testing.assert_allclose(np.delete(found.weights, 6), expected.weights, rtol=0, atol=1e-6)


def test_a_file_that_is_cut_off_while_it_is_read_is_named_and_moves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, given = updates(tmp_path)
    opened = Reader.open

    def cut_off(reader: Reader, row: int) -> None:
        opened(reader, row)
        if row == 5:
            os.truncate(paths[5], 4 * 700 * 400)

    monkeypatch.setattr(Reader, "open", cut_off)
    geometry, unusable = measure(as_rows(paths), seed=3)
    assert list(unusable) == [5]
    assert "ends at byte" in unusable[5]
    others = [row for i, row in enumerate(given) if i != 5]
    expected, _ = measure(as_rows(others), seed=3)
    kept = [i for i in range(N) if i != 5]
    np.testing.assert_allclose(squares(geometry)[kept], squares(expected), rtol=1e-5)


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was opened so far, by path."""
    counted: Counter[str] = Counter()

    def counting(path: str) -> RawIOBase:
        counted[path] += 1
        return open_regular(path)

    monkeypatch.setattr(reader, "open_regular", counting)
    return counted


@pytest.mark.parametrize("change", ["grown", "replaced", "gone"])
def test_a_file_that_is_changed_before_it_is_read_is_opened_once_a_pass(
    change: str, tmp_path: Path, openings: Counter[str]
) -> None:
    paths, _ = updates(tmp_path)
    rows = as_rows(paths)
    if change == "grown":
        with open(paths[3], "ab") as file:
            file.write(b"more")
    else:
        os.remove(paths[3])
    if change == "replaced":
        Path(paths[3]).write_bytes(Path(paths[4]).read_bytes())
    _, unusable = measure(rows, seed=3)
    assert list(unusable) == [3]
    assert set(openings.values()) == {2}


def test_a_file_that_could_not_be_opened_is_not_opened_by_the_threads_that_share_it(
    tmp_path: Path, openings: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, _ = updates(tmp_path)
    rows = as_rows(paths)
    lost = [paths[5]]

    def interrupted(path: str) -> RawIOBase:
        openings[path] += 1
        if path in lost:
            lost.remove(path)
            raise UnreadableFile("cannot be opened: Host is down")
        return open_regular(path)

    monkeypatch.setattr(reader, "open_regular", interrupted)
    _, unusable = measure(rows, seed=3)
    assert {row: "Host is down" in reason for row, reason in unusable.items()} == {5: True}
    assert set(openings.values()) == {2}


def squares(geometry: Any) -> Array:
    """Squared norms, in the rows' own unit."""
    return np.asarray(geometry.squared_norms() * geometry.scale**2)


def test_memory_that_somebody_holds_is_not_written_to_again() -> None:
    shape, dtype = (7, 300), np.dtype(np.float32)
    first = memory_of_thread(shape, dtype)
    first[:] = 1
    line = first[3]
    second = memory_of_thread(shape, dtype)
    second[:] = 2
    assert (first == 1).all()
    del first
    third = memory_of_thread(shape, dtype)
    third[:] = 3
    assert (line == 1).all()
    assert (second == 2).all()
    address = third.ctypes.data
    del second, third, line
    assert memory_of_thread(shape, dtype).ctypes.data == address


def test_parts_of_a_part_stay_with_its_thread() -> None:
    def of_part(part: int) -> set[int]:
        return {threading.get_ident(), *parallel_map(lambda _: threading.get_ident(), range(8))}

    assert all(len(threads) == 1 for threads in parallel_map(of_part, range(8)))
    assert parallel_map(lambda each: each + 1, range(8)) == list(range(1, 9))
