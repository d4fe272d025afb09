"""Pages in one HTML file that needs no network, fits a phone, and is light or dark as the reader has it."""

from __future__ import annotations

import base64
import os
from collections.abc import Collection, Sequence
from html import escape

GENERATOR = "randeigen"  # what pages and pictures say made them
MARKS = (f'<meta name="generator" content="{GENERATOR}">'.encode(), f"Software\0{GENERATOR}".encode())
MARKED_BYTES = 2048  # at the beginning of a file: the mark is among them

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
p, li, figcaption { max-width: 46rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; font-size: .95rem }
th, td { padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); text-align: right }
th, td { white-space: nowrap }
th { font-weight: 600 }
th.left, td.left { text-align: left }
.pictures { display: grid; gap: 1.2rem }
.pictures { grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)) }
.pictures .broad { grid-column: 1 / -1 }
figure { margin: .6rem 0; overflow-x: auto }
img { max-width: 100%; height: auto }
.broad img { max-width: none }  /* as large as it was drawn: its text would become too small */
h1, h2, p, li { overflow-wrap: anywhere }
ul { padding-left: 1.2rem }
figcaption { font-size: .9rem; color: var(--soft) }
pre { overflow-x: auto; font-size: .88rem }
"""


def html_page(title: str, body: Sequence[str]) -> str:
    """A whole page: `body` holds its elements, in HTML."""
    head = f'<meta charset="utf-8">{MARKS[0].decode()}<title>{escape(title)}</title>\n<style>{STYLE}</style>'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    lines = "\n".join(body)
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{lines}\n</body>\n</html>\n'


def is_own_page(path: str | os.PathLike[str]) -> bool:
    """Whether the file is a page or a picture that says that this package made it."""
    try:
        with open(path, "rb") as file:
            start = file.read(MARKED_BYTES)
    except OSError:
        return False
    return any(mark in start for mark in MARKS)


def picture(png: bytes, text: str, *, drawing: bool = True) -> str:
    """An image inside the page; `drawing`: black on white, so that it is inverted where the page is dark."""
    style = ' class="drawing"' if drawing else ""
    return f'<img{style} alt="{escape(text)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'


def table(titles: Sequence[str], lines: Sequence[Sequence[str]], left: Collection[str] = ()) -> str:
    """A table that can be scrolled sideways; columns titled in `left` hold text, the others numbers."""
    sides = [' class="left"' if title in left else "" for title in titles]
    rows = ["".join(f"<th{side}>{escape(title)}</th>" for side, title in zip(sides, titles, strict=True))]
    for line in lines:
        rows.append("".join(f"<td{side}>{escape(text)}</td>" for side, text in zip(sides, line, strict=True)))
    return '<div class="wide"><table>\n' + "\n".join(f"<tr>{row}</tr>" for row in rows) + "\n</table></div>"
