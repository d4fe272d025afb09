"""One HTML page about some runs, in one file: it needs no network and opens from disk."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from randeigen.attacks import info_of
from randeigen.certificate import meaning
from randeigen.lab.results import FederatedRecord
from randeigen.rows.write import replacing

TITLES = ("attack", "rule", "accuracy", "attack success", "Byzantine weight", "certificate", "aggregation")
WORDS = TITLES[:2]  # the columns of text
NO_VALUE = "--"
CAPTIONS = {
    "accuracy": "Test images that the model classifies correctly after every round.",
    "asr": "Attacked images that the model classifies as the attackers want. Near 0% the attack fails.",
    "weight": "The share of each round's average that came from Byzantine clients; a plain mean keeps it.",
    "clients": (
        "Every mark is one client's update, in the plane of the top two directions of that round. Blue "
        "circles are honest, orange triangles Byzantine. Hollow ones were given less weight by the rule, "
        "crossed ones none. On the right the kept ones alone, magnified."
    ),
    "trigger": "The images that the attackers want misread, and as what.",
}

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #22262b; --soft: #667; --line: #dcdfe3 }
@media (prefers-color-scheme: dark) {
  :root { --paper: #171717; --ink: #e4e6e8; --soft: #9aa3ad; --line: #353b43 }
  /* Drawings are black on white; inverted they keep their hues, and white becomes the background. */
  img.drawing { filter: invert(.91) hue-rotate(180deg) }
}
body { background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif;
  max-width: 62rem; margin: 0 auto; padding: 2rem 1.25rem 4rem }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .6rem }
h2 { font-size: 1.25rem; margin: 3rem 0 .5rem; padding-top: .8rem; border-top: 1px solid var(--line) }
p, figcaption { max-width: 46rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; font-size: .95rem }
th, td { padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); text-align: right }
th, td { white-space: nowrap }
th { font-weight: 600 }
th.left, td.left { text-align: left }
.pictures { display: grid; gap: 1.2rem }
.pictures { grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)) }
.pictures .broad { grid-column: 1 / -1 }
figure { margin: .6rem 0 }
img { max-width: 100%; height: auto }
figcaption { font-size: .9rem; color: var(--soft) }
pre { overflow-x: auto; font-size: .88rem }
"""


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
    head = f'<meta charset="utf-8"><title>{escape(title)}</title>\n<style>{STYLE}</style>'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    page = f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n'
    page += "\n".join(body) + "\n</body>\n</html>\n"
    with replacing(path) as file:
        file.write(page.encode())


def table_row(record: FederatedRecord) -> tuple[str, ...]:
    """The last round of a run as cells, in the order of `TITLES`."""
    last, times = record.history[-1], sorted(metrics.seconds for metrics in record.history)
    certificate = NO_VALUE if last.certificate is None else f"{last.certificate:.3g}"
    shares = [percent(share) for share in (last.accuracy, last.asr, byzantine_weight(record))]
    return (
        record.spec.attack,
        record.spec.rule,
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
    if info is None:
        start = f"All {spec.clients} clients are honest."
    else:
        count = f"{last.liars} of the {round(spec.sample * spec.clients)} clients of the last round"
        start = f"{count} were Byzantine: {info.does} ({info.goal}; {info.paper})."
    ends = []
    for record in records:
        end = f"{record.spec.rule} classifies {percent(record.accuracy)} of the test images correctly"
        if record.asr is not None:
            end += f" and {percent(record.asr)} of the attacked ones as the attackers want"
        ends.append(end)
    return [f"{start} After {spec.rounds} rounds, {'; '.join(ends)}."]


def cells(records: Sequence[FederatedRecord]) -> tuple[list[str], list[list[str]]]:
    """Titles and rows that fit 80 columns: with the attack where there are several, else with the time."""
    several = len({record.spec.attack for record in records}) > 1
    columns = slice(0, -1) if several else slice(1, None)
    return list(TITLES[columns]), [list(table_row(record)[columns]) for record in records]


def _table(records: Sequence[FederatedRecord]) -> str:
    titles, lines = cells(records)
    rows = ["".join(_cell("th", title, title) for title in titles)]
    rows += ["".join(_cell("td", *pair) for pair in zip(titles, line, strict=True)) for line in lines]
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    caption = escape(
        f"Certificate of the last average: {meaning(rows='updates', corrupt='f corrupt updates')}"
    )
    return f'<div class="wide"><table>\n{body}\n</table></div>\n<figcaption>{caption}</figcaption>'


def _cell(tag: str, title: str, text: str) -> str:
    side = ' class="left"' if title in WORDS else ""
    return f"<{tag}{side}>{escape(text)}</{tag}>"


def _figures(pictures: Sequence[Path]) -> str:
    figures, captioned = [], set()
    for path in pictures:
        kind = path.stem.partition("-")[0]
        caption = escape(CAPTIONS.get(kind, path.stem))
        broad = ' class="broad"' if kind in ("clients", "trigger") else ""
        style = "" if kind == "trigger" else ' class="drawing"'
        data = base64.b64encode(path.read_bytes()).decode()
        image = f'<img{style} alt="{caption}" src="data:image/png;base64,{data}">'
        below = "" if kind in captioned else f"<figcaption>{caption}</figcaption>"
        captioned.add(kind)
        figures.append(f"<figure{broad}>{image}{below}</figure>")
    return '<div class="pictures">\n' + "\n".join(figures) + "\n</div>"
