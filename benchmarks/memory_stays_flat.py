"""A 20 × 2^24 float32 memmap is aggregated within 64 MB of private memory beyond the answer.

    python -m benchmarks.memory_stays_flat [--out results/memory.json]

Private memory: pages of the mapped file belong to the page cache and are not counted. Exits 1 above 64 MB.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import randeigen
from randeigen import timing as bench
from studies.provenance import made_with

N, LIMIT_MB = 20, 64.0


def extra_mb(d: int, folder: Path) -> float:
    """Peak private memory of one call beyond its answer."""
    path, rng = folder / "rows.npy", np.random.default_rng(0)
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(N, d))
    for row in rows:
        row[:] = rng.standard_normal(d, dtype=np.float32)
    rows.flush()
    del rows
    randeigen.aggregate(rng.standard_normal((N, 512)), eps=0.1)  # thread pools are made once
    mapped = np.load(path, mmap_mode="r")
    with bench.Peak() as peak:
        randeigen.aggregate(mapped, eps=0.1)
    path.unlink()
    return (peak.bytes - 4 * d) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for d in (2**20, 2**22, 2**24):
            found[d] = extra_mb(d, Path(folder))
            print(f"{N} × {d:>10,} float32 memmap: {found[d]:5.1f} MB beyond the answer", flush=True)
    if options.out:
        options.out.write_text(json.dumps({"extra_mb": found, "n": N, "made_with": made_with()}, indent=1))
    return 0 if max(found.values()) <= LIMIT_MB else 1


if __name__ == "__main__":
    sys.exit(main())
