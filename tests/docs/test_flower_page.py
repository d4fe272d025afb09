"""The tables of docs/flower.md are those of their records, and ours took no harm in any of them."""

from __future__ import annotations

import json

from studies.documents import redrawn
from studies.flower_table import PAGE, RECORDS, RESULTS, tables


def test_the_tables_are_the_records() -> None:
    text = PAGE.read_text()
    assert redrawn(text, tables()) == text


def test_no_fault_did_any_harm_to_ours() -> None:
    for path in RECORDS.values():
        faults = json.loads(path.read_text())["faults"]
        assert len(faults) == 48
        assert {ways["ours"]["harm"] for ways in faults.values()} == {"none"}
        assert {ways["ours"]["declined"] for ways in faults.values()} == {0}


def test_killed_nodes_and_a_killed_server_lost_no_round() -> None:
    record = json.loads(RECORDS["wire"].read_text())
    killed = record["killed"]
    assert (killed["first_run"], killed["resumed_run"]) == ("failed", "completed")
    assert killed["rounds"] == [1, 2, 3, 4]
    assert killed["declined"] == 0
    assert killed["accuracy"] >= record["accuracy_of_the_others_alone"] - 0.01


def test_it_costs_what_was_asked_for_on_two_cores() -> None:
    record = json.loads((RESULTS / "flower-overhead.json").read_text())
    assert record["replies"]["about the origin"]["time_ratio"] <= 1.5
    assert record["memory_ratio"] <= 1.3
