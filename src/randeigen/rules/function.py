"""A plain function of the Gram matrix as a rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from randeigen.errors import BadParameter
from randeigen.rules.base import Rule, default_f_to_zero
from randeigen.types import Array, Decision, Geometry, Stop, Verdict

SUM_TOLERANCE = 1e-6  # weights whose sum is this close to 1 are divided by it


@dataclass(frozen=True)
class FunctionRule(Rule):
    """Weights that a function makes of the Gram matrix: `function(gram)` or `function(gram, f)`.

    `gram` is the (n, n) matrix of inner products of the usable rows; the weights are n numbers from 0 that
    sum to 1. Without `eps` and `f` no row is assumed corrupt, so that there is nothing to certify.

    Examples:
        >>> import numpy as np, randeigen
        >>> def shortest_half(gram, f):
        ...     keep = np.argsort(np.diag(gram))[: len(gram) - f]
        ...     return np.isin(np.arange(len(gram)), keep) / len(keep)
        >>> rows = np.random.default_rng(0).standard_normal((10, 50))
        >>> rows[0] *= 100
        >>> randeigen.aggregate(rows, rule=shortest_half, f=1).weights[0]
        np.float64(0.0)
    """

    function: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        default_f_to_zero(self)
        super().__post_init__()
        if not callable(self.function):
            raise BadParameter(f"function={self.function!r}; give a function of the Gram matrix.")
        _check_parameters(self.function, self._called())

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        squares = geometry.squared_norms()
        with np.errstate(all="ignore"):  # of the largest rows it is infinite
            gram = (squares[:, None] + squares - geometry.squared_distances()) / 2
            gram = gram * geometry.scale * geometry.scale
            assert self.function is not None
            weights = self.function(gram, f) if _takes_f(self.function) else self.function(gram)
        return Decision(Verdict(_checked(weights, geometry.n, self._called()), Stop.DIRECT))

    def _called(self) -> str:
        return str(getattr(self.function, "__name__", "the function"))


def _check_parameters(function: Callable[..., Any], called: str) -> None:
    """Refuse a function that cannot be called with the Gram matrix, or with it and f."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*("gram", "f") if _takes_f(function) else ("gram",))
    except TypeError as error:
        raise BadParameter(
            f"{called}{signature} is not a rule ({error}); give a function of gram, the matrix of inner "
            "products, or of gram and f."
        ) from None


def _takes_f(function: Callable[..., Any]) -> bool:
    """Whether it has a second parameter that a position can fill."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions written in C do not tell
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [each for each in parameters if each.kind in positional]
    return len(named) > 1 and (named[1].default is inspect.Parameter.empty or named[1].name == "f")


def _checked(weights: Any, n: int, called: str) -> Array:
    """The weights, or an error that says what is wrong with them."""
    advice = f"give {n} numbers from 0 that sum to 1, one for each usable row."
    try:
        checked = np.asarray(weights.detach().cpu() if hasattr(weights, "detach") else weights)
        if np.iscomplexobj(checked):
            raise TypeError
        checked = checked.astype(np.float64)
    except (TypeError, ValueError):
        raise BadParameter(
            f"{called} is not a rule: it returned {type(weights).__name__}, not weights; {advice}"
        ) from None
    if checked.shape != (n,):
        raise BadParameter(f"{called} is not a rule: it returned weights of shape {checked.shape}; {advice}")
    if not np.isfinite(checked).all() or (checked < 0).any():
        wrong = checked[~np.isfinite(checked) | (checked < 0)][0]
        raise BadParameter(f"{called} is not a rule: it returned a weight of {wrong}; {advice}")
    total = float(checked.sum())
    if abs(total - 1) > SUM_TOLERANCE:
        raise BadParameter(f"{called} is not a rule: it returned weights that sum to {total:.6g}; {advice}")
    return np.asarray(checked / total)
