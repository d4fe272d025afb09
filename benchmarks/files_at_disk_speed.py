"""`randeigen aggregate` over large files takes at most 1.5 times what reading them twice takes, within 1 GB.

Beside it stands what writing as many bytes as the answer has takes alone: of 4 files a quarter of what one
reading moves.

    python -m benchmarks.files_at_disk_speed [--sizes 16x28 4x30] [--folder /tmp] [--out results/files.json]

16x28 are 16 files of 2^28 float32. Memory is what the command holds privately, pages that no file backs. The
two readings are made before it, in the same run, by plain `read` calls; whether they come from the disk or
from the page cache depends on the machine's memory, which is in the record. Exits 1 where a claim fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from randeigen.rows.write import write_safetensors
from randeigen.timing import anonymous_bytes
from studies.provenance import made_with

MAX_READINGS, MAX_MB = 1.5, 1000.0
BUFFER_BYTES = 2**23


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=["16x28", "4x30"], metavar="NxK")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cells = []
    for size in options.sizes:
        n, k = map(int, size.split("x"))
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            cells.append(measured(n, 2**k, Path(folder)))
        print(cells[-1], flush=True)
    record = {
        "cells": cells,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        "made_with": made_with(),
    }
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    kept = all(cell["readings"] <= MAX_READINGS and cell["private_mb"] <= MAX_MB for cell in cells)
    return 0 if kept else 1


def measured(n: int, d: int, folder: Path) -> dict[str, Any]:
    """Seconds of two readings and of the command, and the command's peak of private memory."""
    rng, updates = np.random.default_rng(0), folder / "updates"
    updates.mkdir()
    for i in range(n):
        write_safetensors(updates / f"{i}.safetensors", {"update": rng.standard_normal(d, dtype=np.float32)})
        print(f"file {i + 1} of {n} written", file=sys.stderr, flush=True)
    os.sync()
    began = time.perf_counter()
    for _ in range(2):
        for path in sorted(updates.iterdir()):
            read(path)
    reading = time.perf_counter() - began
    began = time.perf_counter()
    write(folder / "plain", 4 * d)
    writing = time.perf_counter() - began
    (folder / "plain").unlink()
    command = [sys.executable, "-m", "randeigen", "aggregate", str(updates), "--eps", "0.2"]
    began = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--out", str(folder / "mean.safetensors")], stdout=subprocess.DEVNULL
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, anonymous_bytes(process.pid))
        time.sleep(0.02)
    seconds = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(f"randeigen aggregate ended with status {process.returncode}")
    return {
        "n": n,
        "d": d,
        "gb": 4 * n * d / 1e9,
        "two_readings_s": reading,
        "writing_s": writing,
        "aggregate_s": seconds,
        "readings": seconds / reading,  # of all files, twice
        "private_mb": peak / 1e6,
    }


def read(path: Path) -> None:
    buffer = bytearray(BUFFER_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def write(path: Path, size: int) -> None:
    buffer = bytes(BUFFER_BYTES)
    with path.open("wb", buffering=0) as file:
        for _ in range(0, size, BUFFER_BYTES):
            file.write(buffer)


if __name__ == "__main__":
    sys.exit(main())
