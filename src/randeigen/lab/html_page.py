"""One HTML page about some runs, in one file: it needs no network and opens from disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from inspect import cleandoc
from pathlib import Path
from typing import Any

from randeigen.attacks import ATTACKS, info_of
from randeigen.certificate import meaning
from randeigen.lab.results import FederatedRecord
from randeigen.pages import html_page, picture, table
from randeigen.registry import without_digest
from randeigen.rows.write import replacing
from randeigen.rules import MIXERS, RULES

TITLES = ("attack", "rule", "accuracy", "attack success", "Byzantine weight", "certificate", "aggregation")
WORDS = TITLES[:2]  # the columns of text
NO_VALUE = "--"
CAPTIONS = {
    "accuracy": "Test examples that the model classifies correctly after every round.",
    "asr": "Attacked examples that the model classifies as the attackers want.",
    "weight": "The share of each round's average that came from Byzantine clients; a plain mean keeps it.",
    "clients": (
        "Every mark is a client's update, in the plane of the top two directions of that round; updates at "
        "one place are one mark, with their number. Blue circles are honest, orange triangles Byzantine. "
        "Hollow ones were given less weight by the rule, crossed ones none. Below, where some are not kept, "
        "the kept ones alone, magnified."
    ),
    "trigger": "What the attackers want misread, and as what.",
}

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


@dataclass(frozen=True)
class Part:
    """A section: a heading, paragraphs, runs to compare and pictures of them (paths of PNG files)."""

    title: str
    words: Sequence[str] = ()
    records: Sequence[FederatedRecord] = ()
    pictures: Sequence[Path] = ()


def write_page(
    path: str | os.PathLike[str], title: str, words: Sequence[str], parts: Sequence[Part], end: str = ""
) -> None:
    """Write the whole page; `end` is shown as preformatted text, for commands."""
    body = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(line)}</p>" for line in words)]
    for part in parts:
        body += [f"<h2>{escape(part.title)}</h2>", *(f"<p>{escape(line)}</p>" for line in part.words)]
        body += [_table(part.records)] if part.records else []
        body += [_figures(part.pictures)] if part.pictures else []
    body += [f"<h2>To see it again</h2>\n<pre>{escape(end)}</pre>"] if end else []
    with replacing(path) as file:
        file.write(html_page(title, body).encode())


def table_row(record: FederatedRecord) -> tuple[str, ...]:
    """The last round of a run as cells, in the order of `TITLES`."""
    last, times = record.history[-1], sorted(metrics.seconds for metrics in record.history)
    certificate = NO_VALUE if last.certificate is None else f"{last.certificate:.3g}"
    shares = [percent(share) for share in (last.accuracy, last.asr, byzantine_weight(record))]
    return (
        without_digest(record.spec.attack),
        without_digest(record.spec.rule),
        *shares,
        certificate,
        f"{1e3 * times[len(times) // 2]:.1f} ms",
    )


def byzantine_weight(record: FederatedRecord) -> float | None:
    """The Byzantine clients' share of the last average; None where there are none, or no client weights."""
    last = record.history[-1]
    return last.weight_corrupt if last.liars else None


def percent(share: float | None) -> str:
    """A fraction for a table."""
    return NO_VALUE if share is None else f"{100 * share:.1f}%"


def summarise(records: Sequence[FederatedRecord]) -> list[str]:
    """The results of some runs under one attack, in sentences."""
    spec, last = records[0].spec, records[0].history[-1]
    info = info_of(spec.attack)
    if spec.attack == "none":
        start = f"All {spec.clients} clients are honest."
    else:
        count = f"{last.liars} of the {spec.participating} clients of the last round"
        does = f"{info.does} ({info.goal}; {info.paper})" if info else without_digest(spec.attack)
        start = f"{count} were Byzantine: {does}."
    ends = []
    for record in records:
        rule = without_digest(record.spec.rule)
        end = f"{rule} classifies {percent(record.accuracy)} of the test set correctly"
        if record.asr is not None:
            end += f" and {percent(record.asr)} of the attacked examples as the attackers want"
        ends.append(end)
    return [f"{start} After {spec.rounds} rounds, {'; '.join(ends)}."]


def cells(records: Sequence[FederatedRecord]) -> tuple[list[str], list[list[str]]]:
    """Titles and rows that fit 80 columns: with the attack where there are several, else with the time."""
    several = len({record.spec.attack for record in records}) > 1
    columns = slice(0, -1) if several else slice(1, None)
    return list(TITLES[columns]), [list(table_row(record)[columns]) for record in records]


def _table(records: Sequence[FederatedRecord]) -> str:
    titles, lines = cells(records)
    entries = [(title, COLUMNS[title]) for title in titles if title in COLUMNS]
    entries += explained((record.spec.attack for record in records), (record.spec.rule for record in records))
    return f"{table(titles, lines, left=WORDS)}\n{listed(entries)}"


def _figures(pictures: Sequence[Path]) -> str:
    figures, captioned = [], set()
    for path in pictures:
        kind = path.stem.partition("-")[0]
        caption = escape(CAPTIONS.get(kind, path.stem))
        broad = ' class="broad"' if kind == "trigger" else ""
        image = picture(path.read_bytes(), CAPTIONS.get(kind, path.stem), drawing=kind != "trigger")
        below = "" if kind in captioned else f"<figcaption>{caption}</figcaption>"
        captioned.add(kind)
        figures.append(f"<figure{broad}>{image}{below}</figure>")
    return '<div class="pictures">\n' + "\n".join(figures) + "\n</div>"


def explained(attacks: Iterable[str], rules: Iterable[str]) -> list[tuple[str, str]]:
    """Each attack and rule of these, and sigma where one of them has it, with a sentence."""
    attacks, rules = list(dict.fromkeys(attacks)), list(dict.fromkeys(rules))
    entries = {name: what for name in attacks if (what := _attack(name))}
    for stage in (stage for rule in rules for stage in rule.split("+")):
        entries |= {name: what for name, what in [_rule(stage)] if what}
    if any("hidra" in name for name in attacks) or any("sigma=" in name for name in (*attacks, *rules)):
        entries["sigma"] = SIGMA
    return [(without_digest(name), what) for name, what in entries.items()]


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
    cls = make.func if isinstance(make, partial) else make
    first = cleandoc(cls.__doc__ or "").split("\n\n")[0] if cls is not None else ""
    return name, " ".join(first.split()).removesuffix(".").replace("`", "")
