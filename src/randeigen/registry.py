"""The name grammar: `randeigen`, `filtering:gamma=0.5`, `nnm+krum`, `mra:boost=5`, `adam:eta=0.01`.

Commands, configurations of the laboratory and audits name rules, attacks and servers in it, so that a record
can be rerun from its own words. Rules are built here; attacks by `randeigen.attacks.build`, servers by
`randeigen.lab.servers.build`, with `parse`.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias, get_origin

from randeigen.errors import BadFraction, BadParameter
from randeigen.rules import MIXERS, RULES
from randeigen.rules.base import MAX_STAGES, Rule, literal_choices
from randeigen.rules.function import FunctionRule
from randeigen.rules.mixed import PreAggregator

DEFAULT = "randeigen"
MAX_NAME_LENGTH = 2000  # characters, parameters included
RuleLike: TypeAlias = Rule | str | Callable[..., Any]  # a rule, its name, or a function of the Gram matrix
NO_ALIASES: Mapping[str, str] = {}


def build_rule(text: str, eps: float | None, f: int | None = None) -> Rule:
    """The rule that `name`, `name:key=value,key=value` or `pre-aggregator+name` asks for."""
    _check_length(text, "rule")
    *mixers, last = _stages(text)
    if len(mixers) > MAX_STAGES:
        raise BadParameter(
            f"rule {_cut(text)} has {len(mixers)} mixers; give at most {MAX_STAGES} (two or three will do)."
        )
    rule: Rule = parse(last, RULES, "rule", eps, f)
    for mixer in reversed(mixers):
        rule = parse(mixer, MIXERS, "mixer", eps, f) | rule
    return rule


def as_rule(rule: RuleLike | None, eps: float | None, f: int | None) -> Rule:
    """The rule that a caller asks for: by eps or f alone `RandEigen`; a rule; or, with eps or f, a name.

    A plain function of the Gram matrix is a rule too.
    """
    given = {name: value for name, value in (("eps", eps), ("f", f)) if value is not None}
    found = " and ".join(f"{name}={value}" for name, value in given.items()) or "none of them"
    either = "exactly one of eps (the fraction of rows you fear) and f (their number)"
    if rule is None:
        if len(given) != 1:
            raise BadFraction(f"give {either}, or a rule; found {found}.")
        return RULES[DEFAULT](eps, f)
    if isinstance(rule, str):
        if len(given) != 1:
            raise BadFraction(f"rule={rule!r} by itself is not a rule: give {either} with it; found {found}.")
        return build_rule(rule, eps, f)
    if isinstance(rule, type) and issubclass(rule, (Rule, PreAggregator)):
        name = rule.__name__
        raise BadParameter(f"rule={name} is not a rule but a class; make one of it: {name}(eps=0.2).")
    if isinstance(rule, Rule):
        if given:
            raise BadFraction(f"give exactly one of eps, f and a rule; found rule={rule} and {found}.")
        return rule
    if callable(rule) and not isinstance(rule, (type, PreAggregator)):
        return FunctionRule(eps, f, rule)
    raise BadParameter(
        f"rule={rule!r} is not a rule; give a value such as randeigen.rules.Krum(eps=0.2), or a name such as "
        '"krum" with eps or f.'
    )


def with_sigma(text: str, sigma: float) -> str:
    """The name of a rule, with `sigma` where the rule must be given the honest variance of a chunk.

    Those are chunked FILTERING and NO-REGRET. A name that has a sigma, or is not known here, stays as it is.
    """
    last = _stages(text)[-1]
    rule = RULES.get(last.partition(":")[0])
    if rule is None or not {"sigma", "chunk"} <= set(parameters(rule)) or "sigma=" in last:
        return text
    return f"{text}{',' if ':' in last else ':'}sigma={float(sigma)!r}"


def parse(
    text: str,
    known: Mapping[str, Callable[..., Any]],
    kind: str,
    eps: float | None = None,
    f: int | None = None,
    *,
    aliases: Mapping[str, str] = NO_ALIASES,
) -> Any:
    """What `name` or `name:key=value,key=value` asks for among `known`; eps and f go to those that take them.

    `aliases` maps earlier names to names in `known`.
    """
    _check_length(text, kind)
    name, colon, rest = text.partition(":")
    name = name if name in known else aliases.get(name, name)
    if name not in known:
        near = _closest(name, known)
        raise BadParameter(f"there is no {kind} {name!r}{near}. Known are: {', '.join(known)}.")
    accepted = parameters(known[name])
    values: dict[str, Any] = {}
    for part in rest.split(",") if colon else ():
        key, equals, value = part.partition("=")
        if not equals or key not in accepted:
            choice = f"it takes {', '.join(f'{k}=...' for k in accepted)}" if accepted else "it takes none"
            raise BadParameter(f"{kind} {name!r} has no parameter {part!r}; {choice}.")
        if key in values:
            raise BadParameter(f"{kind} {name!r} is given {key} twice.")
        values[key] = _value(key, value, accepted[key])
    if "eps" in inspect.signature(known[name]).parameters:
        values |= {"eps": eps, "f": f}
    return known[name](**values)


def parameters(factory: Callable[..., Any]) -> dict[str, str]:
    """The parameters that a name can carry, beyond eps and f, with the type of each."""
    fixed = {"eps", "f", *(factory.keywords if isinstance(factory, partial) else ())}
    signature = inspect.signature(factory).parameters.values()
    module = (factory.func if isinstance(factory, partial) else factory).__module__
    return {p.name: _annotation(p, module) for p in signature if p.name not in fixed}


def _annotation(parameter: inspect.Parameter, module: str) -> str:
    """A parameter's type as written; an alias of a `Literal` as that literal, which lists the choices."""
    text = str(parameter.annotation)
    alias = vars(sys.modules[module]).get(text)
    return str(alias) if get_origin(alias) is Literal else text


def _stages(text: str) -> list[str]:
    return re.split(r"\+(?=[a-z])", text)  # not the sign in 1e+20


def _value(key: str, text: str, kind: str) -> Any:
    """A parameter's value, strictly: no spaces, no NaN, no infinity."""
    if choices := literal_choices(kind):
        if text in choices:
            return text
        raise BadParameter(f"{key}={text!r} is not a value; choose one of {', '.join(choices)}.")
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
    if len(text) > MAX_NAME_LENGTH:
        raise BadParameter(
            f"{kind} {_cut(text)} has {len(text):,} characters; give at most {MAX_NAME_LENGTH:,}."
        )


def _cut(text: str) -> str:
    """The beginning of a long name, for error messages."""
    return repr(text if len(text) <= 40 else text[:40] + "...")


def _closest(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name.lower(), known, 1, 0.5)
    return f"; did you mean {near[0]!r}" if near else ""
