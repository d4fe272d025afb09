"""What one hostile file in ten, or ten in a hundred, can make a server spend: at most 2 and 3 honest calls.

    python -m benchmarks.what_a_file_can_cost [--out results/file_costs.json]

Honest and hostile calls are of the same number of files; times are the least of several, in processor time.
Exits 1 where a ratio is above its limit.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tempfile
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import randeigen
from randeigen.rows import write_answer
from studies.provenance import made_with

SHAPES = {"body": (256, 256), "head": (64, 256)}
CROWDS = ((10, 1, 2.0), (100, 10, 3.0))  # files, hostile ones among them, the most they may cost
REPEATS = 3

Leaves = dict[str, Any]


class Case(NamedTuple):
    """A file that is made to cost."""

    suffix: str
    honest: Callable[[Path, Leaves], None]
    hostile: Callable[[Path, Leaves], None]


def save(path: Path, leaves: Leaves) -> None:
    """As an honest sender does."""
    write_answer(path, leaves["body"] if path.suffix == ".npy" else leaves)


def deflated(path: Path, leaves: Leaves) -> None:
    np.savez_compressed(path, **leaves)


def turned(path: Path, leaves: Leaves) -> None:
    """In Fortran order."""
    arrays = {name: np.asfortranarray(leaf) for name, leaf in leaves.items()}
    if path.suffix == ".npy":
        np.save(path, arrays["body"])
    else:
        np.savez(path, **arrays)


def turned_deflated(path: Path, leaves: Leaves) -> None:
    np.savez_compressed(path, **{name: np.asfortranarray(leaf) for name, leaf in leaves.items()})


def wide(path: Path, leaves: Leaves) -> None:
    save(path, {name: leaf.astype(np.float64) for name, leaf in leaves.items()})


def names(count: int) -> Callable[[Path, Leaves], None]:
    """A header of names without numbers."""

    def write(path: Path, leaves: Leaves) -> None:
        nothing = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
        header = "{" + ",".join(f'"{index:x}":{nothing}' for index in range(count)) + "}"
        path.write_bytes(struct.pack("<Q", len(header)) + header.encode())

    return write


def members(count: int) -> Callable[[Path, Leaves], None]:
    """An archive of arrays without numbers."""

    def write(path: Path, leaves: Leaves) -> None:
        array = BytesIO()
        np.save(array, np.zeros(0, np.float32))
        with zipfile.ZipFile(path, "w") as archive:
            for index in range(count):
                archive.writestr(f"{index:x}.npy", array.getvalue())

    return write


def nested(path: Path, leaves: Leaves) -> None:
    header = b'{"a":' + b"[" * 2**22
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def long_header(path: Path, leaves: Leaves) -> None:
    text = b"(" * 10**7
    path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text)


def bomb(path: Path, leaves: Leaves) -> None:
    np.savez_compressed(path, body=np.zeros((4096, 4096), np.float32), head=np.zeros(3, np.float32))


def sparse(path: Path, leaves: Leaves) -> None:
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (5 * 10**9,)}
        )
        file.truncate(20 * 10**9 + file.tell())


CASES: dict[str, Case] = {
    "a header of 295,000 names": Case(".safetensors", save, names(295_000)),
    "a header of 2,000 names": Case(".safetensors", save, names(2_000)),
    "a header of 70 names": Case(".safetensors", save, names(70)),
    "a header of brackets": Case(".safetensors", save, nested),
    "float64 among float32": Case(".safetensors", save, wide),
    "an archive of 100,000 members": Case(".npz", save, members(100_000)),
    "an archive of 70 members": Case(".npz", save, members(70)),
    "deflated": Case(".npz", save, deflated),
    "Fortran order": Case(".npz", save, turned),
    "Fortran order, deflated": Case(".npz", save, turned_deflated),
    "Fortran order among deflated": Case(".npz", deflated, turned_deflated),
    "a deflated bomb": Case(".npz", save, bomb),
    "a deflated bomb among deflated": Case(".npz", deflated, bomb),
    "Fortran order, one array": Case(".npy", save, turned),
    "a header of 10 MB": Case(".npy", save, long_header),
    "20 GB of nothing": Case(".npy", save, sparse),
}


def seconds(paths: Sequence[Path]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    randeigen.aggregate(paths, eps=0.2, seed=0)
    return time.process_time() - start


def measured(case: Case, n: int, hostile: int, folder: Path) -> dict[str, float]:
    """Honest and hostile seconds, their ratio, and the hostile call's peak memory."""
    rng = np.random.default_rng(0)
    paths = [folder / f"{index}{case.suffix}" for index in range(n)]
    for path in paths:
        leaves = {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}
        case.honest(path, leaves)
    plain = min(seconds(paths) for _ in range(REPEATS))
    for path in paths[:hostile]:
        case.hostile(path, leaves)
    cost = min(seconds(paths) for _ in range(REPEATS))
    tracemalloc.start()
    randeigen.aggregate(paths, eps=0.2, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    for path in paths:
        path.unlink()
    return {"honest_s": plain, "hostile_s": cost, "ratio": cost / plain, "peak_mb": peak / 1e6}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found, over = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for name, case in CASES.items():
            for n, hostile, most in CROWDS:
                cell = measured(case, n, hostile, Path(folder))
                found[f"{name}, {hostile} of {n}"] = cell
                over += [name] if cell["ratio"] > most else []
                print(
                    f"{name:32} {hostile:2} of {n:3}: {1e3 * cell['honest_s']:7.1f} ms honest, "
                    f"{1e3 * cell['hostile_s']:7.1f} ms hostile, ratio {cell['ratio']:4.2f} of {most:.0f}, "
                    f"{cell['peak_mb']:5.1f} MB",
                    flush=True,
                )
    if options.out:
        record = {"limits": CROWDS, "shapes": SHAPES, "cases": found, "made_with": made_with()}
        options.out.write_text(json.dumps(record, indent=1))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
