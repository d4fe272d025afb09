"""What the words on the laboratory's pages mean: attacks, rules, sigma and the columns of tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from html import escape
from inspect import cleandoc
from typing import Any

from randeigen.attacks import ATTACKS, info_of
from randeigen.certificate import meaning
from randeigen.registry import without_digest
from randeigen.rules import MIXERS, RULES

COLUMNS = {  # of the table of runs
    "accuracy": "test examples that the final model classifies correctly",
    "attack success": "attacked test examples that it classifies as the attackers want; -- where they want "
    "nothing in particular",
    "Byzantine weight": "the share of the last round's average that came from Byzantine clients; -- where "
    "there are none, or where the rule works column by column and clients have no weights",
    "certificate": "of the last average, in the units of an update: "
    + meaning(rows="updates", corrupt="f corrupt updates").removesuffix("."),
    "aggregation": "milliseconds that the server's rule takes, the median over rounds",
}
HIDRA = (
    "the attackers look at all honest updates, cut them into chunks of 1,000 numbers and shift every chunk "
    "against the mean as far as a filter that allows the variance sigma lets pass: each shift is small, and "
    f"together they turn the update around ({ATTACKS['hidra'].paper})"
)
SIGMA = (
    "the largest variance along any direction that honest updates are said to have in a chunk of 1,000 "
    "numbers. FILTERING and NO-REGRET must be told it and leave alone what varies less; where it is not "
    "given, it is the one measured for the task. In practice nobody knows it"
)


def explained(attacks: Iterable[str], rules: Iterable[str]) -> list[tuple[str, str]]:
    """Each attack and rule of these, and sigma where one of them has it, with a sentence."""
    attacks, rules = list(dict.fromkeys(attacks)), list(dict.fromkeys(rules))
    told = {name: what for name in attacks if (what := _attack(name))}
    for stage in (stage for rule in rules for stage in rule.split("+")):
        told |= {name: what for name, what in [_rule(stage)] if what}
    if any("hidra" in name for name in attacks) or any("sigma=" in name for name in (*attacks, *rules)):
        told["sigma"] = SIGMA
    return [(without_digest(name), what) for name, what in told.items()]


def listed(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and what they mean, as HTML."""
    lines = "".join(f"<li><strong>{escape(name)}</strong>: {escape(what)}.</li>" for name, what in pairs)
    return f"<ul>{lines}</ul>" if pairs else ""


def _attack(name: str) -> str:
    info = info_of(name)
    if info is None:
        return ""
    if info.name.startswith("hidra"):
        return HIDRA + ("; here sigma is each chunk's own" if "adaptive" in info.name else "")
    return f"{info.does}; the attackers know {info.knows} ({info.goal}; {info.paper})"


def _rule(stage: str) -> tuple[str, str]:
    name = stage.partition(":")[0]
    make: Any = RULES.get(name) or MIXERS.get(name)
    made = make.func if isinstance(make, partial) else make
    first = cleandoc(made.__doc__ or "").split("\n\n")[0] if made is not None else ""
    return name, " ".join(first.split()).removesuffix(".").replace("`", "")
