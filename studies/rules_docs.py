"""docs/rules.md: the catalogue of rules from their docstrings, the tables from a record.

    python -m studies.rules_docs --docs docs/rules.md --picture docs/rules.png
    python -m studies.rules_docs --measure --seeds 3 --docs docs/rules.md --picture docs/rules.png

The record is results/rules.json unless --record names another; --measure makes it anew (minutes a seed).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from randeigen.cli.rule_listing import FAMILIES, Page, by_worst, numbers, pages
from randeigen.errors import BadFile, RandEigenError
from randeigen.lab.rule_study import DEFAULT, assumption_of
from randeigen.rows.write import replacing
from studies.documents import redraw
from studies.provenance import made_with


def catalogue() -> str:
    """One section per family, one entry per rule, as markdown."""
    lines: list[str] = []
    known = pages()
    for family, shared in FAMILIES.items():
        lines += [f"## {family}", ""]
        lines += [shared, ""] if shared else []
        for page in known.values():
            if page.family == family and page.fixed:  # another page's class, with a parameter set
                lines += [f"`{page.name}` is `{page.call()}`.", ""]
            elif page.family == family:
                lines += [f"### `{page.name}` · {page.class_name}", "", _as_markdown(page.doc), ""]
                lines += [f"*Cost* {page.facts.cost}. *Breaks down at* {page.facts.breakdown}. "]
                lines[-1] += f"*Blind to* {page.facts.blind_to}. *Paper:* {page.facts.paper}."
                lines += ["", *_parameters(page)]
    return "\n".join(lines).strip()


def _as_markdown(doc: str) -> str:
    """A docstring as paragraphs: no markup in it, and nothing that the facts say anyway."""
    paragraphs = [" ".join(part.split()) for part in doc.split("\n\n")]
    kept = [part for part in paragraphs if not part.startswith("Cost:")]
    outside = re.compile(r"(`[^`]*`)|([*_<])")  # code stays as it is
    return "\n\n".join(outside.sub(lambda m: m[1] or "\\" + m[2], part) for part in kept)


def _parameters(page: Page) -> list[str]:
    if not page.takes:
        return []
    listed = [
        f"`{key}={default}`" if default != "nan" else f"`{key}` (required)"
        for key, (_, default) in page.takes.items()
    ]
    return [f"Parameters: {', '.join(listed)}.", ""]


def results_table(results: Sequence[Mapping[str, Any]]) -> str:
    """The measured table, best worst bias first, as markdown."""
    titles = "rule | worst | mean | certificate | kept | better | ms | assumes"
    lines = [f"| {titles} |", "|---|" + "---:|" * 6 + "---|"]
    for one in by_worst(results):
        name = f"**{one['rule']}**" if one["rule"] == DEFAULT else one["rule"]
        cells = [name, *numbers(one), assumption_of(one["rule"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _lower(one: Mapping[str, float], other: Mapping[str, float], turned: bool = False) -> str:
    """Where one's worst is clearly below the other's, most so first, with both numbers (turned round)."""
    lower = sorted(
        (key for key in one if one[key] < 0.95 * other[key]), key=lambda key: one[key] / other[key]
    )
    pairs = {key: (other[key], one[key]) if turned else (one[key], other[key]) for key in lower[:4]}
    shown = ", ".join(f"{key} ({a:.2f}, not {b:.2f})" for key, (a, b) in pairs.items())
    return shown + (f" and {len(lower) - 4} more" if len(lower) > 4 else "")


def rivals(results: Sequence[Mapping[str, Any]]) -> str:
    """Who has a lower worst or mean than the default, and under which attacks and on which clouds."""
    default = next(one for one in results if one["rule"] == DEFAULT)
    lines = []
    for one in by_worst(results):
        lower = [key for key in ("worst", "mean") if one[key] < default[key]]
        if one is default or not lower:
            continue
        lead = " and ".join(f"{key} {one[key]:.3f} against {default[key]:.3f}" for key in lower)
        where = {kind: _lower(one[kind], default[kind]) for kind in ("by_attack", "by_cloud")}
        worse = _lower(default["by_attack"], one["by_attack"], turned=True)
        knows = f" (given {assumption_of(one['rule'])})" if assumption_of(one["rule"]) else ""
        lines.append(
            f"- `{one['rule']}`{knows}: {lead}. Its worst is "
            f"lower under {where['by_attack'] or 'no attack'}; on {where['by_cloud'] or 'no cloud'}; "
            f"higher under {worse or 'none'}."
        )
    if not lines:
        return "No other rule has a lower worst or a lower mean bias than the default on this grid."
    return "\n".join(lines)


def sections(record: Mapping[str, Any]) -> dict[str, str]:
    """All that docs/rules.md takes from the docstrings and from a record."""
    return {
        "catalogue": catalogue(),
        "standings": results_table(record["standings"]),
        "small": results_table(record["small"]),
        "rivals": rivals(record["standings"]),
        "small rivals": rivals(record["small"]),
    }


def read_record(path: Path) -> dict[str, Any]:
    record = json.loads(path.read_text())
    if not isinstance(record, dict) or "standings" not in record:
        raise BadFile(f"{path} is no record of `randeigen rules --measure`.")
    return record


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m studies.rules_docs", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--record", type=Path, default=Path("results/rules.json"), metavar="FILE")
    parser.add_argument("--measure", action="store_true", help="make the record anew")
    parser.add_argument("--seeds", type=int, default=3, help="times the grid is drawn; default: %(default)s")
    parser.add_argument(
        "--docs", type=Path, metavar="FILE", help="put the tables between this page's markers"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the results, as PNG")
    options = parser.parse_args(arguments)
    try:
        if options.measure:
            _measure(options.record, options.seeds)
        record = read_record(options.record)
        if options.docs:
            redraw(options.docs, sections(record))
        if options.picture:
            _draw(options.picture, record)
    except (RandEigenError, OSError, json.JSONDecodeError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


def _measure(path: Path, seeds: int) -> None:
    from randeigen.cli.rule_measurement import measure_rules

    record = measure_rules(None, seeds) | {"made_with": made_with()}
    with replacing(path) as file:
        file.write((json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())


def _draw(path: Path, record: Mapping[str, Any]) -> None:
    from studies.rule_pictures import draw_results

    if not record["standings"]:
        raise BadFile("the record has no rule of the standard grid to draw.")
    draws = f"{len(record['seeds'])} seed{'s' if len(record['seeds']) > 1 else ''}"
    draw_results(path, record["standings"], f"How far off: every rule on the standard grid, {draws}")


if __name__ == "__main__":
    raise SystemExit(main())
