"""What is known of every rule, in words: for `randeigen rules` and for docs/rules.md."""

from __future__ import annotations

import inspect
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from randeigen.experiments.compare import DEFAULT, told
from randeigen.rules import MIXERS, RULES
from randeigen.rules.facts import Facts

# By the module a rule lives in: the family's name, and what its members have in common.
FAMILIES = {
    "The default": ("randeigen",),
    "Spectral filters": ("balanced", "filtering", "spectral", "chunked"),
    "Distances": ("distances", "subsets", "bulyan"),
    "Centres": ("plain", "centres"),
    "Column by column": ("columns",),
    "Small by nature": ("small",),
    "Mixed first": ("mixing",),
}
SHARED = {
    "The default": "",
    "Spectral filters": "Rows are judged by how far out they stand along the widest direction of the cloud.",
    "Distances": "Rows are chosen by their distances to other rows, or to one that the caller trusts.",
    "Centres": "A centre on which each row's pull is bounded; and the plain mean, on which it is not.",
    "Column by column": "Each column on its own. Their certificate leans on RandEigen's mean of the rows.",
    "Small by nature": "For measuring bias, not for models: they refuse what they cannot do.",
    "Mixed first": "Rows are combined, then any rule judges: `nnm+krum`, in Python `NNM(0.2) | Krum(0.2)`.",
}


@dataclass(frozen=True)
class Page:
    """One rule or mixer."""

    name: str
    family: str
    kind: str  # "rule" or "mixer"
    class_name: str
    fixed: dict[str, Any]  # what this name sets of the class's parameters
    takes: dict[str, tuple[str, str]]  # parameters beyond eps and f: type and default, as written
    facts: Facts
    doc: str

    @property
    def line(self) -> str:
        """What it is, in a line."""
        set_to = "".join(f", {key}={value!r}" for key, value in self.fixed.items())
        return self.doc.split("\n", 1)[0] + (f" With {set_to[2:]}." if set_to else "")

    def call(self) -> str:
        """How it is made in Python."""
        given = [f"{key}={value!r}" for key, value in self.fixed.items()]
        given += [f"{key}=..." for key, (_, default) in self.takes.items() if default in ("", "nan")]
        known = ["eps=0.1"] if self.kind == "rule" else []
        return f"randeigen.rules.{self.class_name}({', '.join(known + given)})"

    def as_json(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            "name": self.name,
            "kind": self.kind,
            "family": self.family,
            "class": self.class_name,
            "what": self.line,
            **self.facts._asdict(),
            "parameters": {key: {"type": t, "default": d} for key, (t, d) in self.takes.items()},
            "doc": self.doc,
        }


def pages() -> dict[str, Page]:
    """Every rule and mixer by its name, family by family."""
    found = [_page(name, make, "rule") for name, make in RULES.items()]
    found += [_page(name, make, "mixer") for name, make in MIXERS.items()]
    order = list(FAMILIES)
    return {page.name: page for page in sorted(found, key=lambda page: order.index(page.family))}


def _page(name: str, make: Callable[..., Any], kind: str) -> Page:
    made: Any = getattr(make, "func", make)
    module = made.__module__.rsplit(".", 1)[-1]
    family = next(family for family, modules in FAMILIES.items() if module in modules)
    fixed = dict(getattr(make, "keywords", {}))
    takes = {
        p.name: (str(p.annotation), "" if p.default is p.empty else str(p.default))
        for p in inspect.signature(make).parameters.values()
        if p.name not in ("eps", "f", *fixed)
    }
    return Page(name, family, kind, made.__name__, fixed, takes, made.facts, inspect.cleandoc(made.__doc__))


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
        cells = [name, *numbers(one), told(one["rule"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def by_worst(standings: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Least worst bias first; NaN last."""
    return sorted(standings, key=lambda one: (math.isnan(one["worst"]), one["worst"]))


def numbers(one: Mapping[str, Any]) -> list[str]:
    """Worst, mean, certificate, kept, better, ms, as they are printed."""
    certificate = float(one["certificate"])
    star = "*" if one["refused"] else ""
    return [
        f"{one['worst']:.2f}{star}",
        f"{one['mean']:.3f}",
        "∞" if math.isinf(certificate) else f"{certificate:.2f}",
        "–" if one["kept"] is None else f"{100 * one['kept'] / one['n']:.0f}%",
        f"{100 * one['better']:.0f}%",
        "–" if one.get("ms") is None else f"{one['ms']:.1f}",
    ]


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
        knows = f" (told {told(one['rule'])})" if told(one["rule"]) else ""
        lines.append(
            f"- `{one['rule']}`{knows}: {said}. Its worst is "
            f"lower under {where['by_attack'] or 'no attack'}; on {where['by_cloud'] or 'no cloud'}; "
            f"higher under {worse or 'none'}."
        )
    if not lines:
        return "No other rule has a lower worst or a lower mean bias than the default on this grid."
    return "\n".join(lines)


def _lower(one: Mapping[str, float], other: Mapping[str, float], turned: bool = False) -> str:
    """Where one's worst is clearly below the other's, most so first, with both numbers (turned round)."""
    found = sorted(
        (key for key in one if one[key] < 0.95 * other[key]), key=lambda key: one[key] / other[key]
    )
    pairs = {key: (other[key], one[key]) if turned else (one[key], other[key]) for key in found[:4]}
    shown = ", ".join(f"{key} ({a:.2f}, not {b:.2f})" for key, (a, b) in pairs.items())
    return shown + (f" and {len(found) - 4} more" if len(found) > 4 else "")


def sections(found: Mapping[str, Any]) -> dict[str, str]:
    """All that docs/rules.md takes from the docstrings and from a record."""
    return {
        "catalogue": catalogue(),
        "standings": standings_table(found["standings"]),
        "small": standings_table(found["small"]),
        "rivals": rivals(found["standings"]),
        "small rivals": rivals(found["small"]),
    }


def wrapped(text: str, width: int, indent: str) -> str:
    """Lines no longer than `width`, all but the first indented."""
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False)
