"""What the paper reports, as data: the files in `reported/`, one row a number."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from randeigen.errors import BadParameter

TABLES = {
    "images": "table4-images",
    "sst2": "table5-sst2",
    "centralized": "table6-centralized",
    "dfba": "table7-dfba",
}


class Reported(NamedTuple):
    """One number of a result table. Accuracies and success rates are in percent, times in seconds."""

    value: float
    text: str  # as printed: "<0.01", "100.00"
    location: str  # in the paper


@cache
def rows(name: str) -> tuple[dict[str, str], ...]:
    """The rows of one file: claims, constants, figures, theorems, table1-prior-work and so on."""
    file = files("randeigen.lab.paper") / "reported" / f"{name}.csv"
    if not file.is_file():
        raise BadParameter(f"the paper's numbers have no file {name!r}.")
    return tuple(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


@cache
def table(name: str) -> dict[tuple[str, str, str, str, str], Reported]:
    """A result table by (data set, attack, eps as printed, rule, metric); metrics are acc, asr and time."""
    return {
        (row["dataset"], row["attack"], row["eps"], row["rule"], row["metric"]): Reported(
            float(row["value"].lstrip("<")), row["value"], row["paper_location"]
        )
        for row in rows(TABLES[name])
    }


def formula(text: str) -> str:
    """A formula of the data as people write it: `O~(1)*sqrt(||Sigma||_2)` is Õ(1)·√‖Σ‖."""
    signs = {"O~": "Õ", "sqrt(||Sigma||_2)": "√‖Σ‖", "sqrt(d)": "√d", "^3": "³", "*": "·"}
    signs |= {"eps n d": "eps·n·d", ") d": ")·d"}
    for plain, sign in signs.items():
        text = text.replace(plain, sign)
    return text
