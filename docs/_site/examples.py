"""Examples for every rule, pre-aggregator and attack of the reference, made from names. Tests run them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import griffe

from randeigen import attacks, rules

RULE = """
>>> import numpy as np
>>> import randeigen
>>> rows = np.random.default_rng(0).standard_normal((20, 5))
>>> randeigen.aggregate(rows, rule={call}).mean.shape
(5,)
"""
ROWS_ATTACK = """
>>> import numpy as np
>>> import randeigen.attacks
>>> honest = np.random.default_rng(0).standard_normal((16, 5))
>>> randeigen.attacks.{name}()(honest, 4, np.random.default_rng(1)).shape
(4, 5)
"""
CLIENT_ATTACK = """
>>> from randeigen.lab import FederatedConfig, run
>>> record = run(FederatedConfig(task="{task}", attack="{name}", clients=10, rounds=1, epochs=1))
>>> record.history[0].liars  # Byzantine clients
2
"""
POISON = """
>>> from randeigen.lab import CentralizedConfig, prepare
>>> setup = prepare(CentralizedConfig("digits", "{name}", eps=0.05))
>>> float(setup.train.poison.double().mean()) <= 0.06
True
"""


def examples() -> dict[str, str]:
    """By the name of the class: the lines of a doctest."""
    found = {cls.__name__: RULE.format(call=_call(cls)) for cls in map(rules.rule_class, rules.RULES)}
    for mixer in rules.MIXERS.values():
        found[mixer.__name__] = RULE.format(call=f"{_call(mixer)} | randeigen.rules.Mean(eps=0.1)")
    for info in attacks.REGISTRY:
        cls: Any = info.make.func if isinstance(info.make, partial) else info.make
        if not inspect.isclass(cls):
            continue
        if issubclass(cls, attacks.RowsAttack):
            found.setdefault(cls.__name__, ROWS_ATTACK.format(name=cls.__name__))
        elif info.kind == "data":
            found.setdefault(cls.__name__, POISON.format(name=info.name))
        else:
            task = "sst2-tiny" if info.inputs == "tokens" else "digits"
            found.setdefault(cls.__name__, CLIENT_ATTACK.format(name=info.name, task=task))
    return {name: text.strip() for name, text in found.items()}


def _call(cls: Any) -> str:
    given = ["eps=0.1"] if "eps" in inspect.signature(cls).parameters else []
    given += [f"{cls.known_variance}=4.0"] if getattr(cls, "known_variance", None) else []
    return f"randeigen.rules.{cls.__name__}({', '.join(given)})"


class Examples(griffe.Extension):
    """Adds them to the docstrings of the classes, unless these have examples of their own."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Called once the package is loaded."""
        known = examples()
        for cls in _classes_in(pkg):
            text = cls.docstring.value if cls.docstring else ""
            if cls.name in known and "Examples:" not in text:
                lines = [f"    {line}" for line in known[cls.name].splitlines()]
                text = "\n".join([text, "", "Examples:", *lines])
                cls.docstring = griffe.Docstring(text, lineno=cls.lineno, parent=cls, parser="google")


def _classes_in(module: griffe.Module) -> Iterator[griffe.Class]:
    for member in module.members.values():
        if isinstance(member, griffe.Module):
            yield from _classes_in(member)
        elif isinstance(member, griffe.Class):
            yield member
