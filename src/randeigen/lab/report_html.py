"""Pages of coloured tables and charts, each in one HTML file."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from randeigen.lab import charts
from randeigen.pages import html_page
from randeigen.rows.write import replacing

STYLE = """
td.good { background: color-mix(in srgb, #009e73 22%, var(--paper)) }
td.bad { background: color-mix(in srgb, #d55e00 26%, var(--paper)) }
td.near { background: color-mix(in srgb, #e69f00 18%, var(--paper)) }
td.none { color: var(--soft) } th, td { padding: .3rem .4rem } table { font-size: .86rem }
body { max-width: 78rem }
td.left:first-child, th.left:first-child { position: sticky; left: 0; background: var(--paper) }
@media (max-width: 40rem) { td.left:first-child { white-space: normal; max-width: 34vw } }
td small { color: var(--soft); display: block; line-height: 1.25; font-size: .78rem }
td.words { white-space: normal; min-width: 11rem; text-align: left }
td a { color: inherit; text-decoration-color: var(--soft) }
.seeds a { display: inline-block; padding: .15rem .35rem }
details li { max-width: none }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(22rem, 100%), 1fr)) }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1rem; margin: 1rem 0 }
details { margin: .6rem 0 } summary { cursor: pointer } code { font-size: .88em; overflow-wrap: anywhere }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .3rem } a { color: #0072b2 }
@media (prefers-color-scheme: dark) { a { color: #7cc4f0 } }
.notes li { max-width: 46rem; color: var(--soft) }
"""


LONG = 24  # characters: longer text is set as words, left and over several lines


class Link(NamedTuple):
    """To a record, named after its seeds; `hint` shows on hover."""

    seeds: str
    target: str
    hint: str = ""


class Origin(NamedTuple):
    """What makes some records."""

    command: str
    commits: str


@dataclass(frozen=True)
class TableCell:
    """Text, a second line, a colour (good, bad, near, none), its records and the commands that make them."""

    text: str
    below: str = ""
    mood: str = ""
    links: tuple[Link, ...] = ()
    origins: tuple[Origin, ...] = ()


def table(titles: Sequence[str], lines: Sequence[Sequence[TableCell | str]]) -> str:
    """A table whose first column is text; it scrolls by itself on a narrow screen."""
    kinds = [_kind([line[i] for line in lines]) for i in range(len(titles))]
    kinds[0] = kinds[0] or ' class="left"'
    head = "".join(f"<th{kind}>{escape(title)}</th>" for kind, title in zip(kinds, titles, strict=True))
    body = "\n".join(
        "<tr>" + "".join(_cell(kind, cell) for kind, cell in zip(kinds, line, strict=True)) + "</tr>"
        for line in lines
    )
    return f'<div class="wide"><table>\n<tr>{head}</tr>\n{body}\n</table></div>' + _commands(lines)


def _commands(lines: Sequence[Sequence[TableCell | str]]) -> str:
    """The commands behind a table, folded up; nothing where there are none."""
    cells = (cell for line in lines for cell in line if isinstance(cell, TableCell))
    origins = dict.fromkeys(origin for cell in cells for origin in cell.origins)
    listing = "\n".join(
        f"<li><code>{escape(command, quote=False)}</code> <small>commit {escape(commits)}</small></li>"
        for command, commits in origins
    )
    summary = "<summary>the commands that make these records</summary>"
    return f"\n<details>{summary}<ul>\n{listing}\n</ul></details>" if origins else ""


def _kind(column: Sequence[TableCell | str]) -> str:
    """A column that has long text is one of words, the others have numbers."""
    long = any(isinstance(cell, str) and not cell[:1].isdigit() and len(cell) > LONG for cell in column)
    return ' class="left words"' if long else ""


def _cell(kind: str, cell: TableCell | str) -> str:
    if isinstance(cell, str):
        return f"<td{kind}>{escape(cell)}</td>"
    below = "".join(f"<small>{escape(line)}</small>" for line in cell.below.split("; ") if line)
    mood = f' class="{cell.mood}"' if cell.mood else ""
    links = " ".join(
        f'<a href="{escape(link.target)}" title="{escape(link.hint)}">{escape(link.seeds)}</a>'
        for link in cell.links
    )
    seeds = f'<small class="seeds">seed {links}</small>' if links else ""
    return f"<td{mood}>{escape(cell.text)}{below}{seeds}</td>"


def paragraphs(*words: str) -> str:
    """Plain sentences."""
    return "\n".join(f"<p>{_with_code(one)}</p>" for one in words)


def notes(lines: Sequence[str]) -> str:
    """A list of remarks in small."""
    return '<ul class="notes">' + "".join(f"<li>{_with_code(line)}</li>" for line in lines) + "</ul>"


def _with_code(text: str) -> str:
    """Text in HTML; what stands between backticks is code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def gallery(figures: Sequence[str]) -> str:
    """Charts beside each other where the screen is wide enough."""
    return '<div class="charts">\n' + "\n".join(f"<figure>{one}</figure>" for one in figures) + "\n</div>"


def write(
    path: str | os.PathLike[str], title: str, lead: str, sections: Sequence[tuple[str, str, str]]
) -> None:
    """Write the page; a section is (anchor, title, HTML)."""
    links = "".join(f'<a href="#{anchor}">{escape(name)}</a>' for anchor, name, _ in sections)
    body = "\n".join(
        f'<section id="{anchor}">\n<h2>{escape(name)}</h2>\n{inside}\n</section>'
        for anchor, name, inside in sections
    )
    style = f"<style>{charts.STYLE}{STYLE}</style>"
    page = html_page(title, [style, f"<h1>{escape(title)}</h1>", lead, f"<nav>{links}</nav>", body])
    with replacing(path) as file:
        file.write(page.encode())
