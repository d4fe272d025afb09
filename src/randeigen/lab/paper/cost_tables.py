"""The tables of what rules cost: seconds of an aggregation, and how time and bias grow with d."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from randeigen.lab.paper.cells import RULES, chosen
from randeigen.lab.paper.chunk_times import pieces
from randeigen.lab.paper.collect import Records
from randeigen.lab.paper.growth import slope
from randeigen.lab.paper.reported_numbers import formula, rows, table
from randeigen.lab.paper.tables import NOT_RUN, Grid
from randeigen.lab.report_html import TableCell


def seconds_table(records: Records) -> Grid:
    """Seconds of one aggregation: the paper's on a V100, ours on whatever the record says."""
    numbers, lines = table("images"), []
    for rule in RULES:
        measured = [
            records.measured(cell) for cell in chosen("table:images", [f"*/*/{rule}"]) if cell.attack != "dba"
        ]
        seconds = sorted(one.seconds for one in measured if one)
        name = "randeigen" if rule == "published" else rule
        printed = [value.value for key, value in numbers.items() if key[3] == name and key[4] == "time"]
        paper = f"{min(printed):g} to {max(printed):g}" if printed else ""
        paper = "below 0.01" if rule == "none" else paper
        ours = f"{seconds[0]:.2g} to {seconds[-1]:.2g}" if seconds else "not run"
        lines.append([rule, ours, paper])
    return Grid("seconds of one aggregation, CNN", ["rule", "measured", "paper (V100)"], lines)


def chunk_table(records: Records) -> Grid:
    """Seconds of a training step under FILTERING by chunk size: the five of the paper's text, and ours."""
    reported = {int(row["chunk"]): float(row["value"]) for row in rows("text-filtering-time-by-chunk")}
    record = records.measurement("chunks") or {"lines": [], "columns": 0}
    by_chunk = {line["chunk"]: line for line in record["lines"]}
    parts = {c: pieces(record["columns"], c) for c in by_chunk}
    dense = {c: parts[c] * line["dense"] for c, line in by_chunk.items()}
    step = {c: line["step"] for c, line in by_chunk.items()}
    ratio = {c: line["dense"] / line["published"] for c, line in by_chunk.items()}
    lines: list[list[TableCell | str]] = []
    for chunk in sorted({*reported, *by_chunk}):
        ours: list[TableCell | str] = [NOT_RUN] * 3
        if chunk in by_chunk:
            rounds = f"{by_chunk[chunk]['timed']} of {by_chunk[chunk]['rounds']} rounds"
            timed = f"1 of {parts[chunk]} chunks, {rounds} timed"
            ours = [TableCell(f"{dense[chunk]:,.0f}", timed), f"{step[chunk]:.1f}", f"{ratio[chunk]:,.0f}"]
        lines.append([f"{chunk:,}", f"{reported[chunk]:g}" if chunk in reported else "", *ours])
    lines.append(["growth", *(_growth(each) for each in (reported, dense, step, ratio))])
    size = f"{record['columns']:,} columns, {record['rows']} rows, " if by_chunk else ""
    title = f"seconds of FILTERING in a training step, by chunk size; measured: {size}one core of a CPU"
    titles = ["paper (V100)", "C×C in each round", "n×n, the same answer", "C×C over Algorithm 3, one chunk"]
    return Grid(title, ["C", *titles], lines)


def _growth(seconds: Mapping[int, float]) -> str:
    """As a power of the chunk size."""
    return f"C^{slope(list(seconds), list(seconds.values())):.1f}" if len(seconds) > 1 else ""


def prior_work_table(records: Records) -> Grid | None:
    """Table 1: exponents of time and of bias in d."""
    record = records.measurement("table:prior-work")
    if record is None:
        return None
    printed = {row["rule"]: row for row in rows("table1-prior-work")}
    lines: list[list[TableCell | str]] = []
    for rule in dict.fromkeys(line["rule"] for line in record["lines"]):
        of = [line for line in record["lines"] if line["rule"] == rule]
        d = [line["d"] for line in of]
        late = [line for line in of if line["d"] >= 1000] or of
        row = printed.get({"zhu-filtering": "filtering", "published": "randeigen"}.get(rule, rule))
        lines.append(
            [
                rule,
                f"d^{slope([line['d'] for line in late], [line['seconds'] for line in late]):.2f}"
                + ("" if d[-1] >= 1000 else f" to d = {d[-1]}"),
                formula(row["complexity"]) if row else "",
                _exponent(d, [line["bias"] for line in of]),
                ", ".join(f"{round(line['bias'], 9):.2g}" for line in of),
                ", ".join(f"{round(line['relative'], 9):.2g}" for line in of),
                formula(row["max_bias"]) if row else "",
            ]
        )
    sizes = ", ".join(f"{line['d']:,}" for line in record["lines"] if line["rule"] == "mean")
    title = f"100 rows, 10 of them one deviation off in every coordinate; d = {sizes}"
    titles = [
        "time from d = 1,000",
        "paper",
        "bias",
        "in deviations of a coordinate",
        "over sqrt(‖Σ_S‖)",
        "paper ",
    ]
    return Grid(title, ["rule", *titles], lines)


def _exponent(x: Sequence[float], y: Sequence[float]) -> str:
    """The power of x that y grows with; a rule that leaves out exactly the Byzantine rows has no bias."""
    return "none" if min(y) < 1e-9 else f"d^{slope(x, y):.2f}"
