"""`randeigen inspect`: what would each eps make of these files?"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Annotated, Any

import typer

import randeigen
from randeigen import advice, plotting
from randeigen.certificate import meaning
from randeigen.cli.aggregate_files import check_output, expand, folder_of, within, without_path
from randeigen.cli.console import exit_on_error, number, print_line, print_table, progress_bar
from randeigen.cli.options import Geometry, SecretSeed, Updates
from randeigen.pages import html_page, picture, table
from randeigen.registry import DEFAULT, pinned_name, without_digest
from randeigen.rows.write import replacing

if TYPE_CHECKING:
    from randeigen.inspection import Inspection

TEXT_COLUMN = advice.TITLES[-1]


def inspect(
    updates: Updates,
    rule: Annotated[
        str, typer.Option(metavar="NAME", help="How files are weighed; `randeigen rules` lists all.")
    ] = DEFAULT,
    seed: SecretSeed = None,
    geometry: Geometry = "auto",
    page: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write all of it, with pictures, as one .html file.")
    ] = None,
    figure: Annotated[str | None, typer.Option(metavar="FILE", help="Write the pictures, .png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout instead of the table.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """See what each eps from 0 to 0.45 would make of these files, when you do not know how many are corrupt.

    The files are read once. For every eps: the certificate (how far f corrupt files can have moved the
    answer at its weights), the weight that is kept (100% is the plain mean), the answer's distance from the
    plain mean, the spread of the weighted files along their top direction, and the files that are cut to less
    than half of an even share. Then a sentence of advice. It never claims to know who is corrupt: files that
    stand apart may be an honest minority.

    \b
    Examples:
      randeigen inspect updates/
      randeigen inspect 'round-7/*.npz' --page round-7.html
      randeigen inspect updates/ --rule nnm+krum --json | jq .advice

    \b
    Exit codes:
      0 done, 2 a mistake in the call, 3 a missing extra (pictures need matplotlib), 4 no file is usable,
      130 interrupted
    """
    with exit_on_error():
        paths, rule = expand(updates), pinned_name(rule)
        for option, path, suffix in (("--page", page, ".html"), ("--figure", figure, ".png")):
            if path is not None:
                check_output(option, path, paths, [suffix], force)
                plotting.new_figure((1, 1))  # a missing matplotlib is told before any file is read
        base = folder_of(paths)
        names = [within(path, base) for path in paths]
        with progress_bar(quiet=False) as progress:
            inspection = randeigen.inspect(
                paths, rule=rule, seed=seed, geometry=geometry, names=names, progress=progress
            )
        if figure is not None:
            plotting.draw_inspection(figure, inspection)
        if page is not None:
            with replacing(page) as file:
                file.write(_page(inspection, rule, names).encode())
        if as_json:
            print(json.dumps(_report(inspection, rule, paths), allow_nan=False, indent=1))
            return
        print_table(advice.TITLES, advice.table_lines(inspection), names=(TEXT_COLUMN,))
        for row, reason in inspection.unusable.items():
            print_line(f"{names[row]} is {without_path(reason)}")
        print_line(inspection.advice)
        outputs = [path for path in (page, figure) if path is not None]
        if outputs:
            print_line(f"Written: {', '.join(outputs)}.")


def _page(inspection: Inspection, rule: str, names: Sequence[str]) -> str:
    png = io.BytesIO()
    plotting.draw_inspection(png, inspection)
    title = f"{inspection.n} files: what each eps would make of them"
    text = "The rows in the plane of their top two directions; bound and kept weight against eps"
    body = [f"<h1>{escape(title)}</h1>", f"<p>{escape(inspection.advice)}</p>"]
    body += [table(advice.TITLES, advice.table_lines(inspection), left=(TEXT_COLUMN,))]
    columns = {
        "eps": "the fraction of the files that may be corrupt",
        "f": f"their number, of {inspection.n}",
        "bias bound": meaning(rows="files", corrupt="f corrupt files").rstrip("."),
        "weight kept": "of the files together; 100% is the plain mean",
        "distance to mean": "how far the answer would be from the plain mean of all usable files",
        "spread": "the standard deviation of the files along their top direction, at these weights",
        TEXT_COLUMN: "files with less than half of an even share of the weight",
    }
    items = [f"<li><strong>{title}</strong>: {escape(columns[title])}.</li>" for title in advice.TITLES]
    body += [f"<ul>{''.join(items)}</ul>"]
    body += [f"<p>Rule {escape(without_digest(rule))}, seed {inspection.seed}.</p>"]
    body += [f"<figure>{picture(png.getvalue(), text)}</figure>"]
    if inspection.unusable:
        lines = [(names[row], without_path(reason)) for row, reason in inspection.unusable.items()]
        body += ["<h2>Unusable files</h2>", table(("file", "why"), lines, left=("file", "why"))]
    return html_page(title, body)


def _report(inspection: Inspection, rule: str, paths: Sequence[str]) -> dict[str, Any]:
    """All of it as JSON, for scripts."""
    return {
        "rule": rule,
        "seed": inspection.seed,
        "files": list(paths),
        "unusable": {paths[row]: without_path(reason) for row, reason in inspection.unusable.items()},
        "equal": [[paths[row] for row in group] for group in inspection.copies],
        "apart": [paths[row] for row in inspection.apart],
        "advice": inspection.advice,
        "eps": [
            {
                "eps": each.eps,
                "f": each.f,
                "bias_bound": number(each.bias_bound),
                "weight_kept": each.weight_kept,
                "distance_to_mean": number(each.distance_to_mean),
                "spread": number(each.spread),
                "cut": [paths[row] for row in inspection.cut_by(each)],
                "weights": each.weights.tolist(),
            }
            for each in inspection.opinions
        ],
    }
