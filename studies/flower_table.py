"""The tables of docs/flower.md, from the records of what clients did to a Flower run.

    python -m studies.flower_table

reads the records flower-faults, -processes and -overhead, and writes the tables of docs/flower.md.
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
    faults = {name: table(json.loads(path.read_text())) for name, path in RECORDS.items()}
    return faults | {"cost": costs(json.loads((RESULTS / "flower-overhead.json").read_text()))}


def table(record: dict[str, Any]) -> str:
    """A line for every fault: what it did to the stock strategy, and how ours took it."""
    lines = ["| one client of five | stock FedAvg | robust(FedAvg) | accuracy |", "|---|---|---|---:|"]
    for fault, ways in record["faults"].items():
        stock, ours = ways["stock"], ways["ours"]
        harm = "" if stock["harm"] == "none" else f"**{stock['harm']}**"
        lines.append(f"| {fault} | {harm} | {ours['outcome']} | {100 * ours['accuracy']:.1f}% |")
    alone = 100 * record["accuracy_of_the_others_alone"]
    return "\n".join(lines) + f"\n\nThe other four clients alone reach {alone:.1f}%."


def costs(record: dict[str, Any]) -> str:
    """Seconds of the aggregation step, and the peak memory of a process that makes it."""
    lines = [
        "| 20 replies of 10 million float32 numbers | stock FedAvg | robust(FedAvg) | ratio | best ratio |"
    ]
    lines.append("|---|---:|---:|---:|---:|")
    for kind, each in record["replies"].items():
        seconds = " | ".join(f"{each['seconds'][way]:.2f} s" for way in ("stock", "ours"))
        lines.append(f"| {kind} | {seconds} | {each['time_ratio']:.2f} | {each['best_time_ratio']:.2f} |")
    peaks = " | ".join(f"{record['peak_mib'][way]:,.0f} MiB" for way in ("stock", "ours"))
    lines.append(f"| peak memory, replies included | {peaks} | {record['memory_ratio']:.2f} | |")
    return "\n".join(lines)


if __name__ == "__main__":
    redraw(PAGE, tables())
