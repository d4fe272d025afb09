"""The tables of docs/flower.md are those of their records, and ours took no harm in any of them."""

from __future__ import annotations

import json

from studies.documents import redrawn
from studies.flower_table import PAGE, RECORDS, tables


def test_the_tables_are_the_records() -> None:
    text = PAGE.read_text()
    assert redrawn(text, tables()) == text


def test_no_fault_did_any_harm_to_ours() -> None:
    for path in RECORDS.values():
        faults = json.loads(path.read_text())["faults"]
        assert len(faults) > 12
        assert {ways["ours"]["harm"] for ways in faults.values()} == {"none"}
        assert {ways["ours"]["declined"] for ways in faults.values()} == {0}
