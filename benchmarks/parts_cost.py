"""What parts cost beside whole rows, and chunked FILTERING and NO-REGRET, on a CPU or a GPU.

    python -m benchmarks.parts_cost --out results/parts-cpu.json
    python -m benchmarks.parts_cost --device cuda --out results/parts-h200.json
    python -m benchmarks.parts_cost --redraw

The last writes the tables of docs/partitions.md from both records. Twenty rows of 420,000 numbers, most of
them an embedding: 6,000 rows of 64, or 1,000 of 384; on a GPU also MiniLM's 22.7 million, 30,522 rows of 384.
`dense`: every client moves every row of the embedding; `words`: the k-th row with probability min(1, 100/k),
as the words of a text are spread. The hybrid must cost at most three aggregates of whole rows. Many narrow
parts of many rows, 700 rows of 169 columns that are each a part, must cost at most ten, and so must parts of
one to 30 columns of 700 rows. The filters must take
at most 5 s on a CPU and 0.5 s on a GPU at n = 100, d = 320,000, and 0.5 s at n = 50, d = 2^18. The exit code
is 1 where one does not. Times are the least of a few; on a CPU processor time of one thread, which others on
the machine do not lengthen.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import randeigen
from randeigen.partition import Partition
from randeigen.rules import ChunkedFiltering, ChunkedNoRegret
from studies.documents import redraw
from studies.provenance import made_with

ROOT = Path(__file__).resolve().parents[1]
PAGE, RECORDS = ROOT / "docs" / "partitions.md", {"cpu": "parts-cpu.json", "h200": "parts-h200.json"}

EMBEDDINGS = {"6,000 × 64": (6000, 64), "1,000 × 384": (1000, 384)}
MINILM = {"30,522 × 384": (30_522, 384)}
NARROW = (700, 169)
UNLIKE = range(1, 31)  # columns of each part
MOST_WHOLES = {"hybrid:rows:embedding": 3.0, "columns:1": 10.0, "unlike": 10.0}  # others are shown
BOLD_WHOLES = 3.0  # what is asked of every partition


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parts_cost")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--redraw", action="store_true", help="write the tables of the page, measure nothing")
    options = parser.parse_args()
    if options.redraw:
        redraw(PAGE, tables())
        return 0
    measure = (parts, narrow, unlike, filters)
    lines = [line for each in measure for line in each(options.device, options.repeats)]
    for line in lines:
        print(line, flush=True)
    if options.out:
        options.out.write_text(json.dumps({"made_with": made_with(), "lines": lines}, indent=1) + "\n")
    return 0 if all(line["fine"] for line in lines) else 1


def parts(device: str, repeats: int) -> list[dict[str, Any]]:
    """Whole rows and every way of cutting them."""
    lines: list[dict[str, Any]] = []
    for name, shape in (EMBEDDINGS | (MINILM if device != "cpu" else {})).items():
        others = 11_000 if name in MINILM else 36
        leaves = [("embedding", shape), ("dense", (others, 1000))]
        d = int(np.prod(shape)) + others * 1000
        for kind in ("dense", "words"):
            rows = cloud(20, d, device, words=shape if kind == "words" else None, planted=slice(64, 128))
            key = {"rows": name, "kind": kind}
            whole = least(partial(randeigen.aggregate, rows, eps=0.2, seed=0), device, repeats)
            lines.append(key | {"partition": "whole", "ms": 1e3 * whole, "fine": True})
            for cut in ("tensor", "hybrid:rows:embedding", "rows:embedding"):
                partition = Partition.of(cut, leaves, d)
                assert partition is not None
                judge = partial(randeigen.aggregate, rows, eps=0.2, seed=0, partition=partition)
                seconds = least(judge, device, repeats)
                line = key | {"partition": cut, "ms": 1e3 * seconds, "wholes": seconds / whole}
                fine = seconds <= MOST_WHOLES.get(cut, np.inf) * whole
                lines.append(line | {"parts": partition.count, "fine": fine})
                print(lines[-1], file=sys.stderr, flush=True)
    return lines


def narrow(device: str, repeats: int) -> list[dict[str, Any]]:
    """Many rows of few columns, each of which is a part."""
    return _narrow(NARROW, "columns:1", "columns:1", device, repeats)


def unlike(device: str, repeats: int) -> list[dict[str, Any]]:
    """Many rows of narrow parts, each of another width."""
    ends = np.cumsum(UNLIKE).tolist()
    cut = [slice(end - width, end) for end, width in zip(ends, UNLIKE, strict=True)]
    return _narrow((NARROW[0], ends[-1]), cut, "unlike", device, repeats)


def _narrow(shape: tuple[int, int], cut: Any, name: str, device: str, repeats: int) -> list[dict[str, Any]]:
    rows = cloud(*shape, device)
    key = {"rows": "{:,} × {:,}".format(*shape), "kind": "narrow"}
    whole = least(partial(randeigen.aggregate, rows, eps=0.2, seed=0), device, repeats)
    seconds = least(partial(randeigen.aggregate, rows, eps=0.2, seed=0, partition=cut), device, repeats)
    count = len(cut) if name == "unlike" else shape[1]
    line = key | {"partition": name, "ms": 1e3 * seconds, "wholes": seconds / whole, "parts": count}
    fine = seconds <= MOST_WHOLES[name] * whole
    return [key | {"partition": "whole", "ms": 1e3 * whole, "fine": True}, line | {"fine": fine}]


def tables() -> dict[str, str]:
    """Of the page, from the records: a line for each embedding, a column for each partition."""
    cuts = {"whole": "whole rows", "tensor": '`"tensor"`', "hybrid:rows:embedding": '`"hybrid"`'}
    cuts |= {"rows:embedding": "each embedding row"}
    out = {}
    for name, file in RECORDS.items():
        lines = json.loads((ROOT / "results" / file).read_text())["lines"]
        costs = {(one["rows"], one["kind"], one["partition"]): one for one in lines if "kind" in one}
        text = [f"| embedding | {' | '.join(cuts.values())} |", "|---" * (1 + len(cuts)) + "|"]
        for rows, kind in dict.fromkeys(key[:2] for key in costs if key[1] != "narrow"):
            title = f"{rows.replace(' × ', ' rows of ')}, {kind}"
            text.append(f"| {title} | {' | '.join(_entry(costs[rows, kind, cut]) for cut in cuts)} |")
        out[f"{name} cost"] = "\n".join(text)
        if name == "cpu":
            out["narrow cost"] = _narrow_sentence(
                next(one for key, one in costs.items() if "columns:1" in key)
            )
    return out


def _narrow_sentence(line: dict[str, Any]) -> str:
    rows = "{:,} rows of {:,} columns".format(*NARROW)
    return (
        f"{rows}, each of which is a part, take {line['ms']:.0f} ms, {line['wholes']:.1f} wholes; with inner "
        "products of every part it was 12 to 28 s."
    )


def _entry(line: dict[str, Any]) -> str:
    text = f"{line['ms']:.1f} ms" if line["ms"] < 10 else f"{line['ms']:.0f} ms"
    if line["partition"] in ("whole", "tensor"):
        return text
    text += f", {line['wholes']:.{1 if line['wholes'] < 10 else 0}f} wholes"
    return f"**{text}**" if line["wholes"] > BOLD_WHOLES else text


def filters(device: str, repeats: int) -> list[dict[str, Any]]:
    """Both filters with a sigma that makes every chunk take all its rounds."""
    lines = []
    sizes = [(50, 2**18), (100, 320_000), *([(20, 22_720_000)] if device != "cpu" else [])]
    for n, d in sizes:
        rows, most = cloud(n, d, device), 0.5 if device != "cpu" or n == 50 else 5.0
        for rule in (ChunkedFiltering(eps=0.2, sigma=0.1), ChunkedNoRegret(eps=0.2, sigma=0.1)):
            seconds = least(partial(rule, rows), device, min(repeats, 3))
            name = type(rule).__name__
            lines.append({"rows": f"{n} × {d}", "rule": name, "ms": 1e3 * seconds, "fine": seconds <= most})
    return lines


def cloud(
    n: int, d: int, device: str, words: tuple[int, int] | None = None, planted: slice | None = None
) -> Any:
    """Gaussian rows of which a fifth are off: everywhere, or in a few columns.

    `words` is the shape of an embedding at their start, of which a client moves the rows of its own words.
    """
    rng = np.random.default_rng(0)
    if device == "cpu":
        rows: Any = rng.standard_normal((n, d), dtype=np.float32)
    else:
        import torch

        rows = torch.randn((n, d), generator=torch.Generator(device).manual_seed(0), device=device)
    if words:
        has: Any = rng.random((n, words[0])) < 100 / np.arange(1, words[0] + 1)
        has = has if device == "cpu" else torch.from_numpy(has).to(device)
        rows[:, : words[0] * words[1]].reshape(n, *words)[...] *= has[:, :, None]
    rows[: n // 5, planted or slice(None)] += 2.0 if planted else 0.3
    return rows


def least(work: Callable[[], Any], device: str, repeats: int) -> float:
    """Seconds of the quickest call, after one that is not counted."""
    best = np.inf
    clock = time.process_time if device == "cpu" else time.perf_counter
    for k in range(repeats + 1):
        start = clock()
        work()
        if device != "cpu":
            import torch

            torch.cuda.synchronize()
        best = min(best, clock() - start) if k else best
    return float(best)


if __name__ == "__main__":
    sys.exit(main())
