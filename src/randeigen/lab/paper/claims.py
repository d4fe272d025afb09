"""A claim of the paper's prose, and what the records say about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from randeigen.lab.paper.cells import chosen
from randeigen.lab.paper.collect import Measured, Records

WORDS = {"=": "", "~": "about ", "<=": "at most ", ">": "more than ", "<": "less than "}
LONG = 60  # characters of conditions that are left out
FACTOR = 2.0  # up to which a number is about another


@dataclass(frozen=True)
class Claim:
    """A line of claims.csv."""

    id: str
    text: str
    op: str
    value: str
    unit: str
    conditions: str
    location: str

    @classmethod
    def of(cls, row: Mapping[str, str]) -> Claim:
        """The claim of this row."""
        names = ("id", "claim", "op", "value", "unit", "conditions", "paper_location")
        return cls(*(row[name] for name in names))

    @property
    def name(self) -> str:
        """What is claimed, with its conditions where they are short."""
        return self.text + (f" ({self.conditions})" if 0 < len(self.conditions) < LONG else "")

    @property
    def reported(self) -> str:
        """The number as the paper has it, in words."""
        return f"{WORDS[self.op]}{self.value} {self.unit}".strip()

    def allows(self, number: float) -> bool:
        """Whether a number is what is claimed: "about" up to a factor of two, neither less nor more.

        >>> Claim("", "", "~", "15", "x", "", "").allows(140)
        False
        """
        value = float(self.value)
        if self.op == "~":
            return value / FACTOR <= number <= value * FACTOR
        return {
            "=": number == value,
            "<": number < value,
            "<=": number <= value,
            ">": number > value,
        }[self.op]


@dataclass(frozen=True)
class Answer:
    """What the records say, and whether the claim holds here; None where they have no number at the point
    of which it speaks.
    """

    text: str
    holds: bool | None


Check: TypeAlias = Callable[[Records, Claim], Answer | None]  # None without any record


def measured(records: Records, name: str, *patterns: str) -> list[Measured]:
    """The cells of an experiment that match and were run."""
    return [one for cell in chosen(name, patterns) if (one := records.measured(cell))]


def listed(pairs: Iterable[tuple[str, float]]) -> str:
    """Names with their numbers."""
    return "; ".join(f"{name} {round(value, 1) + 0.0:.1f}" for name, value in pairs)  # + 0.0: no -0.0


def unmeasured(why: str) -> Check:
    """The answer to a claim that no record can be held against."""
    return lambda records, claim: Answer(why, None)
