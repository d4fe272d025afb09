"""The cells of the cost surface, and what each may cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from randeigen.timed_rows import Dtype, Form
from randeigen.types import GeometryKind

DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16", "float16", "float64")
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
COLUMN_RULES = ("median", "trimmed-mean", "bulyan")
CHUNKED_RULES = ("chunked-filtering", "chunked-no-regret")

GRID = {  # rows and columns of the matrices
    "cpu": ((4, 10, 20, 50, 100, 300, 1000, 4000, 10000), tuple(2**k for k in (14, 16, 17, 18, 19, 20, 22))),
    "cuda": (
        (4, 10, 30, 64, 100, 300, 1000, 3000, 10000),
        tuple(2**k for k in (14, 16, 18, 20, 22, 23, 24, 26)),
    ),
}
MAX_BYTES = {"cpu": 2**32, "cuda": 2**35}  # of rows in one cell
MAX_OTHER_BYTES = {"cpu": 2**28, "cuda": 2**33}  # of rows in a dtype or form other than a float32 matrix
# Numbers from which a mean of the rows comes from memory, not from a cache.
MEMORY_NUMBERS = 20 * 2**20


@dataclass(frozen=True, order=True)
class Cell:
    """One point of the surface."""

    form: Form
    dtype: Dtype
    n: int
    d: int
    rule: str = "randeigen"
    geometry: GeometryKind = "auto"

    def words(self) -> str:
        exponent = self.d.bit_length() - 1
        columns = f"2^{exponent}" if self.d == 2**exponent else str(self.d)
        return f"{self.form} {self.dtype} n={self.n} d={columns} {self.rule} {self.geometry}"

    def has(self, words: Sequence[str]) -> bool:
        return set(words) <= set(self.words().split())

    def is_limited(self, device: str) -> bool:
        return limit_ms(self, 1.0, device) is not None


def cells(device: str) -> list[Cell]:
    """All cells for a device, those of one dtype and form together."""
    found = dict.fromkeys(_named(device))
    found.update(dict.fromkeys(_grid(device)))
    return sorted(found)


def limit_ms(cell: Cell, mean_ms: float, device: str) -> float | None:
    """The most milliseconds that a cell may take beside a mean of so many; None where nothing is claimed."""
    return _limit_on_gpu(cell, mean_ms) if device == "cuda" else _limit_on_cpu(cell, mean_ms)


def _limit_on_gpu(cell: Cell, mean_ms: float) -> float | None:
    if cell.geometry != "auto":
        return None
    if cell.rule in CHUNKED_RULES:
        return 500.0 if (cell.n, cell.d) == (100, 320_000) else None
    if cell.rule in COLUMN_RULES:
        return 12 * mean_ms if cell.n <= 64 else 40 * mean_ms if cell.n <= 256 else None
    if cell.rule != "randeigen":
        return None
    if (cell.form, cell.dtype, cell.n, cell.d) == ("matrix", "float32", 100, 2**26):
        return 2.6 * mean_ms
    if cell.n <= 128:
        return 4 * mean_ms + 1.2
    bfloat16 = cell.dtype == "bfloat16"
    by_size = {(300, 2**18): 3.0, (1000, 2**20): 15.0 if bfloat16 else 30.0, (1000, 2**23): 120.0}
    by_size |= {(3000, 2**18): 150.0, (10000, 2**16): 600.0}
    return by_size.get((cell.n, cell.d)) if cell.form == "matrix" and cell.dtype != "float64" else None


def _limit_on_cpu(cell: Cell, mean_ms: float) -> float | None:
    if cell.geometry != "auto":
        return None
    if cell.rule in CHUNKED_RULES:
        return 5000.0 if (cell.n, cell.d) == (100, 320_000) else None
    if cell.rule != "randeigen" or cell.n * cell.d < MEMORY_NUMBERS:
        return None
    if cell.form == "files":
        return 3 * mean_ms  # one and a half times two readings
    if cell.form != "matrix" or cell.dtype in ("bfloat16", "float16"):
        return 2.8 * mean_ms
    if cell.n <= 100:
        return 6 * mean_ms
    if cell.n in (300, 1000):
        return 5 * mean_ms if cell.d >= 2**16 else None
    means = {(4000, 2**16): 8.0, (10000, 2**16): 10.0}.get((cell.n, cell.d))
    return means and means * mean_ms


def _grid(device: str) -> Iterator[Cell]:
    rows, columns = GRID[device]
    for dtype in DTYPES:
        for n in rows:
            for d in columns:
                most = MAX_BYTES if dtype == "float32" else MAX_OTHER_BYTES
                if n * d * BYTES[dtype] <= most[device] and n <= d:
                    yield Cell("matrix", dtype, n, d)


def _named(device: str) -> Iterator[Cell]:
    """Cells beside the grid: other forms, other rules, exact ways."""
    on_gpu = device == "cuda"
    for dtype in DTYPES[:3] if on_gpu else DTYPES:
        for n, k in ((10, 18), (10, 22), (50, 18), (50, 20), (100, 18), (1000, 16)):
            for form in ("vectors", "state_dicts"):
                if n * 2**k * BYTES[dtype] <= MAX_OTHER_BYTES[device]:
                    yield Cell(form, dtype, n, 2**k)
    yield Cell("state_dicts", "float32", 40 if on_gpu else 10, 11_000_000)
    yield Cell("state_dicts", "bfloat16", 10, 11_000_000)
    if on_gpu:
        yield Cell("matrix", "float32", 16, 2**29)
        for dtype in ("float32", "bfloat16"):
            yield from (Cell("matrix", dtype, n, d) for n, d in ((100, 2**26), (1000, 2**23), (1000, 2**20)))
            for rule in COLUMN_RULES:
                yield from (Cell("matrix", dtype, n, d, rule) for n, d in ((50, 2**22), (200, 2**20)))
        yield Cell("matrix", "float32", 300, 2**18, geometry="gram")
        yield Cell("matrix", "float32", 1000, 2**20, geometry="gram")
    else:
        yield Cell("matrix", "float32", 3000, 2**14)
        for n, d in ((100, 2**18), (300, 2**17), (1000, 2**16), (4000, 2**16)):
            yield Cell("matrix", "float32", n, d, geometry="gram")
        yield from (Cell("matrix", "float32", n, d, "published") for n, d in ((100, 2**18), (1000, 2**16)))
        yield from (Cell("files", dtype, 16, 2**22) for dtype in DTYPES)
        yield from (Cell("files", "float32", n, d) for n, d in ((16, 2**24), (4, 2**26)))
        yield Cell("matrix", "float32", 50, 2**18, "chunked-filtering")
    yield from (Cell("matrix", "float32", 100, 320_000, rule) for rule in CHUNKED_RULES)
