"""Rules by name: `randeigen`, `filtering:gamma=0.5`. One dict, for --rule and for audits."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from randeigen import rules
from randeigen.cli.told import BadCall
from randeigen.types import Rule

RULES: Mapping[str, Callable[..., Rule]] = {
    "randeigen": rules.RandEigen,
    "random": partial(rules.RandEigen, removal="random"),
    "published": rules.PublishedRandEigen,
    "filtering": rules.Filtering,
    "converging": rules.ConvergingFiltering,
    "mean": rules.Mean,
}
DEFAULT = "randeigen"


def build(text: str, eps: float | None, f: int | None) -> Rule:
    """The rule that `name` or `name:key=value,key=value` asks for."""
    name, colon, rest = text.partition(":")
    if name not in RULES:
        raise BadCall(f"there is no rule {name!r}{_closest(name)}. Known are: {', '.join(RULES)}.")
    factory = RULES[name]
    known = parameters(factory)
    given: dict[str, Any] = {}
    for part in rest.split(",") if colon else ():
        key, equals, value = part.partition("=")
        if not equals or key not in known:
            takes = f"it takes {', '.join(f'{k}=...' for k in known)}" if known else "it takes none"
            raise BadCall(f"rule {name!r} has no parameter {part!r}; {takes}.")
        if key in given:
            raise BadCall(f"rule {name!r} is given {key} twice.")
        given[key] = _value(key, value, known[key])
    return factory(eps=eps, f=f, **given)


def parameters(factory: Callable[..., Rule]) -> dict[str, str]:
    """What a rule can be told beyond eps and f, with the type of each."""
    fixed = {"eps", "f", *getattr(factory, "keywords", {})}
    found = inspect.signature(factory).parameters.values()
    return {p.name: str(p.annotation) for p in found if p.name not in fixed}


def _value(key: str, text: str, kind: str) -> Any:
    """A parameter's value, strictly: no spaces, no NaN, no infinity."""
    try:
        if kind.startswith("str"):
            return text
        if kind.startswith("bool"):
            return {"true": True, "false": False}[text]
        number = int(text) if kind.startswith("int") else float(text)
        if math.isfinite(number) and text == text.strip():
            return number
    except (ValueError, KeyError):
        pass
    raise BadCall(f"{key}={text!r} is not a value; give one like {key}={_example(kind)}.")


def _example(kind: str) -> str:
    return "true" if kind.startswith("bool") else "3" if kind.startswith("int") else "0.5"


def _closest(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), RULES, 1, 0.5)
    return f"; did you mean {near[0]!r}" if near else ""
