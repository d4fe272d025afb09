"""What hostile senders can make a server spend: one of ten at most 2 honest calls, ten of 100 at most 3.

    python -m benchmarks.what_a_sender_can_cost [--only float32] [--out results/sender-cost.json]

Each case is a call with honest rows, and the same call where one of ten, ten of a hundred or a hundred of a
thousand are replaced by what a hostile sender may write: numbers, files, or rows that make the rule's rounds
many. Processor time, the least of several calls in turn, so that other programs count little. Files that
declare too much are tried at what no limit stops and at the most that is still parsed. Exits 1 if a ratio is
above its limit.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import randeigen
from benchmarks.hostile_files import FILES, written
from randeigen import timing

D = 2**16
REPEATS = 4
CROWDS = ((10, 1, 2.0), (100, 10, 3.0))  # rows, hostile ones among them, the most that these may cost
MANY = (1000, 100, 3.0)
MANY_COLUMNS = 10_000

Rows = np.ndarray[Any, Any]


class Case(NamedTuple):
    """One thing that senders may write, beside the same rows without it."""

    name: str
    n: int
    limit: float
    honest: Callable[[], Any]  # what `randeigen.aggregate` is given
    hostile: Callable[[], Any]


@dataclass(frozen=True)
class Cost:
    """What a case took, in milliseconds."""

    case: str
    honest_ms: float
    hostile_ms: float
    ratio: float
    limit: float


# Hostile numbers.

FORMS: dict[str, Callable[[Rows], Any]] = {
    "matrix": lambda rows: rows,
    "vectors": list,
    "state_dicts": lambda rows: [{"weight": row[:-64].reshape(64, -1), "bias": row[-64:]} for row in rows],
}


def writes(dtype: str) -> dict[str, Callable[[Rows], Any]]:
    """What hostile senders may write into their rows (m, d), by name."""
    info = np.finfo(dtype)
    huge = {"float16": 6e4, "float32": 3e38, "float64": 1e200}[dtype]
    faint = {"float16": 1e-4, "float32": 1e-25, "float64": 1e-200}[dtype]

    def fill(value: float) -> Callable[[Rows], Any]:
        return lambda rows: rows.fill(value)

    def spike(value: float) -> Callable[[Rows], Any]:
        return lambda rows: np.put(rows, np.arange(0, rows.size, D) + D // 2, value)

    return {
        "NaN": fill(np.nan),
        "one NaN": spike(np.nan),
        "inf": fill(np.inf),
        f"{huge:g}": fill(huge),
        "the largest number": fill(float(info.max)),
        "the largest number once": spike(float(info.max)),
        "large numbers of both signs": lambda rows: np.multiply(np.sign(rows), huge, out=rows),
        "subnormal numbers": fill(float(info.smallest_subnormal) * 100),
        f"{faint:g}": fill(faint),
        "zeros": fill(0.0),
        "an offset of 1e4": lambda rows: np.add(rows, 1e4, out=rows),
    }


def numbers(dtype: str, form: str) -> Iterator[Case]:
    """Hostile numbers in rows of one dtype and form; among updates, and among rows far from the origin."""
    into = FORMS[form]

    def corrupted(rows: Rows, count: int, write: Callable[[Rows], Any]) -> Any:
        rows = rows.copy()
        with np.errstate(all="ignore"):
            write(rows[:count])
        return into(rows)

    for n, count, limit in CROWDS:
        made = np.random.default_rng(0).standard_normal((n, D), dtype=np.float32).astype(dtype)
        for offset in (0, 30) if form == "matrix" else (0,):
            honest = made + np.asarray(offset, dtype)
            where = f", all rows off by {offset}" if offset else ""
            for name, write in writes(dtype).items():
                yield Case(
                    f"{dtype} {form}, {count} of {n}: {name}{where}",
                    n,
                    limit,
                    lambda honest=honest: into(honest),  # type: ignore[misc]
                    lambda honest=honest, count=count, write=write: corrupted(honest, count, write),  # type: ignore[misc]
                )
        for value in (0.0, 0.1, float(np.finfo(dtype).max)):  # nobody's doing, but no reason to be slow
            yield Case(
                f"{dtype} {form}, {n} of {n}: {value:g}",
                n,
                CROWDS[-1][-1],
                lambda made=made: into(made),  # type: ignore[misc]
                lambda made=made, value=value: into(np.full_like(made, value)),  # type: ignore[misc]
            )


# Rows that stand out one by one, so that each takes a round of the rule.


def ladders() -> Iterator[Case]:
    for n, count, limit in (*CROWDS, MANY):
        honest = np.random.default_rng(0).standard_normal((n, MANY_COLUMNS), dtype=np.float32)
        sizes = np.geomspace(1.2, 100, count, dtype=np.float32)[:, None]
        axes = np.zeros((count, MANY_COLUMNS), np.float32)
        axes[np.arange(count), np.arange(count)] = 100 * sizes[:, 0]
        for name, rows in {
            "each longer than the last": honest[:count] * sizes,
            "each on an axis of its own": honest[:count] + axes,
            "each further along one line": honest[:count] + sizes * honest[0],
        }.items():
            yield Case(
                f"float32 matrix, {count} of {n}: {name}",
                n,
                limit,
                lambda honest=honest: honest,  # type: ignore[misc]
                lambda honest=honest, rows=rows: np.vstack((rows, honest[len(rows) :])),  # type: ignore[misc]
            )


def files(folder: Path) -> Iterator[Case]:
    for name, (suffix, honest, hostile, shapes) in FILES.items():
        for n, count, limit in CROWDS:
            yield Case(
                f"{suffix} files, {count} of {n}: {name}",
                n,
                limit,
                lambda *case, n=n, s=suffix, h=honest, shapes=shapes: written(folder, n, s, [h] * n, shapes),
                lambda *case, n=n, c=count, s=suffix, h=honest, x=hostile, shapes=shapes: written(
                    folder, n, s, [x] * c + [h] * (n - c), shapes
                ),
            )


def cases(folder: Path) -> Iterator[Case]:
    """All that is tried. `folder` is for those that need files."""
    yield from ladders()
    yield from files(folder)
    for dtype in ("float16", "float32", "float64"):
        for form in FORMS:
            yield from numbers(dtype, form)


def cost(case: Case) -> Cost:
    """Both calls in turn, the least time of each."""
    honest, hostile = case.honest(), case.hostile()
    taken: dict[str, list[float]] = {"honest": [], "hostile": []}
    for _ in range(REPEATS):
        for name, rows in (("honest", honest), ("hostile", hostile)):
            began = time.process_time()
            randeigen.aggregate(rows, f=case.n // 5, seed=0)
            taken[name].append(1e3 * (time.process_time() - began))
    for path in (*honest, *hostile) if isinstance(honest[0], Path) else ():
        path.unlink()
    first, second = min(taken["honest"]), min(taken["hostile"])
    return Cost(case.name, round(first, 2), round(second, 2), round(second / first, 2), case.limit)


def main() -> int:
    """Print every case, then the worst of each limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--out", type=Path)
    options, found = parser.parse_args(), []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(Path(folder)):
            if options.only in case.name:
                found.append(one := cost(case))
                over = "  OVER THE LIMIT" if one.ratio > one.limit else ""
                line = f"{one.honest_ms:8.1f} ms → {one.hostile_ms:8.1f} ms  ×{one.ratio:5.2f}"
                print(f"{line} (at most {case.limit:g})  {case.name}{over}", flush=True)
    for limit in sorted({one.limit for one in found}):
        worst = max((one for one in found if one.limit == limit), key=lambda one: one.ratio)
        print(f"worst of those allowed {limit:g}: ×{worst.ratio:.2f}, {worst.case}")
    if options.out:
        record = {"columns": D, "costs": [asdict(one) for one in found], "made_with": timing.versions()}
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if not found or any(one.ratio > one.limit for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
