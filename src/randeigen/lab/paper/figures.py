"""The paper's figures from our records, each panel a chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from randeigen.lab.chart_axes import Axis
from randeigen.lab.charts import Series, chart, histogram
from randeigen.lab.paper.cells import EXPERIMENTS, SENTENCE_ROUNDS
from randeigen.lab.paper.collect import Records, longest
from randeigen.lab.paper.other_studies import Run
from randeigen.lab.tidy import interval

PANELS_1 = ("hidra", "dba", "tma", "ep")
PANELS_3 = ("dba", "mra", "tma", "hidra", "mpa")
ROUNDING = 1e-9  # of the certificate: distances below it are no distances


def figure_1(records: Records) -> list[str]:
    """Clean and poisoned updates of one round in the plane of their top two directions, signed log axes."""
    record = records.measurement("figure:1")
    return [_plane(name, _panel(record, name)) for name in PANELS_1]


def _panel(record: dict[str, Any] | None, name: str) -> dict[str, Any] | None:
    return next((one for one in record["panels"] if one["attack"] == name), None) if record else None


def _plane(name: str, panel: dict[str, Any] | None) -> str:
    x, y = Axis("PC 1 (log scale)", "symlog"), Axis("PC 2 (log scale)", "symlog")
    if panel is None:
        return chart(f"{name}", [], x, y)
    m, points = panel["byzantine"], panel["projections"]
    series = [
        Series(word, [p[0] for p in part], [p[1] for p in part], marks=True)
        for word, part in (("clean", points[m:]), ("poisoned", points[:m]))
    ]
    share = 100 * panel["variance_shares"][0]
    return chart(f"{panel['task']}, {name}, round {panel['round']}: PC 1 has {share:.0f}%", series, x, y)


def figure_2(records: Records) -> list[str]:
    """Seconds against d with n·d·ln d, and FILTERING over RandEigen against C with C²/ln d."""
    record = records.measurement("figure:2")
    if record is None:
        return [chart(title, [], Axis("d"), Axis("seconds")) for title in ("2a: time", "2b: ratio")]
    d = sorted({line["d"] for line in record["lines"]})
    seconds = {(line["rule"], line["d"]): line["seconds"] for line in record["lines"]}
    names = {"published": "as printed", "randeigen": "default"}
    a = [Series(names[rule], d, [seconds[rule, x] for x in d]) for rule in names]
    unit = seconds["published", d[-1]] / (d[-1] * math.log(d[-1]))
    a.append(Series("n·d·ln d", d, [unit * x * math.log(x) for x in d]))
    chunks = sorted({line["chunk"] for line in record["by_chunk"]})
    by_chunk = {(line["rule"], line["chunk"]): line["seconds"] for line in record["by_chunk"]}
    ratio = [by_chunk["filtering, C×C", c] / by_chunk["published", c] for c in chunks]
    ours = [by_chunk["filtering, n×n", c] / by_chunk["randeigen", c] for c in chunks]
    unit = ratio[-1] / (chunks[-1] ** 2 / math.log(chunks[-1]))
    b = [Series("C×C / printed", chunks, ratio), Series("n×n / default", chunks, ours)]
    if larger := records.measurement("chunks"):
        lines = larger["lines"]
        sizes = [line["chunk"] for line in lines]
        b.append(Series("C×C, larger chunks", sizes, [line["dense"] / line["published"] for line in lines]))
        chunks = sorted({*chunks, *sizes})
    b.append(Series("C²/ln d", chunks, [unit * c**2 / math.log(c) for c in chunks]))
    return [
        chart("2a: CPU seconds of RandEigen, n = 100", a, Axis("d", "log"), Axis("seconds", "log")),
        chart("2b: FILTERING over RandEigen, d = C", b, Axis("C", "log"), Axis("ratio", "log")),
    ]


def figure_3(records: Records, name: str = "figure:3") -> list[str]:
    """Accuracy over the rounds under RandEigen, a panel for each data set and attack, a line for each eps."""
    figures, cells = [], EXPERIMENTS[name].cells
    rounds = cells[0].config(0).rounds
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        for attack in PANELS_3:
            series = []
            for cell in (c for c in cells if c.dataset == dataset and c.attack == attack):
                runs = records.runs_of_line(cell)
                series += [line(f"eps {cell.eps}", runs, rounds)] if runs else []
            axes = (
                Axis("round", low=0.0, high=float(rounds), whole=True),
                Axis("accuracy", low=0.0, high=1.0, percent=True),
            )
            figures.append(chart(f"{dataset}, {attack}", series, *axes))
    return figures


def figure_4(records: Records) -> list[str]:
    """Accuracy over the rounds on SST-2, a line for each eps."""
    figures = []
    for attack in ("ep", "hidra"):
        cells = [cell for cell in EXPERIMENTS["figure:4"].cells if cell.attack == attack]
        both = [(cell, records.runs_of_line(cell)) for cell in cells]
        series = [line(f"eps {cell.eps}", runs, SENTENCE_ROUNDS) for cell, runs in both if runs]
        axes = (
            Axis("round", low=0.0, high=float(SENTENCE_ROUNDS), whole=True),
            Axis("accuracy", low=0.0, high=1.0, percent=True),
        )
        figures.append(chart(f"sst2, {attack}", series, *axes))
    return figures


def line(name: str, runs: Sequence[Run], full: int) -> Series:
    """Accuracy over the rounds, of the seeds that have the most, with a band over them; the name says how
    many seeds these are, and how many rounds where they are fewer than `full`.
    """
    runs = longest(runs)
    rounds = runs[0].rounds
    name += f", {len(runs)} seeds" if len(runs) > 1 else ""
    name += f", {rounds} rounds" if rounds < full else ""
    points = [interval([run.history[t]["accuracy"] for run in runs]) for t in range(rounds)]
    halves = [point.half_width or 0.0 for point in points]
    return Series(
        name,
        [t + 1 for t in range(rounds)],
        [point.mean for point in points],
        half_widths=halves if any(halves) else None,
    )


def figure_5(records: Records) -> list[str]:
    """Distributions of clean and poisoned gradients on PC 1: two attacks on data, and DFBA's updates."""
    record = records.measurement("figure:5")
    figures = []
    for name in ("gradient-matching", "subpopulation"):
        panel, title = _panel(record, name), f"{name}, first step"
        groups = {}
        if panel:
            m, values = panel["poison"], panel["projections"]
            groups = {"clean": values[m:], "poisoned": values[:m]}
        figures.append(histogram(title, groups, Axis("projection on PC 1")))
    panel = _panel(records.measurement("figure:1"), "dfba")
    groups = {}
    if panel:
        along, m = [point[0] for point in panel["projections"]], panel["byzantine"]
        groups = {"clean": along[m:], "poisoned": along[:m]}
    figures.append(histogram("dfba, one round", groups, Axis("projection on PC 1")))
    return figures


def certificate(records: Records) -> list[str]:
    """Certificate, bias and what it would be with a plain mean over the rounds, a panel for each attack."""
    record = records.measurement("certificate")
    names = {
        "certificate": "certificate",
        "bias": "off the honest mean",
        "moved": "moved by Byzantine rows",
        "bias_of_mean": "plain mean, off",
    }
    figures = []
    for panel in record["panels"] if record else ():
        lines = panel["lines"]
        series = []
        for key, name in names.items():
            known = [each for each in lines if each[key] > ROUNDING * each["certificate"]]
            series.append(Series(name, [each["round"] for each in known], [each[key] for each in known]))
        figures.append(chart(panel["attack"], series, Axis("round", whole=True), Axis("distance", "log")))
    return figures
