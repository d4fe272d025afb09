"""What is known of every rule, in words: for `randeigen rules` and for docs/rules.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from randeigen.cli.rule_listing import FAMILIES, SHARED, Page, _lower, by_worst, numbers, pages
from randeigen.lab.rule_study import DEFAULT, assumption_of


def catalogue() -> str:
    """One section per family, one entry per rule, as markdown."""
    lines: list[str] = []
    known = pages()
    for family in FAMILIES:
        lines += [f"## {family}", ""]
        lines += [SHARED[family], ""] if SHARED[family] else []
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
    told = [
        f"`{key}={default}`" if default != "nan" else f"`{key}` (required)"
        for key, (_, default) in page.takes.items()
    ]
    return [f"Parameters: {', '.join(told)}.", ""]


def standings_table(standings: Sequence[Mapping[str, Any]]) -> str:
    """The measured table, best worst bias first, as markdown."""
    titles = "rule | worst | mean | certificate | kept | better | ms | told"
    lines = [f"| {titles} |", "|---|" + "---:|" * 6 + "---|"]
    for one in by_worst(standings):
        name = f"**{one['rule']}**" if one["rule"] == DEFAULT else one["rule"]
        cells = [name, *numbers(one), assumption_of(one["rule"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def rivals(standings: Sequence[Mapping[str, Any]]) -> str:
    """Who has a lower worst or mean than the default, and under which attacks and on which clouds."""
    default = next(one for one in standings if one["rule"] == DEFAULT)
    lines = []
    for one in by_worst(standings):
        lower = [key for key in ("worst", "mean") if one[key] < default[key]]
        if one is default or not lower:
            continue
        said = " and ".join(f"{key} {one[key]:.3f} against {default[key]:.3f}" for key in lower)
        where = {kind: _lower(one[kind], default[kind]) for kind in ("by_attack", "by_cloud")}
        worse = _lower(default["by_attack"], one["by_attack"], turned=True)
        knows = f" (told {assumption_of(one['rule'])})" if assumption_of(one["rule"]) else ""
        lines.append(
            f"- `{one['rule']}`{knows}: {said}. Its worst is "
            f"lower under {where['by_attack'] or 'no attack'}; on {where['by_cloud'] or 'no cloud'}; "
            f"higher under {worse or 'none'}."
        )
    if not lines:
        return "No other rule has a lower worst or a lower mean bias than the default on this grid."
    return "\n".join(lines)


def sections(found: Mapping[str, Any]) -> dict[str, str]:
    """All that docs/rules.md takes from the docstrings and from a record."""
    return {
        "catalogue": catalogue(),
        "standings": standings_table(found["standings"]),
        "small": standings_table(found["small"]),
        "rivals": rivals(found["standings"]),
        "small rivals": rivals(found["small"]),
    }
