"""What parts cost: the page shows what the records hold."""

from __future__ import annotations

from benchmarks.parts_cost import PAGE, tables
from studies.documents import redrawn


def test_the_page_shows_what_parts_cost_by_the_records() -> None:
    text = PAGE.read_text()
    assert redrawn(text, tables()) == text, "run python -m benchmarks.parts_cost --redraw"
