"""What is known of every rule, for `randeigen rules` and for docs/rules.md."""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from randeigen.rules import MIXERS, RULES
from randeigen.rules.base import Facts, literal_choices

# The families in the order they are listed, and what the members of each have in common.
FAMILIES = {
    "The default": "",
    "Spectral filters": "Rows are judged by their projections on the top direction of the cloud.",
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
    kind: Literal["rule", "mixer"]
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
        arguments = [f"{key}={value!r}" for key, value in self.fixed.items()]
        arguments += [f"{key}=..." for key, (_, default) in self.takes.items() if default in ("", "nan")]
        first = ["eps=0.1"] if self.kind == "rule" else []
        return f"randeigen.rules.{self.class_name}({', '.join(first + arguments)})"

    def as_json(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            "name": self.name,
            "kind": self.kind,
            "family": self.family,
            "class": self.class_name,
            "what": self.line,
            **self.facts._asdict(),
            "parameters": {key: _as_json(kind, default) for key, (kind, default) in self.takes.items()},
            "doc": self.doc,
        }


def _as_json(annotation: str, default: str) -> dict[str, Any]:
    choices = list(literal_choices(annotation))
    more = {"choices": choices} if choices else {}
    return {"type": "str" if choices else annotation, "default": default, **more}


def pages() -> dict[str, Page]:
    """Every rule and mixer by its name, family by family."""
    listing = [_page(name, make, "rule") for name, make in RULES.items()]
    listing += [_page(name, make, "mixer") for name, make in MIXERS.items()]
    order = [*FAMILIES, *(page.family for page in listing)]  # a new family comes last
    return {page.name: page for page in sorted(listing, key=lambda page: order.index(page.family))}


def _page(name: str, make: Callable[..., Any], kind: Literal["rule", "mixer"]) -> Page:
    cls: Any = make.func if isinstance(make, partial) else make
    fixed = make.keywords if isinstance(make, partial) else {}
    takes = {
        p.name: (str(p.annotation), "" if p.default is p.empty else str(p.default))
        for p in inspect.signature(make).parameters.values()
        if p.name not in ("eps", "f", *fixed)
    }
    doc = inspect.cleandoc(cls.__doc__)
    return Page(name, cls.family, kind, cls.__name__, dict(fixed), takes, cls.facts, doc)


def by_worst(results: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Least worst bias first; NaN last."""
    return sorted(results, key=lambda one: (math.isnan(one["worst"]), one["worst"]))


def numbers(one: Mapping[str, Any]) -> list[str]:
    """Worst, mean, certificate, kept, better and ms, as they are printed."""
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


def wrapped(text: str, width: int, indent: str) -> str:
    """Lines no longer than `width`, all but the first indented."""
    return textwrap.fill(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
