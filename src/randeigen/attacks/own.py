"""Attacks that a user's own file defines: `mine.py:Stale`, `mine.py:along_the_top:factor=3`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import isabstract, isfunction
from typing import Any

import numpy as np
from numpy.random import Generator

from randeigen.attacks.base import ClientAttack, RowsAttack, RowsFunction
from randeigen.errors import BadParameter
from randeigen.registry import keyword_maker
from randeigen.types import Array


@dataclass(frozen=True)
class FunctionAttack(RowsAttack):
    """An attack that is a function: of the (h, d) honest rows, of m, and of a generator, to (m, d) rows."""

    function: RowsFunction

    def __call__(self, honest: Array, m: int, rng: Generator) -> Array:
        rows = np.asarray(self.function(honest, m, rng))
        if rows.shape != (m, honest.shape[1]):
            name = getattr(self.function, "__name__", "the function")
            raise BadParameter(
                f"{name} is not an attack: it returned shape {rows.shape}; return {m} rows of "
                f"{honest.shape[1]:,} numbers."
            )
        return rows


def own_attack(name: str, definition: Any) -> Callable[..., Any]:
    """What makes an attack on a federation of what a file defines."""
    if isfunction(definition):
        return keyword_maker(definition, FunctionAttack)
    if isinstance(definition, type) and not isabstract(definition):
        if issubclass(definition, ClientAttack) or (
            hasattr(definition, "craft") and hasattr(definition, "sees")
        ):
            return definition
        if hasattr(definition, "craft"):
            raise BadParameter(
                f"{name} does not say what it looks at; add a line to the class: sees = ('own',), or other "
                "fields of randeigen.attacks.base.AttackerView."
            )
    raise BadParameter(
        f"{name} is not an attack; name a class with craft(view, rng) and sees, one with updates(clients) "
        "and success_sets(info, images, labels), or a function of honest rows, the number of rows to make "
        "and a random generator."
    )


def own_poison(name: str, definition: Any) -> Callable[..., Any]:
    """What makes an attack on a training set of what a file defines."""
    if isinstance(definition, type) and hasattr(definition, "poison") and not isabstract(definition):
        return definition
    raise BadParameter(f"{name} is not an attack on training data; name a class with poison(context).")
