"""The claims of the paper's prose that hold a number, each beside what the records say about it."""

from __future__ import annotations

from randeigen.lab.paper import claims_of_cost, claims_of_training
from randeigen.lab.paper.claims import Answer, Check, Claim
from randeigen.lab.paper.collect import Records
from randeigen.lab.paper.reported_numbers import rows
from randeigen.lab.paper.tables import NOT_RUN, Grid
from randeigen.lab.report_html import TableCell

CHECKS: dict[str, Check] = claims_of_training.CHECKS | claims_of_cost.CHECKS


def prose_table(records: Records) -> Grid:
    """Every claim, in the paper's order."""
    lines: list[list[TableCell | str]] = []
    for claim in map(Claim.of, rows("claims")):
        answer = CHECKS[claim.id](records, claim)
        text = answer.text if answer else ""
        lines.append([claim.name, claim.reported, _verdict(answer), text, claim.location])
    return Grid("claims in prose", ["claim", "paper", "", "measured", "where"], lines)


def _verdict(answer: Answer | None) -> TableCell:
    if answer is None:
        return NOT_RUN
    if answer.holds is None:
        return TableCell("not measured", mood="none")
    return TableCell("holds", mood="good") if answer.holds else TableCell("not here", mood="bad")
