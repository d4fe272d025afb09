"""The name grammar: `randeigen`, `filtering:gamma=0.5`, `nnm+krum`, `mra:boost=5`, `adam:eta=0.01`.

Commands, configurations of the laboratory and audits name rules, attacks and servers in it, so that a record
can be rerun from its own words. Rules are built here; attacks by `randeigen.attacks.build`, servers by
`randeigen.lab.servers.build`, with `parse`. A rule or attack of one's own is the name of a Python file and of
what it defines: `my_rules.py:Best`, `nnm+my_rules.py:Best:power=3`.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from typing import Any, Literal, TypeAlias, get_origin

from randeigen.errors import BadParameter
from randeigen.own_code import SHA, load, own_name, with_digest, with_file
from randeigen.rules import MIXERS, RULES
from randeigen.rules.base import MAX_STAGES, Rule, literal_choices
from randeigen.rules.function import FunctionRule
from randeigen.rules.mixed import PreAggregator

DEFAULT = "randeigen"
MAX_NAME_LENGTH = 2000  # characters, parameters included
IN_FILE = ".py"  # a name without this is in no file
NO_ALIASES: Mapping[str, str] = {}
OwnMaker: TypeAlias = Callable[[str, Any], Callable[..., Any]]  # (its name, what a file defines): the maker


def build_rule(text: str, eps: float | None, f: int | None = None) -> Rule:
    """The rule that `name`, `name:key=value,key=value` or `pre-aggregator+name` asks for."""
    _check_length(text, "rule")
    *mixers, last = _stages(text)
    if len(mixers) > MAX_STAGES:
        raise BadParameter(f"rule {_cut(text)} has {len(mixers)} pre-aggregators; give at most {MAX_STAGES}.")
    _check_order(text, mixers, last)
    rule: Rule = parse(last, RULES, "rule", eps, f, own=_own_rule)
    for mixer in reversed(mixers):
        rule = parse(mixer, MIXERS, "pre-aggregator", eps, f, own=_own_mixer) | rule
    return rule


def _check_order(text: str, mixers: list[str], last: str) -> None:
    """Refuse a pre-aggregator without a rule after it, and a rule that others follow."""
    if last.partition(":")[0] in MIXERS:
        raise BadParameter(
            f"rule {_cut(text)} ends in a pre-aggregator; give the rule that follows it: "
            f"{_cut(text + '+krum')}."
        )
    for name in (mixer.partition(":")[0] for mixer in mixers):
        if name in RULES:
            raise BadParameter(
                f"rule {_cut(text)} has {name!r}, a rule, where a pre-aggregator belongs; give one of "
                f"{', '.join(MIXERS)}, and the rule last."
            )


def pinned_name(text: str) -> str:
    """A rule's or an attack's name as records have it: with the digest of a file that it names."""
    return "+".join(map(with_digest, _stages(text))) if IN_FILE in text else text


def without_digest(text: str) -> str:
    """The name as a user would write it, for tables and pictures."""
    return re.sub(rf"\.py@{SHA}(?=:)", ".py", text)


def rule_in(text: str, file: str | None) -> str:
    """The name of a recorded rule; where it is one of a file, in the file that the caller names.

    A record may come from a stranger: no file is run because a record says so.
    """
    stages = _stages(text)
    for own in filter(None, map(own_name, stages)):
        if file is None:
            raise BadParameter(
                f"the rule is {own.name} of a file, {own.file}, which is run only if you name it: "
                f"--code {own.file}. It must have the recorded content."
            )
    return "+".join(with_file(stage, file) if file is not None else stage for stage in stages)


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
    own: OwnMaker | None = None,
) -> Any:
    """What `name` or `name:key=value,key=value` asks for among `known`; eps and f go to those that take them.

    `aliases` maps earlier names to names in `known`. `own` takes what a user's file defines, and returns what
    makes one of this kind of it, or raises BadParameter.
    """
    _check_length(text, kind)
    if own is not None and IN_FILE in text and (in_file := own_name(text)):
        name, rest = in_file.label, in_file.parameters
        make = own(name, load(in_file))
    else:
        name, colon, after = text.partition(":")
        rest = after if colon else None
        name = name if name in known else aliases.get(name, name)
        if name not in known:
            near = _closest(name, known)
            raise BadParameter(f"there is no {kind} {name!r}{near}. Known are: {', '.join(known)}.")
        make = known[name]
    values = _values(kind, name, make, rest)
    if "eps" in inspect.signature(make).parameters:
        values |= {"eps": eps, "f": f}
    return make(**values)


def _values(kind: str, name: str, make: Callable[..., Any], text: str | None) -> dict[str, Any]:
    """The parameters in `key=value,key=value`; None: none are given."""
    accepted = parameters(make)
    values: dict[str, Any] = {}
    for part in text.split(",") if text is not None else ():
        key, equals, value = part.partition("=")
        if equals and key in ("eps", "f"):
            raise BadParameter(f"{key} is not part of a name: give {key}={value} beside {kind} {name!r}.")
        if not equals or key not in accepted:
            choice = f"it takes {', '.join(f'{k}=...' for k in accepted)}" if accepted else "it takes none"
            raise BadParameter(f"{kind} {name!r} has no parameter {part!r}; {choice}.")
        if key in values:
            raise BadParameter(f"{kind} {name!r} is given {key} twice.")
        values[key] = _value(key, value, accepted[key])
    signature = inspect.signature(make).parameters
    for key in accepted:
        if key not in values and signature[key].default is inspect.Parameter.empty:
            raise BadParameter(f"{kind} {name!r} needs {key}: give {name}:{key}={_example(accepted[key])}.")
    return values


def parameters(factory: Callable[..., Any]) -> dict[str, str]:
    """The parameters that a name can carry, beyond eps and f, with the type of each."""
    fixed = {"eps", "f", *(factory.keywords if isinstance(factory, partial) else ())}
    signature = inspect.signature(factory).parameters.values()
    module = (factory.func if isinstance(factory, partial) else factory).__module__
    return {p.name: _annotation(p, module) for p in signature if p.name not in fixed}


def _annotation(parameter: inspect.Parameter, module: str) -> str:
    """A parameter's type as written; an alias of a `Literal` as that literal, which lists the choices."""
    written = parameter.annotation
    if written is inspect.Parameter.empty:  # as its default is
        written = float if parameter.default in (None, inspect.Parameter.empty) else type(parameter.default)
    text = written.__name__ if isinstance(written, type) else str(written)
    alias = vars(sys.modules[module]).get(text)
    return str(alias) if get_origin(alias) is Literal else text


def _stages(text: str) -> list[str]:
    return re.split(r"\+(?=[A-Za-z_./~\\])", text)  # not the sign in 1e+20


def _own_rule(name: str, definition: Any) -> Callable[..., Rule]:
    if isinstance(definition, type) and issubclass(definition, Rule):
        if inspect.isabstract(definition):
            raise BadParameter(f"{name} is no rule yet: it has no `decide(geometry, f, rng)`.")
        return definition
    if inspect.isfunction(definition):
        return keyword_maker(definition, _function_rule)
    raise BadParameter(
        f"{name} is not a rule but {_what(definition)}; name a class that derives from randeigen.rules.Rule, "
        "or a function of the Gram matrix that returns weights."
    )


def _own_mixer(name: str, definition: Any) -> Callable[..., PreAggregator]:
    if isinstance(definition, type) and issubclass(definition, PreAggregator):
        return definition
    raise BadParameter(
        f"{name} is not a pre-aggregator but {_what(definition)}; name a class that derives from "
        "randeigen.rules.PreAggregator before the +."
    )


def keyword_maker(function: Callable[..., Any], wrap: Callable[..., Any]) -> Callable[..., Any]:
    """What makes `wrap(function, ...)`: a name can carry the function's keyword-only parameters."""
    own = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    names = {p.name for p in own}

    def make(**given: Any) -> Any:
        keywords = {key: value for key, value in given.items() if key in names}
        chosen = update_wrapper(partial(function, **keywords), function) if keywords else function
        return wrap(chosen, **{key: value for key, value in given.items() if key not in names})

    others = list(inspect.signature(wrap).parameters.values())[1:]
    vars(make)["__signature__"] = inspect.Signature([*others, *own])
    make.__module__ = function.__module__
    return make


def _function_rule(function: Callable[..., Any], eps: float | None = None, f: int | None = None) -> Rule:
    return FunctionRule(eps, f, function)


def _what(definition: Any) -> str:
    if isinstance(definition, type):
        return f"the class {definition.__name__}"
    return f"a value of type {type(definition).__name__}"


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
