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
# What a client does in place of an honest answer; tests/flower/app/faulty has the code of each.
MEANINGS = {
    "none": "answers honestly",
    "nan": "a weight matrix that is all NaN",
    "one-nan": "a single NaN in it",
    "huge": "every weight 1e30",
    "flip": "its weights times −10",
    "shape": "9 rows of weights where there are 10",
    "transposed": "the weight matrix transposed",
    "broadcast": "a single number where the matrix belongs, which numpy stretches to its shape",
    "missing": "no bias",
    "extra": "an array that nobody asked for",
    "extra-large": "the same, large",
    "empty": "no array at all",
    "integers": "weights times 1,000 as integers",
    "complex-numbers": "complex weights",
    "strings": "weights that are strings",
    "float64": "honest weights in float64",
    "big-endian": "honest weights in the other byte order",
    "fortran": "honest weights, stored column by column",
    "wrong-words": "honest weights under a wrong dtype and shape in Flower's header",
    "counter": "2⁶² in an integer that counts steps",
    "counter-nan": "NaN in that counter",
    "two-records": "a second record of arrays",
    "other-record-name": "its arrays in a record of another name",
    "no-records": "an empty reply",
    "config-only": "a configuration in place of arrays",
    "no-metrics": "no metrics, so no number of examples",
    "count-negative": "−1 examples",
    "count-list": "a list as its number of examples",
    "count-nan": "NaN examples",
    "count-inf": "infinitely many examples",
    "count-large": "its weights times −3, on 10¹⁵ examples",
    "other-metrics": "another metric than all others",
    "metric-list": "a list where the loss is a number",
    "metric-nan": "a loss of NaN",
    "evaluate-names": "other metrics in evaluation",
    "evaluate-nan": "NaN in evaluation",
    "garbage": "random bytes as an array",
    "truncated": "the first 1,000 bytes of an array",
    "unknown-stype": "a pickle in place of an array",
    "archive": "a zip archive in place of an array",
    "declares-64-tib": "an array whose header declares 64 TiB",
    "objects": "an array of Python objects",
    "raises": "an exception, with terminal codes in its message",
    "dies": "ends its process",
    "hangs": "does not answer in time",
    "garbled": "an object that Flower's protocol cannot parse",
    "unsent": "announces a reply and never sends its arrays",
    "impostor": "signs as another node",
}
RECORDS = {"faults": RESULTS / "flower-faults.json", "wire": RESULTS / "flower-processes.json"}


def tables() -> dict[str, str]:
    """Each table by the name of its place in the page."""
    faults, wire = (json.loads(RECORDS[name].read_text()) for name in ("faults", "wire"))
    cost = costs(json.loads((RESULTS / "flower-overhead.json").read_text()))
    return {"faults": table(faults), "wire": differences(wire, faults), "cost": cost}


def table(record: dict[str, Any]) -> str:
    """A line for every fault: what it did to the stock strategy, and how ours took it."""
    lines = ["| one client of five | what it sends or does | stock FedAvg | robust(FedAvg) | accuracy |"]
    lines.append("|---|---|---|---|---:|")
    lines += [f"| {fault} | {MEANINGS[fault]} | {cells(ways)} |" for fault, ways in record["faults"].items()]
    alone = 100 * record["accuracy_of_the_others_alone"]
    return "\n".join(lines) + f"\n\nThe other four clients alone reach {alone:.1f}%."


def cells(ways: dict[str, Any]) -> str:
    """What a fault did to the stock strategy, how ours took it, and the accuracy of ours."""
    harm, ours = ways["stock"]["harm"], ways["ours"]
    shown = "" if harm == "none" else f"**{harm}**"
    return f"{shown} | {ours['outcome']} | {100 * ours['accuracy']:.1f}%"


def differences(record: dict[str, Any], other: dict[str, Any]) -> str:
    """The lines of the table that come out in another way with real processes."""
    lines = {fault.removeprefix("wire-"): cells(ways) for fault, ways in record["faults"].items()}
    assert lines.keys() == other["faults"].keys()
    unlike = [fault for fault, ways in other["faults"].items() if cells(ways) != lines[fault]]
    if not unlike:
        return f"All {len(lines)} lines came out the same."
    table = ["|---|---|---|---:|", *(f"| {fault} | {lines[fault]} |" for fault in unlike)]
    same = f"{len(lines) - len(unlike)} of the {len(lines)} lines came out the same. The rest:"
    return "\n".join([same, "", "| one client of five | stock FedAvg | robust(FedAvg) | accuracy |", *table])


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
