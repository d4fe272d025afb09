"""One sender may cost at most twice what an honest one costs, ten of a hundred at most three times in all.

    python -m benchmarks.what_a_sender_can_cost [--only float32] [--out results/sender-costs.json]

Each case is a call with honest rows and the same call with one or ten of a hundred replaced by what a hostile
sender may write. Processor time, the least of several calls in turn, so that other programs count little. A
case is a name, a limit and two functions that make the rows: further kinds are further lines in `cases`.
Exits 1 if a ratio is above its limit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import randeigen
from studies.provenance import made_with

N, D, F = 100, 2**16, 20
REPEATS = 4
LIMITS = {1: 2.0, 10: 3.0}  # by the number of hostile senders
ALL_EQUAL = 3.0  # nobody's doing, but it must not be slow either
Rows = np.ndarray[Any, Any]

FORMS: dict[str, Callable[[Rows], Any]] = {
    "matrix": lambda rows: rows,
    "vectors": list,
    "state_dicts": lambda rows: [{"weight": row[:-64].reshape(64, -1), "bias": row[-64:]} for row in rows],
}


class Case(NamedTuple):
    """One thing that senders may write, beside the same rows without it."""

    name: str
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


def cases(folder: Path) -> Iterator[Case]:
    """All that is tried. `folder` is for those that need files."""
    for dtype in ("float16", "float32", "float64"):
        for form in FORMS:
            yield from numeric(dtype, form)


def numeric(dtype: str, form: str) -> Iterator[Case]:
    """Hostile numbers in rows of one dtype and form; among updates, and among rows far from the origin."""
    made = np.random.default_rng(0).standard_normal((N, D), dtype=np.float32).astype(dtype)
    into = FORMS[form]

    def corrupted(rows: Rows, count: int, write: Callable[[Rows], Any]) -> Any:
        rows = rows.copy()
        with np.errstate(all="ignore"):
            write(rows[:count])
        return into(rows)

    for offset in (0, 30) if form == "matrix" else (0,):
        honest = made + np.asarray(offset, dtype)
        for name, write in writes(dtype).items():
            for count, limit in LIMITS.items():
                yield Case(
                    f"{dtype} {form}, {count} × {name}" + (f", all rows off by {offset}" if offset else ""),
                    limit,
                    lambda honest=honest: into(honest),
                    lambda honest=honest, count=count, write=write: corrupted(honest, count, write),
                )
    for value in (0.0, 0.1, float(np.finfo(dtype).max)):
        yield Case(
            f"{dtype} {form}, all rows {value:g}",
            ALL_EQUAL,
            lambda: into(made),
            lambda value=value: into(np.full_like(made, value)),
        )


def cost(case: Case) -> Cost:
    """Both calls in turn, the least time of each."""
    honest, hostile = case.honest(), case.hostile()
    taken: dict[str, list[float]] = {"honest": [], "hostile": []}
    for _ in range(REPEATS):
        for name, rows in (("honest", honest), ("hostile", hostile)):
            began = time.process_time()
            randeigen.aggregate(rows, f=F, seed=0)
            taken[name].append(1e3 * (time.process_time() - began))
    first, second = min(taken["honest"]), min(taken["hostile"])
    return Cost(case.name, first, second, second / first, case.limit)


def main() -> int:
    """Print every case, the worst last."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = []
    for case in cases(Path()):
        if options.only in case.name:
            found.append(cost(case))
            line = f"{found[-1].honest_ms:8.1f} ms → {found[-1].hostile_ms:8.1f} ms  ×{found[-1].ratio:5.2f}"
            over = "  OVER THE LIMIT" if found[-1].ratio > case.limit else ""
            print(f"{line} (at most {case.limit:g})  {case.name}{over}", flush=True)
    over_limit = [one for one in found if one.ratio > one.limit]
    for count in sorted({one.limit for one in found}):
        worst = max((one for one in found if one.limit == count), key=lambda one: one.ratio)
        print(f"worst of those allowed {count:g}: ×{worst.ratio:.2f}, {worst.case}")
    if options.out:
        record = {
            "n": N,
            "d": D,
            "costs": [asdict(one) for one in found],
            "made_with": made_with(),
        }
        options.out.write_text(json.dumps(record, indent=1))
    return 1 if over_limit or not found else 0


if __name__ == "__main__":
    sys.exit(main())
