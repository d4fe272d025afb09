"""What a sender's file may cost its reader: bytes read, files opened, memory; counted, not timed."""

from __future__ import annotations

import io
import json
import os
import struct
import tracemalloc
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import randeigen
from file_bytes import npy_bytes, npy_header, safetensors_bytes, whole, zip_bytes
from randeigen.errors import BadRows
from randeigen.rows import as_rows, write_answer
from randeigen.rows.formats import io as files_io
from randeigen.rows.formats import io as formats_io
from randeigen.rows.formats import reader

N, SIDE = 10, 256


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Bytes read and files opened so far, by file name."""
    spent: Counter[str] = Counter()
    real_open, real_read = formats_io.open_regular, formats_io.read_into

    def open_regular(path: str) -> Any:
        spent[f"opened {os.path.basename(path)}"] += 1
        file = real_open(path)
        names[id(file)] = os.path.basename(path)
        kept.append(file)
        return file

    def read_into(file: Any, start: int, view: memoryview) -> None:
        spent[f"read {names.get(id(file), 'spool')}"] += len(view)
        real_read(file, start, view)

    names: dict[int, str] = {}
    kept: list[Any] = []
    monkeypatch.setattr(reader, "open_regular", open_regular)
    monkeypatch.setattr(formats_io, "read_into", read_into)
    monkeypatch.setattr(reader, "read_into", read_into)
    return spent


def honest(folder: Path, suffix: str, pack: Callable[..., Any] = write_answer) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = [folder / f"{index}{suffix}" for index in range(N)]
    for path in paths:
        leaf = rng.standard_normal((SIDE, SIDE)).astype(np.float32)
        pack(path, leaf if suffix == ".npy" else {"w": leaf, "steps": np.array([3])})
    return paths


def names_without_numbers(count: int) -> bytes:
    nothing = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    return safetensors_bytes({f"{index:x}": nothing for index in range(count)}, b"")


def members(count: int, method: int = zipfile.ZIP_STORED) -> bytes:
    array = npy_bytes(np.zeros(0, np.float32))
    return zip_bytes([(f"{index:x}.npy", array) for index in range(count)], method)


def empty_blocks(size: int) -> bytes:
    """A deflated member of `size` bytes in which nothing is said until its end."""
    data = npy_bytes(np.zeros((size - 128) // 4, np.float32))
    packer = zlib.compressobj(0, zlib.DEFLATED, -15)
    stream = b"\x00\x00\x00\xff\xff" * (size // 6) + packer.compress(data) + packer.flush()
    local = struct.pack(
        "<4s5H3I2H", b"PK\x03\x04", 20, 0, 8, 0, 0, zlib.crc32(data), len(stream), len(data), 5, 0
    )
    sizes = zlib.crc32(data), len(stream), len(data)
    line = struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, 8, 0, 0, *sizes, 5, 0, 0, 0, 0, 0, 0)
    body = local + b"w.npy" + stream
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, len(line) + 5, len(body), 0)
    return body + line + b"w.npy" + end


HOSTILE: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "many names": (".safetensors", lambda: names_without_numbers(20_000), "declares a header of"),
    "some names": (".safetensors", lambda: names_without_numbers(300), "declares a header of"),
    "a long name": (".safetensors", lambda: safetensors_bytes({"x" * 100_000: {}}, b""), "declares a header"),
    "long metadata": (
        ".safetensors",
        lambda: safetensors_bytes({"__metadata__": {"a": "b" * 100_000}}, b""),
        "declares a header of",
    ),
    "a deep header": (
        ".safetensors",
        lambda: safetensors_bytes(b'{"a":' + b"[" * 10**6),
        "declares a header",
    ),
    "many members": (".npz", lambda: members(2000), "declares a zip directory of"),
    "some members": (".npz", lambda: members(200), "declares a zip directory of"),
    "many deflated members": (
        ".npz",
        lambda: members(2000, zipfile.ZIP_DEFLATED),
        "declares a zip directory",
    ),
    "a deflated bomb": (
        ".npz",
        lambda: zip_bytes([("w.npy", npy_bytes(np.zeros((4000, 1000))))], zipfile.ZIP_DEFLATED),
        "deflates 32,000,128 bytes",
    ),
    "a stream of empty blocks": (".npz", lambda: empty_blocks(12_000), "in "),
    "a header of an npy of megabytes": (
        ".npy",
        lambda: b"\x93NUMPY\x02\x00" + struct.pack("<I", 10**7) + b"(" * 10**7,
        "declares a header of 10,000,012",
    ),
    "an npy header that is a sum": (".npy", lambda: npy_header("1+" * 4000 + "1\n"), "cannot be parsed"),
    "an archive with a long tail": (
        ".npz",
        lambda: zip_bytes([("w.npy", npy_bytes(np.ones(3)))]) + b"\0" * 300_000,
        "no end record",
    ),
    "an archive with a long head": (
        ".npz",
        lambda: b"\0" * 300_000 + zip_bytes([("w.npy", npy_bytes(np.ones(3)))]),
        "zip archive",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("row", [0, 5, N - 1])
def test_a_file_that_asks_for_much_is_unusable_and_costs_less_than_an_honest_one(
    case: str, row: int, tmp_path: Path, cost: Counter[str]
) -> None:
    suffix, made, message = HOSTILE[case]
    paths = honest(tmp_path, suffix)
    paths[row].write_bytes(made())
    tracemalloc.start()
    source = as_rows(paths)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert list(source.unusable) == [row]
    assert message in source.unusable[row]
    assert cost[f"read {paths[row].name}"] < 2**18
    assert cost[f"opened {paths[row].name}"] == 1
    assert peak < 2**20
    result = randeigen.aggregate(paths, eps=0.2, seed=0)
    assert result.weights[row] == 0


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npy"])
def test_each_file_is_opened_three_times_and_read_twice(
    suffix: str, tmp_path: Path, cost: Counter[str]
) -> None:
    paths = honest(tmp_path, suffix)
    randeigen.aggregate(paths, eps=0.2, seed=0)
    for path in paths:
        assert cost[f"opened {path.name}"] <= 3
        assert cost[f"read {path.name}"] < 2 * path.stat().st_size + 2**18


def test_more_files_than_handles_are_each_looked_at_once(
    tmp_path: Path, cost: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_io, "MAX_OPEN_FILES", 3)
    paths = honest(tmp_path, ".npz")
    paths[8].write_bytes(b"")
    paths[4].write_bytes(members(2000))
    paths[2].unlink()
    source = as_rows(paths)
    assert max(cost[f"opened {path.name}"] for path in paths[3:]) == 1
    assert list(source.unusable) == [2, 4, 8]


def test_with_an_audit_each_file_is_opened_three_times_too(tmp_path: Path, cost: Counter[str]) -> None:
    pytest.importorskip("typer")
    from commands import cli

    (tmp_path / "in").mkdir()
    paths = honest(tmp_path / "in", ".safetensors")
    out = ["--out", tmp_path / "m.safetensors", "--audit", tmp_path / "a.json"]
    assert cli("aggregate", tmp_path / "in", "--f", 1, *out).exit_code == 0
    assert max(cost[f"opened {path.name}"] for path in paths) <= 3


def turned(path: Path, leaves: Any) -> None:
    np.savez_compressed(path, **{name: np.asfortranarray(leaf) for name, leaf in leaves.items()})


@pytest.mark.parametrize("deflate", [False, True])
def test_fortran_order_is_read_once_a_pass_however_many_strips_there_are(
    deflate: bool, tmp_path: Path, cost: Counter[str]
) -> None:
    paths = honest(tmp_path, ".npz", turned if deflate else write_answer)
    with np.load(paths[2]) as found:
        leaves = dict(found)
    expected = whole(as_rows(paths))
    if not deflate:
        np.savez(paths[2], **{name: np.asfortranarray(leaf) for name, leaf in leaves.items()})
    source: Any = as_rows(paths, block_bytes=N * 4 * 1024)  # 64 strips
    cost.clear()
    assert np.array_equal(whole(source), expected)
    assert not source.unusable
    assert cost[f"read {paths[2].name}"] < 1.2 * SIDE * SIDE * 4
    assert source.changed() == []


def test_deflated_files_are_read_where_most_are_deflated(tmp_path: Path) -> None:
    paths = honest(tmp_path, ".npz", lambda path, leaves: np.savez_compressed(path, **leaves))
    with np.load(paths[0]) as found:
        np.savez(paths[0], **dict(found))
    assert not as_rows(paths).unusable
    for path in paths[1:8]:
        with np.load(path) as found:
            np.savez(path, **dict(found))
    source = as_rows(paths)
    assert list(source.unusable) == [8, 9]
    assert "deflates 262," in source.unusable[8]


def test_long_headers_are_read_where_most_are_long(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for suffix in (".npz", ".safetensors"):
        paths = [tmp_path / f"{index}{suffix}" for index in range(3)]
        for path in paths:
            write_answer(path, {f"layer.{index}.weight": rng.standard_normal(3) for index in range(1500)})
        assert not as_rows(paths).unusable


def test_thousands_of_files_are_held_in_few_bytes_each(tmp_path: Path) -> None:
    first, second = tmp_path / "a.npz", tmp_path / "b.npz"
    leaves = {f"layer.{index}": np.ones(4, np.float32) for index in range(20)}
    write_answer(first, leaves)
    write_answer(second, leaves)
    tracemalloc.start()
    source = as_rows([first, second] * 200)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert source.n == 400
    assert held < 400 * 1000


# What most files are.


def test_the_suffix_of_most_files_is_the_form(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [{"w": rng.standard_normal(50).astype(np.float32)} for _ in range(40)]
    paths = [tmp_path / f"{index}.safetensors" for index in range(40)]
    paths[0] = tmp_path / "0.npz"
    paths[7] = tmp_path / "7.pt"
    paths[20] = tmp_path / "nothing"
    for index, path in enumerate(paths):
        if path.suffix in (".npz", ".safetensors"):
            write_answer(path, rows[index])
        else:
            path.write_bytes(b"weights")
    result = randeigen.aggregate(paths, eps=0.2, seed=0)
    assert sorted(result.unusable) == [0, 7, 20]
    assert "is a .npz file, most are .safetensors files" in result.unusable[0]
    assert "is a .pt file" in result.unusable[7]
    assert "is a nameless file" in result.unusable[20]
    assert result.mean["w"].dtype == np.float32


def test_where_no_suffix_is_that_of_most_files_the_caller_gets_an_error(tmp_path: Path) -> None:
    for index, suffix in enumerate((".npy", ".npy", ".npz", ".npz")):
        write_answer(tmp_path / f"{index}{suffix}", np.ones(3))
    with pytest.raises(BadRows, match=r"row 2 is a \.npz file, row 0 a \.npy file; pass one format"):
        as_rows(sorted(tmp_path.iterdir()))


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npy"])
@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4"])
def test_floats_of_another_width_are_cast_and_do_not_decide_the_answer(
    suffix: str, dtype: Any, tmp_path: Path
) -> None:
    if suffix == ".safetensors" and dtype == ">f4":
        pytest.skip("safetensors has one byte order")
    rows = np.random.default_rng(0).integers(-99, 99, (9, 20)).astype(np.float32) / 8
    paths = [tmp_path / f"{index}{suffix}" for index in range(9)]
    for index, path in enumerate(paths):
        row = rows[index].astype(dtype if index in (0, 4) else np.float32)
        write_answer(path, row if suffix == ".npy" else {"w": row})
    source = as_rows(paths)
    assert not source.unusable
    assert np.array_equal(whole(source), rows)
    answer = randeigen.aggregate(paths, eps=0.2, seed=0).mean
    assert (answer if suffix == ".npy" else answer["w"]).dtype == np.float32


def test_a_float64_row_beyond_float32_is_unusable_among_float32(tmp_path: Path) -> None:
    paths = [tmp_path / f"{index}.npy" for index in range(8)]
    for path in paths:
        np.save(path, np.random.default_rng(0).standard_normal(20).astype(np.float32))
    np.save(paths[3], np.full(20, 1e200))
    result = randeigen.aggregate(paths, eps=0.2, seed=0)
    assert list(result.unusable) == [3]
    assert result.mean.dtype == np.float32


# Files that change.


def swap_in_place(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)


def swap_by_name(path: Path, data: bytes) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(data)
    os.replace(other, path)


def swap_by_link(path: Path, data: bytes) -> None:
    os.link(path, path.with_suffix(".link"))
    swap_in_place(path.with_suffix(".link"), data)


def swap_by_folder(path: Path, data: bytes) -> None:
    home = path.parent
    home.rename(home.with_name("elsewhere"))
    home.mkdir()
    for other in home.with_name("elsewhere").iterdir():
        (home / other.name).write_bytes(data if other.name == path.name else other.read_bytes())
        os.utime(home / other.name, ns=(other.stat().st_atime_ns, other.stat().st_mtime_ns))


@pytest.mark.parametrize("swap", [swap_in_place, swap_by_name, swap_by_link, swap_by_folder])
@pytest.mark.parametrize("when", ["measuring", "averaging"])
@pytest.mark.parametrize("n", [6, 12])
def test_a_file_exchanged_between_or_within_readings_is_never_averaged_unjudged(
    swap: Callable[[Path, bytes], None], when: str, n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_io, "MAX_OPEN_FILES", 8)
    (tmp_path / "in").mkdir()
    paths = [tmp_path / "in" / f"{index}.npy" for index in range(n)]
    for path in paths:
        np.save(path, np.random.default_rng(0).standard_normal(1000).astype(np.float32))
    before = paths[1].stat()
    stages = set()

    def progress(stage: str, done: int, total: int) -> None:
        stages.add(stage)
        if stage == when and done == total:
            swap(paths[1], npy_bytes(np.full(1000, 1e6, np.float32)))
            os.utime(paths[1], ns=(before.st_atime_ns, before.st_mtime_ns))

    with pytest.raises(BadRows, match="changed on disk"):
        randeigen.aggregate(paths, f=1, progress=progress)
    assert when in stages


# Fingerprints.


def test_an_audit_does_not_read_a_huge_file_nor_one_without_an_end(
    tmp_path: Path, cost: Counter[str]
) -> None:
    pytest.importorskip("typer")
    from commands import cli

    (tmp_path / "in").mkdir()
    paths = honest(tmp_path / "in", ".npy")
    for index in (1, 2):
        paths[index].unlink()
    with paths[1].open("wb") as file:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "<f4", "fortran_order": False, "shape": (5 * 10**9,)}
        )
        file.write(header.getvalue())
        file.truncate(20 * 10**9 + len(header.getvalue()))
    endless = Path("/proc/kmsg")
    paths[2].symlink_to(endless if endless.exists() else "/dev/zero")
    out = ["--out", tmp_path / "m.npy", "--audit", tmp_path / "a.json"]
    result = cli("aggregate", tmp_path / "in", "--f", 3, *out)
    assert result.exit_code == 0, result.output
    assert cost["read 1.npy"] < 2**16
    said = json.loads((tmp_path / "a.json").read_text())["files"]
    assert (said[1]["sha256"], said[1]["bytes"]) == (None, 20_000_000_128)
    assert said[1]["unread"] == "has 20,000,000,128 bytes, more than the files that were judged"
    assert cli("replay", tmp_path / "a.json").exit_code == 0
    assert cost["read 1.npy"] < 2**16
