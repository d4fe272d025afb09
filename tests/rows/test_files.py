"""Files others wrote: read strictly, in bounded memory; what is wrong with one is evidence, no exception."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from file_bytes import NUMBERS, npy_bytes, npy_header, safetensors_bytes, whole, zip_bytes
from randeigen.errors import BadParameter, BadRows
from randeigen.rows import as_rows, write_answer, write_safetensors
from randeigen.rows import write as save
from randeigen.rows.formats.inflate import Inflater
from randeigen.rows.formats.io import CODES, Deflated
from sources import FORMS, SHAPES, deflated, joined, matrix, saved, split

F32 = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
BYTE = {"dtype": "U8", "shape": [1], "data_offsets": [24, 25]}


def mean(source: Any, weights: Any = None) -> Any:
    weights = np.full(source.n, 1 / source.n) if weights is None else np.asarray(weights)
    answer = source.answer()
    for columns, block in source.blocks():
        answer.write(columns, (weights[weights > 0].astype(block.dtype) @ block[weights > 0]))
    return answer.finish(weights)


def among_honest(folder: Path, suffix: str, hostile: bytes | None) -> Any:
    """Three honest files and a hostile one, which comes first and would set the template if it could."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    paths = [folder / f"{index}{suffix}" for index in range(4)]
    for path in paths[1:]:
        if not path.exists():
            write_answer(path, array if suffix == ".npy" else {"w": array})
    if hostile is not None:
        paths[0].write_bytes(hostile)
    return as_rows(paths)


def assert_lost(source: Any, message: str) -> None:
    """The first file is unusable, for a reason that says this; the others are untouched."""
    found = whole(source)
    assert list(source.unusable) == [0]
    assert message in source.unusable[0]
    assert "0." in source.unusable[0]
    assert np.isnan(found[0]).all()
    assert np.array_equal(found[1:], [np.arange(6)] * 3)


def header_with(**changes: Any) -> dict[str, Any]:
    return {"w": F32 | changes}


HOSTILE_SAFETENSORS: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "No such file"),
    "empty": (b"", "has 0 bytes"),
    "seven bytes": (b"\0" * 7, "has 7 bytes"),
    "length zero": (b"\0" * 8 + NUMBERS, "does not begin with '{'"),
    "length 2^63": (struct.pack("<Q", 2**63) + b"{}", "declares a header of 9,223,372,036,854,775,808"),
    "length 2^64 - 1": (b"\xff" * 8 + b"{}", "declares a header of"),
    "length one too long": (struct.pack("<Q", 3) + b"{}", "declares a header of 3 bytes, found 2"),
    "header not text": (safetensors_bytes(b'{"\xff": 1}'), "not JSON"),
    "header a list": (safetensors_bytes(b"[]"), "does not begin with '{'"),
    "header cut": (safetensors_bytes(b'{"w": '), "not JSON"),
    "header with a tail": (safetensors_bytes(b"{} {}"), "not JSON"),
    "NaN in the header": (safetensors_bytes(b'{"w": NaN}'), "NaN is not JSON"),
    "a deep header": (safetensors_bytes(b'{"w":' + b"[" * 3000), "not JSON"),
    "a very long number": (safetensors_bytes(b'{"w": ' + b"9" * 10_000 + b"}"), ""),
    "a key twice": (
        safetensors_bytes(b'{"w": %s, "w": %s}' % ((json.dumps(F32).encode(),) * 2)),
        "a key that appears twice",
    ),
    "a field twice": (
        safetensors_bytes(b'{"w": {"dtype":"F64","dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'),
        "a key that appears twice",
    ),
    "metadata not a table": (safetensors_bytes({"__metadata__": 3, "w": F32}), "metadata"),
    "metadata not strings": (safetensors_bytes({"__metadata__": {"a": 3}, "w": F32}), "metadata"),
    "entry not a table": (safetensors_bytes({"w": [1]}), "without exactly"),
    "entry without shape": (safetensors_bytes({"w": {"dtype": "F32", "data_offsets": [0, 24]}}), "without"),
    "entry with more": (safetensors_bytes(header_with(extra=1)), "without exactly"),
    "unknown dtype": (safetensors_bytes(header_with(dtype="F8_E4M3")), "'F8_E4M3'"),
    "dtype not a name": (safetensors_bytes(header_with(dtype=["F32"])), "of dtype"),
    "negative side": (safetensors_bytes(header_with(shape=[-2, -3])), "not counts"),
    "fractional side": (safetensors_bytes(header_with(shape=[2.0, 3])), "not counts"),
    "true side": (safetensors_bytes(header_with(shape=[True, 6])), "not counts"),
    "shape not a list": (safetensors_bytes(header_with(shape=6)), "not counts"),
    "absurd side": (safetensors_bytes(header_with(shape=[2**61, 2**61])), "impossible shape"),
    "absurd but empty": (safetensors_bytes(header_with(shape=[0, 2**61], data_offsets=[0, 0])), "impossible"),
    "too many sides": (safetensors_bytes(header_with(shape=[1] * 1000)), "impossible shape"),
    "offsets negative": (safetensors_bytes(header_with(data_offsets=[-24, 0])), "not counts"),
    "offsets three": (safetensors_bytes(header_with(data_offsets=[0, 24, 48])), "not counts"),
    "offsets turned": (safetensors_bytes(header_with(data_offsets=[24, 0])), "gives it bytes 24 to 0"),
    "offsets too short": (safetensors_bytes(header_with(data_offsets=[0, 20])), "gives it bytes 0 to 20"),
    "offsets beyond": (safetensors_bytes(header_with(data_offsets=[24, 48])), "expected 0: a gap"),
    "offsets past the end": (safetensors_bytes(header_with(), NUMBERS[:-1]), "has 23 bytes of numbers"),
    "bytes left over": (safetensors_bytes(header_with(), NUMBERS + b"x"), "has 25 bytes of numbers"),
    "offsets overlapping": (
        safetensors_bytes({"w": F32, "v": {"dtype": "F32", "shape": [2], "data_offsets": [16, 24]}}),
        "an overlap",
    ),
    "a hole": (
        safetensors_bytes({"w": F32, "v": BYTE | {"data_offsets": [25, 26]}}, NUMBERS + b"ab"),
        "a gap",
    ),
    "half a character": (safetensors_bytes(b'{"\\ud800": %s}' % json.dumps(F32).encode()), "not text"),
    "no tensors": (safetensors_bytes({}, b""), "has no array 'w'"),
    "another name": (safetensors_bytes({"\x1b[2Jv": F32}), "has no array 'w'"),
    "one name more": (
        safetensors_bytes({"w": F32, "\x1b[2J": BYTE}, NUMBERS + b"a"),
        "has array '\\x1b[2J', most files have none",
    ),
    "another shape": (safetensors_bytes(header_with(shape=[3, 2])), "of F32 [3, 2], most files have F32 [2"),
    "another dtype": (safetensors_bytes(header_with(dtype="I32")), "of I32 [2, 3], most files have F32 [2"),
    "a pickle": (pickle.dumps({"w": [1.0]}), "declares a header"),
    "an npy": (npy_bytes(np.ones(6)), "declares a header"),
}


@pytest.mark.parametrize("case", HOSTILE_SAFETENSORS)
def test_a_hostile_safetensors_file_is_unusable_and_harms_no_other(case: str, tmp_path: Path) -> None:
    hostile, message = HOSTILE_SAFETENSORS[case]
    assert_lost(among_honest(tmp_path, ".safetensors", hostile), message)


def test_a_safetensors_file_cut_anywhere_is_unusable(tmp_path: Path) -> None:
    good = safetensors_bytes({"w": F32})
    for length in range(len(good)):
        assert_lost(among_honest(tmp_path, ".safetensors", good[:length]), "")
    assert not among_honest(tmp_path, ".safetensors", good).unusable


def test_a_safetensors_file_with_any_header_byte_changed_never_raises(tmp_path: Path) -> None:
    good = bytearray(safetensors_bytes({"w": F32}))
    for at in range(len(good) - len(NUMBERS)):
        for bit in (0x01, 0x10, 0x80):
            bad = bytearray(good)
            bad[at] ^= bit
            source = among_honest(tmp_path, ".safetensors", bytes(bad))
            assert np.array_equal(whole(source)[1:], [np.arange(6)] * 3)


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, ("unpickled",)


GOOD_HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n"
HOSTILE_NPY: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "No such file"),
    "empty": (b"", "does not begin"),
    "half a magic": (b"\x93NU", "does not begin"),
    "magic only": (b"\x93NUMPY", "npy of version"),
    "version 9": (npy_header(GOOD_HEADER, version=b"\x09\x00"), "'9.0'"),
    "header beyond the end": (b"\x93NUMPY\x01\x00\xff\xff{}", "declares a header of 65,545"),
    "header of 4 GB": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}", "declares a header of 4,294,967,307"),
    "header not a table": (npy_header("[]\n"), "cannot be parsed"),
    "header code": (npy_header("__import__('os').mkdir('unpickled')\n"), "cannot be parsed"),
    "header deep": (npy_header("(" * 5000 + "\n"), "cannot be parsed"),
    "header too long": (npy_header(GOOD_HEADER[:-1] + " " * 12_000 + "\n"), "cannot be parsed"),
    "header with a key more": (npy_header(GOOD_HEADER.replace("}", "'x': 1}")), "cannot be parsed"),
    "dtype unknown": (npy_header(GOOD_HEADER.replace("<f4", "<q9")), "cannot be parsed"),
    "dtype old": (npy_header(GOOD_HEADER.replace("<f4", "a4")), ""),
    "pickled objects": (npy_bytes(np.array([Bomb()], dtype=object)), "nothing is unpickled"),
    "structured": (npy_bytes(np.zeros(3, [("a", "f4"), ("b", "f4")])), "only real numbers"),
    "complex": (npy_bytes(np.zeros(3, complex)), "only real numbers"),
    "text": (npy_bytes(np.array(["abc"])), "only real numbers"),
    "negative side": (npy_header(GOOD_HEADER.replace("(2, 3)", "(-2, -3)")), "impossible shape"),
    "absurd side": (npy_header(GOOD_HEADER.replace("(2, 3)", f"({10**30},)")), "impossible shape"),
    "large claim": (npy_header(GOOD_HEADER.replace("(2, 3)", f"({10**12},)")), "000,000,000 bytes, found 24"),
    "cut": (npy_bytes(np.ones((2, 3), np.float32))[:-1], "24 bytes, found 23"),
    "too long": (npy_bytes(np.ones((2, 3), np.float32)) + b"x", "24 bytes, found 25"),
    "another shape": (npy_bytes(np.ones(6, np.float32)), "an array of F32 [6], most files have F32 [2, 3]"),
    "integers": (npy_bytes(np.ones((2, 3), np.int32)), "of I32 [2, 3], most files have F32"),
    "a bare pickle": (pickle.dumps(Bomb()), "does not begin"),
    "an archive": (zip_bytes([("w.npy", npy_bytes(np.ones(6)))]), "does not begin"),
}


@pytest.mark.parametrize("case", HOSTILE_NPY)
def test_a_hostile_npy_file_is_unusable_and_harms_no_other(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hostile, message = HOSTILE_NPY[case]
    assert_lost(among_honest(tmp_path, ".npy", hostile), message)
    assert not (tmp_path / "unpickled").exists()


HONEST = npy_bytes(np.arange(6, dtype=np.float32).reshape(2, 3))
TWO = zip_bytes([("w.npy", HONEST), ("v.npy", HONEST)])


def patched(data: bytes, old: bytes, new: bytes, count: int = -1) -> bytes:
    assert old in data
    return data.replace(old, new, count)


def bomb(claimed: int) -> bytes:
    """An array of `claimed` zeros in a thousandth of the bytes."""
    header = GOOD_HEADER.replace("(2, 3)", f"({claimed},)")
    return zip_bytes([("w.npy", npy_header(header, bytes(4 * claimed)))], zipfile.ZIP_DEFLATED)


def lying(claimed: int) -> bytes:
    """An archive that declares far more than it holds, in both places it can."""
    header = npy_header(GOOD_HEADER.replace("(2, 3)", f"({claimed},)"), b"")
    data = zip_bytes([("w.npy", header)], zipfile.ZIP_DEFLATED)
    size = struct.pack("<I", len(header))
    return patched(data, size, struct.pack("<I", len(header) + 4 * claimed))


def flagged(bits: int) -> bytes:
    """An archive whose directory sets these flags."""
    data = bytearray(TWO)
    data[data.rindex(b"PK\x01\x02") + 8] |= bits
    return bytes(data)


def overlapping() -> bytes:
    """Two directory entries that lead to the same bytes."""
    data = bytearray(TWO)
    second = data.rindex(b"PK\x01\x02")
    struct.pack_into("<I", data, second + 42, 0)
    return bytes(data)


HOSTILE_NPZ: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "No such file"),
    "empty": (b"", "not a readable zip"),
    "noise": (b"PK" * 1000, "not a readable zip"),
    "end only": (b"PK\x05\x06" + bytes(18), "has no array 'w'"),
    "directory beyond": (b"PK\x05\x06" + b"\xff" * 16 + b"\0\0", "zip"),
    "a directory of gigabytes": (b"PK\x05\x06" + bytes(8) + struct.pack("<IIH", 2**31, 0, 0), "zip"),
    "an npy": (HONEST, "not a readable zip"),
    "bad magic within": (zip_bytes([("w.npy", b"hello" * 10)]), "does not begin"),
    "a member that is no array": (zip_bytes([("w.npy", HONEST), ("readme.txt", b"hi")]), "'readme.txt'"),
    "a folder": (zip_bytes([("w.npy", HONEST), ("sub/", b"")]), "'sub/'"),
    "a name twice": (patched(TWO, b"v.npy", b"w.npy"), "same name"),
    "a way out": (zip_bytes([("../../w.npy", HONEST)]), "leads out of the archive"),
    "another way out": (zip_bytes([("a/..\\w.npy", HONEST)]), "leads out of the archive"),
    "an absolute name": (zip_bytes([("/etc/w.npy", HONEST)]), "leads out of the archive"),
    "encrypted": (flagged(1), "encrypted"),
    "bzip2": (zip_bytes([("w.npy", HONEST)], zipfile.ZIP_BZIP2), "by compression 12"),
    "pickled objects": (zip_bytes([("w.npy", npy_bytes(np.array([Bomb()])))]), "nothing is unpickled"),
    "a bomb": (bomb(2**20), "deflates 4,194,378 bytes"),
    "a lying bomb": (lying(2**26), "deflates 268,435,531 bytes"),
    "a small bomb": (bomb(2**10), "of F32 [1024], most files have F32 [2, 3]"),
    "a small lying bomb": (lying(2**10), "ends after"),
    "members that overlap": (overlapping(), "overlap"),
    "no local header": (patched(TWO, b"PK\x03\x04", b"PK\x03\x05"), "no member where"),
    "sizes apart": (zip_bytes([("w.npy", HONEST + b"x")]), "24 bytes, found 25"),
    "cut member": (zip_bytes([("w.npy", HONEST[:-1])]), "24 bytes, found 23"),
    "another name": (zip_bytes([("v.npy", HONEST)]), "has no array 'w'"),
    "another shape": (zip_bytes([("w.npy", npy_bytes(np.ones(6, np.float32)))]), "of F32 [6]"),
}


@pytest.mark.parametrize("case", HOSTILE_NPZ)
def test_a_hostile_npz_file_is_unusable_and_harms_no_other(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hostile, message = HOSTILE_NPZ[case]
    tracemalloc.start()
    assert_lost(among_honest(tmp_path, ".npz", hostile), message)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_npz_file_cut_or_changed_anywhere_never_raises(method: int, tmp_path: Path) -> None:
    good = zip_bytes([("w.npy", HONEST)], method)
    assert not among_honest(tmp_path, ".npz", good).unusable
    for at in range(0, len(good), 3):
        changed = good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :]
        for hostile in (good[:at], changed):
            source = among_honest(tmp_path, ".npz", hostile)
            assert np.array_equal(whole(source)[1:], [np.arange(6)] * 3)


def test_a_folder_and_a_pipe_are_unusable(tmp_path: Path) -> None:
    paths = FORMS["npy files"](matrix(), tmp_path)
    paths[0].unlink()
    paths[0].mkdir()
    paths[1].unlink()
    os.mkfifo(paths[1])
    source = as_rows([*paths, "\0.npy"])
    assert list(source.unusable) == [0, 1, 5]
    assert "not a regular file" in source.unusable[0]
    assert "null" in source.unusable[5]


def test_a_file_name_cannot_speak_to_the_terminal(tmp_path: Path) -> None:
    paths = FORMS["npy files"](matrix(), tmp_path)
    source = as_rows([*paths, tmp_path / "\x1b[2J.npy"])
    assert "\x1b" not in source.unusable[5]


def test_a_header_of_many_megabytes_is_not_kept(tmp_path: Path) -> None:
    nothing = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    names = {f"{index:0200d}": nothing for index in range(5000)}
    hostile = safetensors_bytes(names, b"")
    source = among_honest(tmp_path, ".safetensors", hostile)
    assert len(source.unusable[0]) < 500
    assert "declares a header of 1,300,000 bytes, most files 72" in source.unusable[0]


# Failing during a pass.


def wide_npz(folder: Path, damage: Callable[[bytes], bytes], method: int = zipfile.ZIP_DEFLATED) -> Any:
    rng = np.random.default_rng(0)
    paths = [folder / f"{index}.npz" for index in range(3)]
    for index, path in enumerate(paths):
        array = npy_bytes(rng.integers(0, 9, 50_000).astype(np.float32))
        data = zip_bytes([("w.npy", array)], method)
        path.write_bytes(data if index else damage(data))
    return as_rows(paths, block_bytes=3 * 4 * 1024)


def test_a_wrong_checksum_is_found_at_the_end_of_the_pass(tmp_path: Path) -> None:
    def damage(data: bytes) -> bytes:
        crc = data[14:18]
        return data.replace(crc, bytes([crc[0] ^ 1]) + crc[1:])

    source = wide_npz(tmp_path, damage)
    assert not source.unusable
    found = whole(source)
    assert list(source.unusable) == [0]
    assert "checksum" in source.unusable[0]
    assert np.isnan(found[0, -1])
    assert not np.isnan(found[0, 0])
    assert np.isfinite(found[1:]).all()
    assert source.changed() == [0]  # unusable within the latest pass
    assert np.isnan(whole(source)[0]).all()
    assert source.changed() == []


def test_a_stream_that_goes_on_beyond_its_declared_end_is_unusable(tmp_path: Path) -> None:
    data = zip_bytes([("w.npy", HONEST + b"more")], zipfile.ZIP_DEFLATED)
    for old, new in ((len(HONEST) + 4, len(HONEST)), (zlib.crc32(HONEST + b"more"), zlib.crc32(HONEST))):
        data = patched(data, struct.pack("<I", old), struct.pack("<I", new))
    assert_lost(among_honest(tmp_path, ".npz", data), "not what its checksum says")


def test_a_member_said_to_reach_past_the_end_is_unusable(tmp_path: Path) -> None:
    good = zip_bytes([("w.npy", HONEST)])
    size = struct.pack("<I", len(HONEST))
    data = patched(good, size, struct.pack("<I", len(HONEST) + 4096))
    assert_lost(among_honest(tmp_path, ".npz", data), "ends within 'w.npy'")


def test_a_directory_of_many_megabytes_is_not_read(tmp_path: Path) -> None:
    paths = FORMS["npz files"](matrix(), tmp_path)
    size = 40_000_000
    with paths[0].open("wb") as file:
        file.truncate(size)  # sparse: takes no disk
        file.seek(size)
        file.write(b"PK\x05\x06" + bytes(4) + struct.pack("<HHIIH", 9, 9, size, 0, 0))
    tracemalloc.start()
    source = as_rows(paths)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "a zip directory of 40,000,000 bytes" in source.unusable[0]
    assert peak < 2**20


def test_deflated_arrays_in_fortran_order_come_out_in_c_order(tmp_path: Path) -> None:
    rows = matrix()
    paths = [tmp_path / f"{index}.npz" for index in range(5)]
    for path, row in zip(paths, rows, strict=True):
        np.savez_compressed(path, a=np.asfortranarray(row.reshape(4, 3, 3)))
    source = as_rows(paths, block_bytes=5 * 4 * 7)
    assert np.array_equal(whole(source), rows)
    assert not source.unusable


def test_a_damaged_stream_is_unusable_where_it_breaks(tmp_path: Path) -> None:
    source = wide_npz(tmp_path, lambda data: data[:20_000] + bytes(64) + data[20_064:])
    found = whole(source)
    assert list(source.unusable) == [0]
    assert np.isfinite(found[0, 0])
    assert np.isnan(found[0, -1])
    assert np.isfinite(found[1:]).all()


def test_a_file_cut_between_passes_is_unusable_and_reported(tmp_path: Path) -> None:
    paths = FORMS["safetensors files"](matrix(), tmp_path)
    source: Any = as_rows(paths)
    assert np.array_equal(whole(source), matrix())
    assert source.changed() == []
    os.truncate(paths[2], 100)
    found = whole(source)
    assert "changed between two passes" in source.unusable[2]
    assert source.changed() == [2]
    assert np.isnan(found[2]).all()
    assert np.array_equal(found[3:], matrix()[3:])


def test_a_file_cut_within_a_pass_is_nan_from_there_on(tmp_path: Path) -> None:
    paths = FORMS["npy files"](matrix(), tmp_path)
    passing = (source := as_rows(paths, block_bytes=1)).blocks()
    assert np.isfinite(next(passing)[1]).all()
    os.truncate(paths[2], os.path.getsize(paths[2]) - 4 * 34)
    rest = [block.copy() for _, block in passing]
    assert "ends at byte" in source.unusable[2]
    assert np.isfinite(rest[0]).all()
    assert all(np.isnan(block[2]).all() for block in rest[1:])


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("act", [os.unlink, touched])
def test_a_file_removed_or_rewritten_is_reported(act: Any, tmp_path: Path) -> None:
    paths = FORMS["npz files"](matrix(), tmp_path)
    source: Any = as_rows(paths)
    act(paths[4])
    assert source.changed() == [4]


# The template.


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npy"])
def test_no_majority_names_the_groups(suffix: str, tmp_path: Path) -> None:
    paths = [tmp_path / f"{index}{suffix}" for index in range(4)]
    for index, path in enumerate(paths):
        write_answer(path, np.ones(6 + index // 2, np.float32))
    with pytest.raises(BadRows, match=r"2 like .*0\..*1 arrays, 6 numbers.*2 like .*2\..*, 7 numbers"):
        as_rows(paths)


def test_all_files_unusable_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(BadRows, match=r"none of the 2 files .* No such file"):
        as_rows([tmp_path / "a.npz", tmp_path / "b.npz"])


def test_files_of_integers_only_are_a_mistake(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(BadRows, match="no floating-point numbers"):
        as_rows([tmp_path / "a.npy"])


def test_the_order_of_names_is_that_of_most_files(tmp_path: Path) -> None:
    paths = [tmp_path / f"{index}.npz" for index in range(3)]
    for index, path in enumerate(paths):
        leaves = split(matrix()[index])
        write_answer(path, leaves if index else dict(reversed(leaves.items())))
    source = as_rows(paths)
    assert not source.unusable
    assert np.array_equal(whole(source), matrix()[:3])
    assert list(mean(source)) == list(SHAPES)


def test_a_large_fortran_file_is_refused_with_advice(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.asfortranarray(np.ones((1100, 1000), np.float32)))
    with pytest.raises(BadRows, match="ascontiguousarray"):
        as_rows([tmp_path / "a.npy"])


def test_an_npy_file_comes_back_in_its_shape(tmp_path: Path) -> None:
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    answer = mean(as_rows([tmp_path / "a.npy", str(tmp_path / "b.npy")]))
    assert np.array_equal(answer, np.arange(6.0).reshape(2, 3))
    assert answer.flags.writeable


@pytest.mark.parametrize("form", ["safetensors files", "npz files", "deflated npz files"])
def test_integers_in_files_are_carried(form: str, tmp_path: Path) -> None:
    pack = {"deflated npz files": deflated}.get(form, write_answer)
    suffix = ".safetensors" if "safe" in form else ".npz"
    paths = [tmp_path / f"{steps}{suffix}" for steps in (3, 4, 900)]
    for path, steps in zip(paths, (3, 4, 900), strict=True):
        pack(path, {"steps": np.array([[steps, 1]]), "w": np.ones(2, np.float32), "on": np.array(steps < 9)})
    source = as_rows(paths, block_bytes=8)
    answer = mean(source)
    assert answer["steps"].tolist() == [[4, 1]]
    assert answer["on"]
    assert answer["on"].dtype == bool
    os.truncate(paths[1], 10)
    assert source.answer().finish(np.array([0.0, 0.9, 0.1]))["steps"].tolist() == [[900, 1]]
    assert 1 in source.unusable


def test_a_bool_that_is_neither_counts_as_true(tmp_path: Path) -> None:
    header = {"w": F32, "on": {"dtype": "BOOL", "shape": [2], "data_offsets": [24, 26]}}
    (tmp_path / "a.safetensors").write_bytes(safetensors_bytes(header, NUMBERS + b"\x02\x00"))
    assert mean(as_rows([tmp_path / "a.safetensors"]))["on"].tolist() == [True, False]


# Against the library that owns the format.


def test_we_read_what_the_safetensors_library_writes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("safetensors.torch")
    generator = torch.Generator().manual_seed(0)
    rows = []
    for index in range(4):
        row = {
            "half": torch.randn(3, 5, generator=generator).half(),
            "brain": torch.randn(7, generator=generator).bfloat16(),
            "single": torch.randn(2, 2, 2, generator=generator),
            "count": torch.tensor(index, dtype=torch.int16),
            "mask": torch.tensor([index > 0, index > 2]),
            "nothing": torch.zeros(0, 3),
        }
        library.save_file(row, tmp_path / f"{index}.safetensors", metadata={"format": "pt"})
        rows.append(row)
    source: Any = as_rows([tmp_path / f"{index}.safetensors" for index in range(4)], block_bytes=64)
    assert source.d == 30
    assert source.dtypes["brain"] == "BF16"
    names = [name for name, code in source.dtypes.items() if code in ("F16", "BF16", "F32")]
    expected = [joined([row[name] for name in names]) for row in rows]
    assert np.array_equal(whole(source), expected)
    answer = mean(source, [0.0, 1.0, 0.0, 0.0])
    assert {name: leaf.dtype.name for name, leaf in answer.items()} == {
        "half": "float16",
        "brain": "float32",
        "single": "float32",
        "count": "int16",
        "mask": "bool",
        "nothing": "float32",
    }
    write_answer(tmp_path / "mean.safetensors", answer, source.dtypes)
    again = library.load_file(tmp_path / "mean.safetensors")
    assert again.keys() == rows[1].keys()
    for name, leaf in rows[1].items():
        assert torch.equal(again[name], leaf)
        assert again[name].dtype == leaf.dtype


@pytest.mark.parametrize("code", [code for code in CODES if code != "BF16"])
def test_the_library_reads_what_we_write(code: str, tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    array = (np.arange(24).reshape(2, 3, 4) % 5).astype(CODES[code])
    tensors = {"b": array, "a": np.asfortranarray(array[0]), "scalar": array[1, 1, 1], "odd é": array[:, :0]}
    write_safetensors(tmp_path / "x.safetensors", tensors, metadata={"made": "here"})
    again = library.load_file(tmp_path / "x.safetensors")
    assert again.keys() == tensors.keys()
    for name, leaf in tensors.items():
        assert again[name].dtype == leaf.dtype
        assert np.array_equal(again[name], leaf)
    with pytest.importorskip("safetensors").safe_open(tmp_path / "x.safetensors", "np") as file:
        assert file.metadata() == {"made": "here"}


def test_bfloat16_is_rounded_as_torch_rounds(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("safetensors.torch")
    bits = np.random.default_rng(0).integers(0, 2**32, 5000, dtype=np.uint32)
    special = [np.inf, -np.inf, np.nan, 0.0, -0.0, 3.4e38, 1e-45, 1.00390625, 1.01171875]
    values = np.concatenate([bits.view(np.float32), np.array(special, np.float32)])
    write_safetensors(tmp_path / "x.safetensors", {"w": values}, {"w": "BF16"})
    found = library.load_file(tmp_path / "x.safetensors")["w"]
    assert torch.equal(found.nan_to_num(7.0), torch.tensor(values).bfloat16().nan_to_num(7.0))
    assert torch.equal(found.isnan(), torch.tensor(values).isnan())
    source = as_rows([tmp_path / "x.safetensors"])
    assert np.array_equal(whole(source)[0], found.float().numpy(), equal_nan=True)


def test_numpy_reads_what_we_write(tmp_path: Path) -> None:
    leaves = split(matrix()[0]) | {"file": np.arange(3), "a/b": np.ones(2, np.longdouble)}
    write_answer(tmp_path / "x.npz", leaves)
    with np.load(tmp_path / "x.npz", allow_pickle=False) as again:
        assert set(again) == set(leaves)
        assert all(np.array_equal(again[name], leaves[name]) for name in leaves)
    first = (tmp_path / "x.npz").read_bytes()
    write_answer(tmp_path / "x.npz", leaves)
    assert (tmp_path / "x.npz").read_bytes() == first
    write_answer(tmp_path / "x.npy", matrix().T)
    assert np.array_equal(np.load(tmp_path / "x.npy", allow_pickle=False), matrix().T)


def test_tensors_and_lists_can_be_written_too(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("safetensors.torch")
    write_answer(tmp_path / "x.safetensors", {"w": torch.ones(3, dtype=torch.bfloat16, requires_grad=True)})
    assert library.load_file(tmp_path / "x.safetensors")["w"].dtype == torch.bfloat16
    write_answer(tmp_path / "x.npz", [np.ones(2), np.ones(3)])
    with np.load(tmp_path / "x.npz") as again:
        assert list(again) == ["arr_0", "arr_1"]
    write_answer(tmp_path / "x.npz", {"body": {"w": np.ones(2), "b": np.ones(3)}})
    with np.load(tmp_path / "x.npz") as again:
        assert list(again) == ["body.w", "body.b"]


@pytest.mark.parametrize(
    ("name", "answer", "error", "message"),
    [
        ("x.pt", np.ones(3), BadParameter, "ends in .safetensors"),
        ("x.npy", {"a": np.ones(3)}, BadParameter, "holds one array, found 1"),
        ("x.safetensors", {"a": np.ones(3, np.longdouble)}, BadRows, "write .npz"),
        ("x.safetensors", {"__metadata__": np.ones(3)}, BadRows, "keeps that name"),
        ("x.npz", {"a": np.array([None])}, BadRows, "cannot write dtype object"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    name: str, answer: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        write_answer(tmp_path / name, answer)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npy"])
def test_an_interrupted_write_leaves_the_old_answer(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"x{suffix}"
    write_answer(path, np.ones(3))
    before = path.read_bytes()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(save.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_answer(path, np.zeros(3))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# Memory and handles.


def test_a_large_file_is_read_in_small_memory(tmp_path: Path) -> None:
    d = 40 * 2**20
    paths = [tmp_path / f"{index}.safetensors" for index in range(2)]
    for path in paths:
        header = json.dumps({"w": {"dtype": "F32", "shape": [d], "data_offsets": [0, 4 * d]}}).encode()
        with path.open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + 4 * d)  # sparse: takes no disk
    tracemalloc.start()
    source = as_rows(paths, block_bytes=2**20)
    assert sum(block.shape[1] for _, block in source.blocks()) == d
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 2**20
    assert not source.unusable


def test_a_large_deflated_file_is_read_in_small_memory(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(bomb(5 * 2**20))
    tracemalloc.start()
    source = as_rows([tmp_path / "a.npz"], block_bytes=2**18)
    assert all(not block.any() for _, block in source.blocks())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 2**20
    assert not source.unusable


@pytest.mark.parametrize("form", ["npy files", "deflated npz files"])
def test_more_rows_than_handles_are_read(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("randeigen.rows.formats.io.MAX_OPEN_FILES", 7)
    monkeypatch.setattr("randeigen.rows.file_rows.REOPENED_BYTES", 1)
    rows = matrix(n=50)
    source = as_rows(FORMS[form](rows, tmp_path), block_bytes=50 * 4 * 9)
    for columns, block in source.blocks():
        assert np.array_equal(block, rows[:, columns])
        assert open_below(tmp_path) <= 7
    assert open_below(tmp_path) == 0


def open_below(folder: Path) -> int:
    """How many files of a folder this process holds open; 0 where the system does not show it."""
    count = 0
    for link in Path("/proc/self/fd").glob("*"):
        with suppress(FileNotFoundError):  # the next block is being read, and its files come and go
            count += str(folder) in os.path.realpath(link)
    return count


def test_no_handle_outlives_an_abandoned_pass(tmp_path: Path) -> None:
    source = as_rows(FORMS["npy files"](matrix(), tmp_path), block_bytes=1)
    passing: Any = source.blocks()
    next(passing)
    passing.close()
    assert open_below(tmp_path) == 0
    assert np.array_equal(whole(source), matrix())


def test_two_passes_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    source = as_rows(saved(".npz", deflated)(matrix(), tmp_path), block_bytes=60)
    for (columns, one), (_, two) in zip(source.blocks(), source.blocks(), strict=True):
        assert np.array_equal(one, matrix()[:, columns])
        assert np.array_equal(two, one)


def test_inflating_hands_out_no_more_than_is_asked() -> None:
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = packed.compress(bytes(10**6)) + packed.flush()
    member = Deflated(len(data), 10**6, 0, zlib.crc32(bytes(10**6)))
    stream = Inflater(0, member)
    file: Any = io.BytesIO(data)
    buffer = bytearray(10)
    stream.read_into(file, memoryview(buffer))
    assert stream.at == 10
