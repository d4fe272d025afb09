"""Every rule that byzfl has too is faster here, and needs a fraction of the memory.

    python -m benchmarks.faster_than_byzfl [--rule Krum ...] [--repeats 15] [--work] [--out FILE]

n = 50, d = 262,144, float32, f = 10 rows shifted. Like is compared with like: `rule(rows)` beside byzfl's
call, both giving the vector alone; `certified` is what `randeigen.aggregate` takes, which adds weights and
certificate. Both libraries see the same rows, as a numpy array and as a torch tensor, and the better form of
each counts. Calls take turns, with a pause before each, so that what else runs on the machine, or still spins
after the last call, falls on all alike.

Exits 1 unless rules over the Gram matrix are 5 times faster, the others 3 times, and none of ours takes 64 MB
beyond rows and answer. Only the mean is not judged: both libraries read the rows once and do nothing else, so
memory sets the pace. byzfl's Clipping and ARC overwrite their caller's rows; ours do not, so theirs get a
copy, whose making counts; `in place` is how many times faster ours are if it does not.

A whole run writes results/byzfl.json and the table in docs/rules.md: make it with nothing else running. With
--rule or --work nothing is written but to --out. --work compares processor time on one thread instead of the
clock's, so that others on the machine matter less.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import randeigen
from randeigen import rules
from randeigen import timing as bench
from studies.documents import redraw
from studies.provenance import made_with as core_made_with

sys.modules["byzfl.benchmark"] = types.ModuleType("byzfl.benchmark")  # it needs a torchvision of its own
import byzfl  # noqa: E402

N, D, F = 50, 2**18, 10
GRAM, OTHERS = 5.0, 3.0  # how many times faster
MEGABYTES = 64.0
CLIP = 400.0  # shortens every row here; honest ones are about 512 long
PAUSE = 0.05  # seconds: BLAS and OpenMP threads spin for a while after a call
PATIENCE = 20.0  # seconds on one rule, once each call has run three times
ROOT = Path(__file__).parents[1]
RECORD, DOCUMENT = ROOT / "results" / "byzfl.json", ROOT / "docs" / "rules.md"

Call = Callable[[Any], Any]
Clock = Callable[[], float]


class Pair(NamedTuple):
    ours: Any
    theirs: Callable[[], Call]  # made anew for each call: centred clipping remembers
    must: float | None = GRAM
    spoils: bool = False  # theirs overwrites the rows it is given
    drawn: bool = False  # by coins of their own: not the same answer


def then_mean(mixer: Callable[[], Call]) -> Callable[[], Call]:
    """byzfl's pre-aggregator, and the mean of the rows it makes."""
    return lambda: lambda rows: mixer()(rows).mean(0)


MEAN = rules.Mean(f=F)
SHARED = {
    "mean": Pair(MEAN, byzfl.Average, None),
    "median": Pair(rules.Median(f=F), byzfl.Median, OTHERS),
    "trimmed mean": Pair(rules.TrimmedMean(f=F), lambda: byzfl.TrMean(F), OTHERS),
    "MeaMed": Pair(rules.MeaMed(f=F), lambda: byzfl.Meamed(F), OTHERS),
    "geometric median": Pair(
        rules.GeometricMedian(f=F, nu=0.1, steps=3), lambda: byzfl.GeometricMedian(nu=0.1, T=3)
    ),
    "Krum": Pair(rules.Krum(f=F, spare=1), lambda: byzfl.Krum(F)),
    "multi-Krum": Pair(rules.MultiKrum(f=F, spare=1), lambda: byzfl.MultiKrum(F)),
    "centred clipping": Pair(
        rules.CenteredClipping(f=F, tau=100.0, steps=1, start="origin"),
        lambda: byzfl.CenteredClipping(L=1, tau=100.0),
    ),
    "MoNNA": Pair(rules.MoNNA(f=F), lambda: byzfl.MoNNA(F)),
    "CAF": Pair(rules.CAF(f=F), lambda: byzfl.CAF(F), drawn=True),
    "NNM, mean": Pair(rules.NNM(f=F) | MEAN, then_mean(lambda: byzfl.NNM(F))),
    "bucketing, mean": Pair(
        rules.Bucketing(2) | MEAN, then_mean(lambda: byzfl.Bucketing(2)), OTHERS, drawn=True
    ),
    "clipping, mean": Pair(
        rules.Clipping(CLIP) | MEAN, then_mean(lambda: byzfl.Clipping(CLIP)), OTHERS, spoils=True
    ),
    "ARC, mean": Pair(rules.ARC(f=F) | MEAN, then_mean(lambda: byzfl.ARC(F)), OTHERS, spoils=True),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write the record here, and nothing else")
    parser.add_argument("--rule", action="append", choices=sorted(SHARED))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--work", action="store_true", help="processor time on one thread, not the clock's")
    options = parser.parse_args()
    if options.work and os.environ.get("OMP_NUM_THREADS") != "1":  # BLAS reads it when it is loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OMP_NUM_THREADS": "1"})
    clock = time.process_time if options.work else time.perf_counter
    array = np.random.default_rng(0).standard_normal((N, D), dtype=np.float32)
    array[-F:] += np.float32(0.5)
    forms = {"numpy": array, "torch": torch.from_numpy(array)}
    for rows in forms.values():  # thread pools are made once
        randeigen.aggregate(rows, eps=0.1)
    print(f"{'':18}{'ours':>9}{'byzfl':>10}{'faster':>9}{'must be':>9}", end="")
    print(f"{'certified':>12}{'extra':>9}{'byzfl':>9}  by form: numpy, torch")
    found = []
    for name in options.rule or SHARED:
        found.append(one(name, forms, options.repeats, clock))
        print(line(found[-1]), flush=True)
    held = all(r["kept"] for r in found)
    what = "processor time, one thread" if options.work else "wall"
    shape = {"n": N, "d": D, "f": F, "clock": what, "load": os.getloadavg()[0]}
    record = json.dumps({**shape, "rules": found, "made_with": made_with()}, indent=1) + "\n"
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(record)
    elif not (options.rule or options.work):
        RECORD.write_text(record)
        redraw(DOCUMENT, {"byzfl": table(found)})
    print(f"\nas claimed: {'yes' if held else 'NO'}")
    return 0 if held else 1


def one(name: str, forms: dict[str, Any], repeats: int, clock: Clock) -> dict[str, Any]:
    """One rule in both libraries, in both forms."""
    pair = SHARED[name]
    calls: dict[str, Call] = {
        "ours": pair.ours,
        "certified": lambda rows: randeigen.aggregate(rows, rule=pair.ours).mean,
        "byzfl": lambda rows: pair.theirs()(duplicate(rows) if pair.spoils else rows),
    }
    if pair.spoils:
        calls["byzfl in place"] = lambda rows: pair.theirs()(rows)
    took = timed(calls, forms, repeats, clock)
    ours, certified, byz = (took[who] for who in ("ours", "certified", "byzfl"))
    extra = max(t["extra_mb"] for t in (*ours.values(), *certified.values()))
    faster = least(byz) / least(ours)
    apart = None if pair.drawn else difference(calls["ours"](forms["numpy"]), calls["byzfl"](forms["numpy"]))
    return {
        "rule": name,
        **took,
        "faster": faster,
        "faster_best": least(byz, "best_ms") / least(ours, "best_ms"),
        "faster_by_form": {form: byz[form]["median_ms"] / ours[form]["median_ms"] for form in forms},
        "faster_in_place": least(took["byzfl in place"]) / least(ours) if pair.spoils else None,
        "extra_mb": extra,
        "byzfl_extra_mb": min(t["extra_mb"] for t in byz.values()),
        "must": pair.must,
        "apart": apart,
        "kept": extra < MEGABYTES and (pair.must is None or faster >= pair.must),
    }


def timed(
    calls: dict[str, Call], forms: dict[str, Any], repeats: int, clock: Clock
) -> dict[str, dict[str, dict[str, float]]]:
    """Median and best of several calls of each kind in each form, in turns, after one that is watched."""
    turns = [(who, form) for who in calls for form in forms]
    extra: dict[tuple[str, str], float] = {}
    took: dict[tuple[str, str], list[float]] = {turn: [] for turn in turns}
    for who, form in turns:
        with bench.Peak() as peak:
            calls[who](own(forms[form], who))
        extra[who, form] = max(0.0, (peak.bytes - 4 * D) / 1e6)
    began = time.perf_counter()
    for turn in range(repeats):
        if turn >= 3 and time.perf_counter() - began > PATIENCE:
            break
        for who, form in turns:
            rows = own(forms[form], who)
            time.sleep(PAUSE)
            start = clock()
            calls[who](rows)
            took[who, form].append(1000 * (clock() - start))
    return {
        who: {
            form: {
                "median_ms": float(np.median(took[who, form])),
                "best_ms": min(took[who, form]),
                "extra_mb": extra[who, form],
            }
            for form in forms
        }
        for who in calls
    }


def own(rows: Any, who: str) -> Any:
    """The rows, or for one who spoils them a copy that the clock does not see."""
    return duplicate(rows) if who == "byzfl in place" else rows


def duplicate(rows: Any) -> Any:
    return rows.copy() if isinstance(rows, np.ndarray) else rows.clone()


def least(took: dict[str, dict[str, float]], key: str = "median_ms") -> float:
    """In the form that suits it better."""
    return min(t[key] for t in took.values())


def difference(ours: Any, theirs: Any) -> float:
    """Relative, so that a rule that is fast and wrong fails."""
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def line(r: dict[str, Any]) -> str:
    must = "one read" if r["must"] is None else f"{r['must']:.0f}×"
    by_form = "  ".join(f"{ratio:.1f}×" for ratio in r["faster_by_form"].values())
    notes = [] if r["kept"] else ["MISSED"]
    notes += [f"in place {r['faster_in_place']:.1f}×"] if r["faster_in_place"] else []
    notes += [f"answers differ by {r['apart']:.1g}"] if (r["apart"] or 0.0) > 1e-3 else []
    return (
        f"{r['rule']:18}{least(r['ours']):6.1f} ms{least(r['byzfl']):7.1f} ms{r['faster']:8.1f}×{must:>9}"
        f"{least(r['certified']):9.1f} ms{r['extra_mb']:6.1f} MB{r['byzfl_extra_mb']:6.0f} MB"
        f"  {by_form}  {', '.join(notes)}".rstrip()
    )


def table(found: list[dict[str, Any]]) -> str:
    """The same in Markdown."""
    lines = [
        "| rule | ours | byzfl | faster | must be | certified | byzfl takes |",
        "|---" + "|---:" * 6 + "|",
    ]
    for r in found:
        must = "–" if r["must"] is None else f"{r['must']:.0f}×"
        lines.append(
            f"| {r['rule']} | {least(r['ours']):.1f} ms | {least(r['byzfl']):.1f} ms | {r['faster']:.1f}× "
            f"| {must} | {least(r['certified']):.1f} ms | {r['byzfl_extra_mb']:.0f} MB |"
        )
    return "\n".join(lines)


def made_with() -> dict[str, str]:
    from importlib.metadata import version

    return {**core_made_with(), "byzfl": version("byzfl")}


if __name__ == "__main__":
    sys.exit(main())
