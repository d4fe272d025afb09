"""Rules by name: `randeigen`, `filtering:gamma=0.5`, `nnm+krum`; for --rule and for audits."""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from randeigen.errors import BadParameter
from randeigen.rules import MIXERS, RULES
from randeigen.rules.base import MAX_STAGES, Rule

DEFAULT = "randeigen"
LONGEST = 2000  # characters of a name, parameters and all


def build_rule(text: str, eps: float | None, f: int | None) -> Rule:
    """The rule that `name`, `name:key=value,key=value` or `mixer+name` asks for."""
    _check_length(text, "rule")
    *mixers, last = re.split(r"\+(?=[a-z])", text)  # not the sign in 1e+20
    if len(mixers) > MAX_STAGES:
        raise BadParameter(
            f"rule {_cut(text)} has {len(mixers)} mixers; give at most {MAX_STAGES} (two or three will do)."
        )
    rule: Rule = parse(last, RULES, "rule", eps, f)
    for mixer in reversed(mixers):
        rule = parse(mixer, MIXERS, "mixer", eps, f) | rule
    return rule


def parse(
    text: str,
    known: Mapping[str, Callable[..., Any]],
    kind: str,
    eps: float | None = None,
    f: int | None = None,
) -> Any:
    """What `name` or `name:key=value,key=value` asks for, of these; eps and f go to those that take them."""
    _check_length(text, kind)
    name, colon, rest = text.partition(":")
    if name not in known:
        near = _closest(name, known)
        raise BadParameter(f"there is no {kind} {name!r}{near}. Known are: {', '.join(known)}.")
    takes = parameters(known[name])
    given: dict[str, Any] = {}
    for part in rest.split(",") if colon else ():
        key, equals, value = part.partition("=")
        if not equals or key not in takes:
            told = f"it takes {', '.join(f'{k}=...' for k in takes)}" if takes else "it takes none"
            raise BadParameter(f"{kind} {name!r} has no parameter {part!r}; {told}.")
        if key in given:
            raise BadParameter(f"{kind} {name!r} is given {key} twice.")
        given[key] = _value(key, value, takes[key])
    asked = inspect.signature(known[name]).parameters
    if "eps" in asked:
        given |= {"eps": eps, "f": f}
    return known[name](**given)


def parameters(factory: Callable[..., Any]) -> dict[str, str]:
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
    except (ValueError, KeyError, OverflowError):
        pass
    raise BadParameter(f"{key}={text!r} is not a value; give one like {key}={_example(kind)}.")


def _example(kind: str) -> str:
    return "true" if kind.startswith("bool") else "3" if kind.startswith("int") else "0.5"


def _check_length(text: str, kind: str) -> None:
    if len(text) > LONGEST:
        raise BadParameter(f"{kind} {_cut(text)} has {len(text):,} characters; give at most {LONGEST:,}.")


def _cut(text: str) -> str:
    """The beginning of a long name, to know it by."""
    return repr(text if len(text) <= 40 else text[:40] + "...")


def _closest(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name.lower(), known, 1, 0.5)
    return f"; did you mean {near[0]!r}" if near else ""
