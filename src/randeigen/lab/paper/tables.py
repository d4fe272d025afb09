"""The paper's tables with our numbers beside its own, as grids that a page or a document can show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from randeigen.lab import tidy
from randeigen.lab.paper.cell_links import links_of, origins_of
from randeigen.lab.paper.cells import DEFENCES, EXPERIMENTS, RULES, Cell
from randeigen.lab.paper.collect import BEYOND, Measured, Records, seeds_of
from randeigen.lab.paper.other_studies import IMAGES
from randeigen.lab.paper.reported_numbers import Reported, rows, table
from randeigen.lab.report_html import TableCell
from randeigen.lab.sweep_page import comparison_cells, grouped, interval_text

TOLERANCE = 1.0  # points by which the default may fall short of what the paper reports, against unattacked
ASR_TOLERANCE = 3.0  # points above the success on an unattacked model
NEAR = 5.0  # points of accuracy and of success within which a baseline agrees with the paper
NOT_RUN = TableCell("not run", mood="none")
NAMES = {
    "table:images": "images",
    "table:dfba": "dfba",
    "table:centralized": "centralized",
    "table:sst2": "sst2",
}


@dataclass(frozen=True)
class Grid:
    """A table: its title, its columns and its lines."""

    title: str
    titles: Sequence[str]
    lines: Sequence[Sequence[TableCell | str]]


@dataclass(frozen=True)
class Beside:
    """What was measured of a cell beside what was reported, relative to the unattacked mean of either."""

    measured: Measured
    reported: Reported | None
    reported_asr: Reported | None
    reported_clean: Reported | None

    @property
    def difference(self) -> float | None:
        """(measured − our unattacked mean) − (reported − the paper's unattacked mean), in points."""
        if self.reported is None or self.reported_clean is None or self.measured.clean is None:
            return None
        ours = self.measured.accuracy.mean - self.measured.clean
        return ours - (self.reported.value - self.reported_clean.value)

    @property
    def succeeds(self) -> bool | None:
        """Whether the attack's success is above what the paper reports, and above a clean model's by 3
        points.
        """
        asr, limits = self.measured.asr, []
        if self.reported_asr is not None:
            limits.append(self.reported_asr.value)
        if self.measured.clean_asr is not None:
            limits.append(self.measured.clean_asr + ASR_TOLERANCE)
        return None if asr is None or not limits else asr.mean > max(limits)

    @property
    def agrees(self) -> bool:
        """Of a baseline: accuracy and success are within five points of the paper's, either way."""
        asr, reported = self.measured.asr, self.reported_asr
        success = 0.0 if asr is None or reported is None else asr.mean - reported.value
        return max(abs(self.difference or 0.0), abs(success)) <= NEAR

    @property
    def claim(self) -> bool | None:
        """Of a defence: no more than a point short of the paper, and the attack does not succeed."""
        if self.difference is None:
            return None
        return self.difference >= -TOLERANCE and not self.succeeds


def beside(records: Records, cell: Cell) -> Beside | None:
    """The cell beside the paper; Algorithm 3 as printed is held against what the paper reports for it."""
    measured = records.measured(cell)
    if measured is None:
        return None
    return Beside(measured, *_reported(cell))


def _reported(cell: Cell) -> tuple[Reported | None, Reported | None, Reported | None]:
    if cell.experiment not in NAMES:
        return None, None, None
    numbers = table(NAMES[cell.experiment])
    rule = {"published": "randeigen", "filtering-adaptive": "filtering"}.get(cell.rule, cell.rule)
    rule = rule.removeprefix("fine-tuning, ")
    rule = "randeigen" if rule == "suspects" else rule
    key = cell.dataset, cell.attack, cell.eps, rule
    base = table("images") if cell.experiment == "table:dfba" else numbers
    return (
        numbers.get((*key, "acc")),
        numbers.get((*key, "asr")),
        numbers.get((*key[:3], "none", "acc"))
        if cell.experiment == "table:centralized"
        else base.get((cell.dataset, "none", "0", "none", "acc")),
    )


def cell_text(one: Beside | None, rounds: int, here: Path) -> TableCell:
    """A cell as tables show it; it links to its records as seen from the folder `here`."""
    if one is None:
        return NOT_RUN
    measured = one.measured
    text = interval_text(measured.accuracy) + (f" / {interval_text(measured.asr)}" if measured.asr else "")
    below = []
    if one.reported is not None:
        below.append(
            f"paper {one.reported.text}" + (f" / {one.reported_asr.text}" if one.reported_asr else "")
        )
    federated = measured.cell.experiment != "table:centralized"  # whose undefended is another column
    if measured.clean is not None and measured.cell.attack != "none" and federated:
        rate = "" if measured.clean_asr is None or measured.asr is None else f" / {measured.clean_asr:.1f}"
        below.append(f"unattacked {measured.clean:.1f}{rate}")
    if measured.rounds < rounds:
        below.append(f"{measured.rounds} rounds")
    earlier = [each for each in measured.runs if each.path.name == IMAGES]
    newer = [each for each in measured.runs if each not in earlier]
    if earlier:
        below.append(f"seed {seeds_of(earlier)}: earlier study" if newer else "earlier study")
    links, origins = links_of(measured.runs, here), origins_of(measured.runs)
    return TableCell(text, "; ".join(below), _mood(one), links, origins)


def _mood(one: Beside) -> str:
    if one.measured.cell.rule not in ("randeigen", "published", "suspects", "fine-tuning, randeigen"):
        return "" if one.agrees else "near"
    if one.difference is None:
        return ""
    return "good" if one.claim else "bad" if one.difference < -NEAR or one.succeeds else "near"


def federated_tables(records: Records, name: str, here: Path) -> list[Grid]:
    """Table 4 and its like: a grid for each data set, attacks down, rules across."""
    cells = [cell for cell in EXPERIMENTS[name].cells if cell.attack != "none-dba"]
    rounds = max(cell.config(0).rounds for cell in cells)
    grids = []
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        of = [cell for cell in cells if cell.dataset == dataset]
        columns = [rule for rule in RULES if any(cell.rule == rule for cell in of)]
        lines: list[list[TableCell | str]] = []
        for attack, eps in dict.fromkeys((cell.attack, cell.eps) for cell in of):
            label = attack if name != "table:dfba" else f"{attack}, eps {eps}"
            line = [
                cell_text(beside(records, Cell(name, dataset, attack, eps, rule)), rounds, here)
                for rule in columns
            ]
            lines.append([label, *line])
        grids.append(Grid(dataset, ["attack", *columns], lines))
    return grids


def centralized_table(records: Records, here: Path) -> Grid:
    """Table 6: attacks down, defences across."""
    lines: list[list[TableCell | str]] = []
    for attack in ("gradient-matching", "subpopulation"):
        cells = [Cell("table:centralized", "mnist", attack, "<0.05", rule) for rule in DEFENCES]
        lines.append([attack, *(cell_text(beside(records, cell), 0, here) for cell in cells)])
    return Grid("mnist", ["attack", *DEFENCES], lines)


def theorem_table(records: Records) -> Grid | None:
    """The statements, with what was measured."""
    record = records.measurement("theorems")
    if record is None:
        return None
    locations = {row["id"]: row["paper_location"] for row in rows("theorems")}
    lines: list[list[TableCell | str]] = [
        [
            one["id"],
            _verdict_on(one),
            one["measured"],
            one["bound"],
            one.get("room", ""),
            one.get("note", ""),
            locations.get(one["id"], ""),
        ]
        for one in record["checks"]
    ]
    return Grid("statements", ["statement", "", "measured", "as printed", "room", "note", "where"], lines)


def _verdict_on(check: Mapping[str, Any]) -> TableCell:
    if check["holds"] is None:
        return TableCell("see the note")
    if not check["holds"]:
        return TableCell("wrong as printed", mood="bad")
    return TableCell("holds in its regime") if check.get("regime") else TableCell("holds", mood="good")


def beyond_tables(records: Records) -> list[Grid]:
    """The sweeps beyond the paper, as studies/sweeps describes them."""
    grids = []
    for name, title in BEYOND.items():
        folder = records.paper / "beyond" / name
        if folder.is_dir():
            lines = [line for line in tidy.records(folder) if "rule" in line]  # of federations
            groups = grouped(lines)
            for group in groups:
                extra = f", {group.title}" if len(groups) > 1 else ""
                grids.append(Grid(f"{title}{extra}", *comparison_cells(group.lines)))
    return grids


def claims(records: Records) -> list[Beside]:
    """The default in every attacked line of the four result tables that has a measurement."""
    cells = [
        cell
        for name in ("table:images", "table:dfba", "table:centralized", "table:sst2")
        for cell in EXPERIMENTS[name].cells
        if cell.rule == "randeigen"
    ]
    measured = [beside(records, cell) for cell in cells]
    return [one for one in measured if one and one.claim is not None]


def markdown(grid: Grid) -> str:
    """The grid as a Markdown table."""
    head = "| " + " | ".join(title or " " for title in grid.titles) + " |"
    rule = "|---" + "|---:" * (len(grid.titles) - 1) + "|"
    lines = ["| " + " | ".join(_plain(cell) for cell in line) + " |" for line in grid.lines]
    return "\n".join([f"*{grid.title}*", "", head, rule, *lines])


def _plain(cell: TableCell | str) -> str:
    if isinstance(cell, str):
        return cell.replace("|", "\\|")
    marks = {"bad": "**", "good": "", "near": "*"}
    mark = marks.get(cell.mood, "")
    below = f" ({cell.below})" if cell.below else ""
    return f"{mark}{cell.text}{mark}{below}".replace("|", "\\|")


def without_links(grid: Grid) -> Grid:
    """The same without links, for documents that lie elsewhere."""
    lines = [[replace(c, links=()) if isinstance(c, TableCell) else c for c in line] for line in grid.lines]
    return Grid(grid.title, grid.titles, lines)
