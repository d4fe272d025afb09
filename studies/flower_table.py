"""The tables of docs/flower.md, from the records of what clients did to a Flower run.

    python -m studies.flower_table

reads results/flower-faults.json and results/flower-processes.json, and writes the tables of docs/flower.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from studies.documents import redraw

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "flower.md"
RESULTS = ROOT / "results"
RECORDS = {"faults": RESULTS / "flower-faults.json", "wire": RESULTS / "flower-processes.json"}


def tables() -> dict[str, str]:
    """Each table by the name of its place in the page."""
    return {name: table(json.loads(path.read_text())) for name, path in RECORDS.items()}


def table(record: dict[str, Any]) -> str:
    """A line for every fault: what it did to the stock strategy, and how ours took it."""
    lines = ["| one client of five | stock FedAvg | robust(FedAvg) | accuracy |", "|---|---|---|---:|"]
    for fault, ways in record["faults"].items():
        stock, ours = ways["stock"], ways["ours"]
        harm = "" if stock["harm"] == "none" else f"**{stock['harm']}**"
        lines.append(f"| {fault} | {harm} | {ours['outcome']} | {100 * ours['accuracy']:.1f}% |")
    alone = 100 * record["accuracy_of_the_others_alone"]
    return "\n".join(lines) + f"\n\nThe other four clients alone reach {alone:.1f}%."


if __name__ == "__main__":
    redraw(PAGE, tables())
