"""Every rule by its name, made for rows of a test."""

from __future__ import annotations

from typing import Any

from randeigen.registry import build_rule
from randeigen.rules import RULES

N, D, F = 15, 12, 2
PROMISED = {
    "filtering": "gamma",
    "zhu-filtering": "sigma",
    "no-regret": "sigma",
    "chunked-filtering": "sigma",
    "chunked-no-regret": "sigma",
}
COMPOSED = [
    *("nnm+krum", "nnm+trimmed-mean", "nnm+randeigen", "nnm+bulyan", "bucketing+krum", "bucketing+randeigen"),
    *("arc+randeigen", "arc+nnm+trimmed-mean", "clipping:c=3+median", "clipping:c=3+multi-krum"),
]
EVERY = [*RULES, *COMPOSED]


def make(
    name: str, f: int | None = F, *, scale: float = 1.0, trusted: int = 0, eps: float | None = None
) -> Any:
    """The rule by its name for rows `scale` times those of `rows_of`: lengths it is told scale with them."""
    *mixers, last = name.split("+")
    mixers = [mixer.replace("c=3", f"c={_plainly(3 * abs(scale))}") for mixer in mixers]
    if last in PROMISED:
        last += f":{PROMISED[last]}={_plainly(4 * scale**2)}"
        last += ",chunk=5" if last.startswith("chunked") else ""
    elif last in ("monna", "fltrust"):
        last += f":trusted={trusted}"
    return build_rule("+".join((*mixers, last)), eps, None if eps is not None else f)


def _plainly(number: float) -> str:
    return repr(number).replace("e+", "e")  # a plus stands between mixers
