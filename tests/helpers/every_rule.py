"""Every rule by its name, made for rows of a test."""

from __future__ import annotations

from typing import Any

from randeigen.registry import build_rule
from randeigen.rules import RULES, rule_class

N, D, F = 15, 12, 2
COMPOSED = [
    *("nnm+krum", "nnm+trimmed-mean", "nnm+randeigen", "nnm+bulyan", "bucketing+krum", "bucketing+randeigen"),
    *("arc+randeigen", "arc+nnm+trimmed-mean", "clipping:c=3+median", "clipping:c=3+multi-krum"),
]
EVERY = [*RULES, *COMPOSED]


def make(
    name: str, f: int | None = F, *, scale: float = 1.0, trusted: int = 0, eps: float | None = None
) -> Any:
    """The rule by its name for rows `scale` times those of `rows_of`: the lengths it is given scale with them."""
    *mixers, last = name.split("+")
    mixers = [mixer.replace("c=3", f"c={_plainly(3 * abs(scale))}") for mixer in mixers]
    known = rule_class(last)
    if known.known_variance:
        last += f":{known.known_variance}={_plainly(4 * scale**2)}"
        last += ",chunk=5" if last.startswith("chunked") else ""
    elif known.trusts_a_row:
        last += f":trusted={trusted}"
    return build_rule("+".join((*mixers, last)), eps, None if eps is not None else f)


def _plainly(number: float) -> str:
    return repr(number).replace("e+", "e")  # a plus stands between mixers
