"""How many of the nodes asked may be corrupt, and how many of those that answered still may be."""

from __future__ import annotations

import math

from randeigen.errors import BadParameter
from randeigen.rules.base import check_corruption, stated_count

RISK = 1e-3  # probability, per round, that a sample holds more corrupt nodes than f


class Declined(Exception):
    """A round that cannot be aggregated, and why; the model stays as it is."""


class Tolerance:
    """What the caller fears: a fraction `eps` of all nodes, or `f` of those asked in a round."""

    def __init__(self, eps: float | None, f: int | None, risk: float = RISK) -> None:
        check_corruption("robust", eps, f)
        if isinstance(risk, bool) or not isinstance(risk, (int, float)) or not 0 < risk < 1:
            raise BadParameter(f"risk={risk!r}; give the probability, in (0, 1), that a sample exceeds f.")
        self.eps, self.f, self.risk = eps, f, risk

    def among(self, sampled: int, nodes: int, known: int = 0) -> int:
        """f for `sampled` nodes drawn from `nodes`, of which `known` corrupt ones are no longer asked."""
        if self.f is not None:
            return max(self.f - known, 0)
        assert self.eps is not None
        corrupt = max(stated_count(nodes, self.eps, None) - known, 0)
        return corrupt_in_sample(corrupt, nodes - known, sampled, self.risk)

    def __str__(self) -> str:
        return f"f = {self.f}" if self.eps is None else f"eps = {self.eps:g}"


def corrupt_in_sample(corrupt: int, nodes: int, sampled: int, risk: float = RISK) -> int:
    """The least f that the corrupt among `sampled` of `nodes`, drawn at random, exceed at no more `risk`.

    Their number is hypergeometric: 10 of 100 nodes drawn when 10 are corrupt may well hold 4 of them.
    """
    corrupt, sampled = min(corrupt, nodes), min(sampled, nodes)
    most, least = min(corrupt, sampled), max(0, sampled - (nodes - corrupt))
    tail = 0.0
    for f in range(most, least, -1):
        log = (
            _log_choose(corrupt, f) + _log_choose(nodes - corrupt, sampled - f) - _log_choose(nodes, sampled)
        )
        tail += math.exp(log)
        if tail >= risk:
            return f
    return least


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def corrupt_among(rows: int, f: int, refused: int, absent: int) -> int:
    """How many of the `rows` that can be averaged may be corrupt; Declined if that cannot be said.

    Each refused reply is corrupt for certain and uses up one of the f. A node that failed or fell silent may
    be honest: it is counted among the f only where there would be too few rows otherwise, so that f nodes
    cannot stop a round by saying nothing.
    """
    if 2 * f >= (total := rows + refused + absent):
        raise Declined(
            f"{f} of the {total} nodes asked may be corrupt, half or more, and no rule tolerates that; "
            "ask more nodes"
        )
    if refused > f:
        raise Declined(
            f"{refused} replies are unusable or faulty, but at most {f} nodes were said to be corrupt"
        )
    if rows < 1:
        raise Declined("no reply can be averaged")
    left = f - refused
    if rows > 2 * left:
        return left
    if refused + absent > f:
        raise Declined(
            f"{rows} replies are left and {left} of them may be corrupt: {refused} were refused and "
            f"{absent} are missing"
        )
    return (rows - 1) // 2
