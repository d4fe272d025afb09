"""The tables and pictures of docs/language.md, from results/language.json.

    python -m studies.language_page

Accuracies and success rates are those of the last round, means over the seeds that have been run, in percent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from randeigen import plotting
from randeigen.lab.plots import COLOURS, DASHES, MARKS
from studies.documents import redraw
from studies.language import is_whole
from studies.language_cells import Cell

ROOT = Path(__file__).resolve().parents[1]
RECORD, PAGE = ROOT / "results" / "language.json", ROOT / "docs" / "language.md"
COLUMNS = {
    "mean": "mean",
    "filtering": "FILTERING",
    "filtering-adaptive": "FILTERING, adaptive",
    "no-regret": "NO-REGRET",
    "no-regret-adaptive": "NO-REGRET, adaptive",
    "published": "as published",
    "randeigen": "RandEigen",
    "randeigen-rows": "rows as parts",
    "randeigen-hybrid": "hybrid",
}
ATTACKS = {
    "none": "none",
    "ep-silent": "EP, silent",
    "ep": "EP",
    "ep-boosted": "EP, boost n/m",
    "ep-blended": "EP, boost n/m, blended",
    "hidra": "HIDRA, fixed sigma",
    "hidra-adaptive": "HIDRA, adaptive",
    "hidra-rows": "HIDRA along the rows",
}
TABLES = {  # section of the page: encoder, setting
    "minilm": ("minilm", "short"),
    "minilm long": ("minilm", "long"),
    "small": ("sst2-tiny", "own"),
    "large": ("mpnet", "short"),
}
MAX_MORE_SUCCESS, MAX_LESS_ACCURACY = 0.03, 0.02  # of RandEigen against the unattacked mean

Run = Mapping[str, Any]


def load(path: Path = RECORD) -> dict[Cell, Run]:
    """The finished cells of the record."""
    return {Cell(**run["cell"]): run for run in json.loads(path.read_text())["cells"] if is_whole(run)}


def table(runs: Mapping[Cell, Run], encoder: str, setting: str) -> str:
    """Markdown: a line for each attack and fraction, a column for each rule that has been run."""
    own = {cell: run for cell, run in runs.items() if (cell.encoder, cell.setting) == (encoder, setting)}
    rules = [rule for rule in COLUMNS if any(cell.rule == rule for cell in own)]
    lines = sorted({(cell.attack, cell.eps) for cell in own if cell.attack != "none"}, key=_order)
    head = ["attack", "eps", *(COLUMNS[rule] for rule in rules)]
    out = [f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for attack, eps in [("none", None), *lines]:
        entries = [_entry(own, attack, eps, rule) for rule in rules]
        out.append(f"| {' | '.join([ATTACKS[attack], '' if eps is None else f'{eps:g}', *entries])} |")
    return "\n".join(out)


def costs(runs: Mapping[Cell, Run], encoder: str, setting: str) -> str:
    """Markdown: what an aggregation takes, the median of the cells of each rule that were run last."""
    out = ["| rule | seconds | memory beyond the rows, MB |", "|---|---:|---:|"]
    for rule, title in COLUMNS.items():
        own = [
            run
            for cell, run in runs.items()
            if (cell.encoder, cell.setting, cell.rule) == (encoder, setting, rule) and has_costs(run)
        ]
        latest = [
            one["aggregation"] for one in own if one["versions"]["commit"] == own[-1]["versions"]["commit"]
        ]
        if latest:
            seconds = float(np.median([one["seconds"] for one in latest]))
            memory = float(np.median([one["peak_bytes"] for one in latest])) / 1e6
            out.append(f"| {title} | {seconds:.3f} | {memory:.0f} |")
    return "\n".join(out)


def costs_of_cells(runs: Mapping[Cell, Run], encoder: str, setting: str) -> str:
    """Markdown: milliseconds and megabytes of an aggregation in each cell; of several seeds the medians."""
    own = {cell: run["aggregation"] for cell, run in runs.items() if has_costs(run)}
    own = {cell: cost for cell, cost in own.items() if (cell.encoder, cell.setting) == (encoder, setting)}
    rules = [rule for rule in COLUMNS if any(cell.rule == rule for cell in own)]
    head = ["attack", "eps", *(COLUMNS[rule] for rule in rules)]
    out = [f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for attack, eps in sorted({(cell.attack, cell.eps) for cell in own}, key=_order):
        entries = []
        for rule in rules:
            costs = [
                (cost["seconds"], cost["peak_bytes"])
                for cell, cost in own.items()
                if (cell.attack, cell.eps, cell.rule) == (attack, eps, rule)
            ]
            seconds, memory = np.median(costs, axis=0) if costs else (0.0, 0.0)
            entries.append(f"{1e3 * seconds:,.0f} / {memory / 1e6:.0f}" if costs else "")
        out.append(f"| {' | '.join([ATTACKS[attack], f'{eps:g}' if eps else '', *entries])} |")
    return "\n".join(out)


def has_costs(run: Run) -> bool:
    """Whether its aggregation was measured, and as printed: a sketch drawn by its law costs less."""
    return bool(run["aggregation"]) and "law=true" not in run["spec"]["rule"]


def restored(runs: Mapping[Cell, Run], encoder: str, setting: str) -> str:
    """Markdown: success of boosted EP against the hybrid beside what is no backdoor's, seed by seed."""
    out = [
        "| seed | nobody attacks, mean | silent, hybrid | EP, boost n/m, hybrid | the row put back |",
        "|---|---:|---:|---:|---:|",
    ]
    for cell, run in sorted(runs.items(), key=lambda item: item[0].seed):
        boosted = replace(cell, attack="ep-boosted", rule="randeigen-hybrid")
        if cell != boosted or (cell.encoder, cell.setting, cell.eps) != (encoder, setting, 0.2):
            continue
        silent, end = runs.get(replace(cell, attack="ep-silent")), run["history"][-1]
        if silent and "restored" in end:
            without = [runs[cell.base]["history"][-1]["own"], silent["history"][-1]["asr"]]
            rates = [*without, end["asr"], end["restored"]]
            out.append(f"| {cell.seed} | {' | '.join(f'{100 * rate:.1f}' for rate in rates)} |")
    return "\n".join(out)


def _order(line: tuple[str, float]) -> tuple[int, float]:
    return list(ATTACKS).index(line[0]), line[1]


def _entry(runs: Mapping[Cell, Run], attack: str, eps: float | None, rule: str) -> str:
    """Accuracy and success of a rule; bold where RandEigen misses what is claimed of it."""
    chosen = {
        cell: run
        for cell, run in runs.items()
        if (cell.attack, cell.rule) == (attack, rule) and (attack == "none" or cell.eps == eps)
    }
    if not chosen:
        return ""
    accuracy, rate = _end(chosen.values())
    text = f"{100 * accuracy:.1f}" + ("" if rate is None else f" / {100 * rate:.1f}")
    text += f" ({len(chosen)} seeds)" if len(chosen) > 1 else ""
    clean, own = _end(runs[cell.base] for cell in chosen if cell.base in runs)
    missed = accuracy < clean - MAX_LESS_ACCURACY
    missed |= rate is not None and own is not None and rate > own + MAX_MORE_SUCCESS
    return f"**{text}**" if missed and rule.startswith("randeigen") else text


def _end(runs: Iterable[Run]) -> tuple[float, float | None]:
    """Mean accuracy and success of the last rounds; without attack, how often the word alone decides."""
    ends = [run["history"][-1] for run in runs]
    rates = [end["asr"] if end["asr"] is not None else end.get("own") for end in ends]
    known = [rate for rate in rates if rate is not None]
    return float(np.mean([end["accuracy"] for end in ends])), float(np.mean(known)) if known else None


def draw(path: Path, runs: Mapping[Cell, Run], encoder: str, setting: str) -> None:
    """Accuracy under HIDRA and success of EP over the rounds, a line for each rule: the paper's Figure 4."""
    panels = (
        ("hidra", "accuracy", "accuracy under HIDRA"),
        ("ep-boosted", "asr", "success of EP, boost n/m"),
    )
    figure, shown = plotting.new_figure((10.8, 3.9)), dict[str, Any]()
    for axes, (attack, field, title) in zip(figure.subplots(1, 2), panels, strict=True):
        start = Cell("none", "mean", 0.0, setting=setting, encoder=encoder)
        base = [run for cell, run in runs.items() if replace(cell, rounds=start.rounds) == start]
        for run in base:
            clean = [one["own" if field == "asr" else field] for one in run["history"]]
            axes.plot(range(1, len(clean) + 1), clean, color="0.6", linewidth=3, label="unattacked mean")
        in_picture = [rule for rule in COLUMNS if not rule.endswith("-adaptive")]
        for look, rule in enumerate(in_picture):
            cell = replace(start, attack=attack, rule=rule, eps=0.2)
            runs_of_rule = [run for each, run in runs.items() if replace(each, rounds=start.rounds) == cell]
            if not runs_of_rule:
                continue
            name, values = COLUMNS[rule], [one[field] for one in runs_of_rule[0]["history"]]
            style = {"color": COLOURS[look], "linestyle": DASHES[look], "marker": MARKS[look]}
            every = max(1, len(values) // 8)
            axes.plot(range(1, len(values) + 1), values, **style, label=name, markersize=4, markevery=every)
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("round")
        axes.set_title(title, loc="left", fontsize=11)
        plotting.quiet(axes)
        shown |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(shown.values(), shown.keys(), frameon=False, fontsize=8, loc="outside right upper")
    plotting.save(figure, path)


def tables(runs: Mapping[Cell, Run]) -> dict[str, str]:
    """The tables of the page, by the name of their place."""
    known = {(cell.encoder, cell.setting) for cell in runs}
    return {name: table(runs, *which) for name, which in TABLES.items() if which in known} | {
        "costs": costs(runs, *TABLES["minilm"]),
        "costs of cells": costs_of_cells(runs, *TABLES["minilm"]),
        "restored": restored(runs, *TABLES["small"]),
    }


def main() -> None:
    runs = load()
    redraw(PAGE, tables(runs))
    for name, which in {"language": TABLES["minilm"], "language-small": TABLES["small"]}.items():
        draw(ROOT / "docs" / "attacks" / f"{name}.png", runs, *which)


if __name__ == "__main__":
    main()
