"""How far f corrupt rows can have moved an answer whose parts have weights of their own.

Let part p have weights wₚ, mean μₚ, top variance λₚ, and let aₚ be what its f heaviest rows hold. The same f
rows C are corrupt in every part. At these weights they have moved part p by

    tₚ = Σ_{i∈C} wₚᵢ·(xₚᵢ − μₚ) / (1 − wₚ(C)),

so ‖tₚ‖² ≤ wₚ(C)/(1 − wₚ(C))·λₚ, which is the certificate of one part. Three bounds on ‖t‖² = Σ ‖tₚ‖² follow,
each for every set C of f rows, and the least of them is claimed:

1. Σ aₚ/(1 − aₚ)·λₚ: as if other rows could be corrupt in every part.
2. The f largest of sᵢ = Σₚ wₚᵢ·λₚ/(1 − aₚ), added up: the same rows in all parts.
3. As 1 − wₚ(C) ≥ 1 − aₚ, ‖t‖ ≤ ‖Σ_{i∈C} zᵢ‖ with zₚᵢ = wₚᵢ·(xₚᵢ − μₚ)/(1 − aₚ). Σᵢ zᵢ = 0, so for any
   weights r on the rows that sum to 1, ‖t‖² ≤ r(C)·(1 − r(C))·λmax(R^-½ Z R^-½), Z the Gram matrix of the zᵢ
   and R = diag(r). Where all parts have the same weights r = w, this is the certificate of the whole rows:
   cutting them into parts costs nothing until their weights differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from randeigen.backend.arrays import to_host_float64
from randeigen.backend.batched import Numbers, beside, namespace, sorted_lines
from randeigen.types import Array

# Squared lengths, in the unit of the whole rows, that are not 0 are no smaller than this: what underflows
# beside them is covered. Its root is 1e-150 of a typical row.
SMALLEST_SQUARE = 2.0**-1000


class Held(NamedTuple):
    """Shares of the sum of each line of weights; the others' may be much smaller than the rounding of 1."""

    heaviest: Numbers  # (p,) a, of its f largest
    others: Numbers  # (p,) 1 − a


def held_by_heaviest(weights: Numbers, f: int) -> Held:
    """What the f largest of each of p lines hold, and the others."""
    n, xp, ordered = weights.shape[1], namespace(weights), sorted_lines(weights)
    cut = n - min(f, n)
    ones = xp.ones_like(ordered[0])  # sums of short lines are made sooner by a product
    rest, heaviest = ordered[:, :cut] @ ones[:cut], ordered[:, cut:] @ ones[cut:]
    total = rest + heaviest
    return Held(xp.where(rest > 0, heaviest / total, 1.0), xp.where(rest > 0, rest / total, 0.0))


def bounds_of_parts(held: Held, variances: Numbers) -> Numbers:
    """(p,) sqrt(a/(1 − a)·λ): inf where the heaviest rows hold all, 0 where they hold nothing."""
    xp = namespace(held.heaviest)
    ratio = held.heaviest / xp.where(held.others > 0, held.others, 1.0)
    known = xp.where(variances > 0, xp.sqrt(ratio * xp.clip(variances, 0, None)), 0.0)
    known = xp.where(held.others > 0, known, xp.inf)
    return xp.where(held.heaviest <= 0, 0.0, xp.where(xp.isnan(variances), variances, known))


class Union:
    """The certificate of all parts together, added up as they are judged.

    `scale` of a part multiplies its mean, as rules that clip do.
    """

    def __init__(self, n: int, f: int) -> None:
        self._f = f
        self._influence = np.zeros((n, n))  # Z
        self._rounding = np.zeros(n)  # Z and this diagonal together are no smaller than the true Z
        self._shares = np.zeros(n)  # s
        self._squares = 0.0  # of the parts' own bounds
        self._columns = np.zeros(n)  # weights times columns

    def add(
        self,
        weights: Numbers,
        variances: Array,
        influence: Callable[[Array], Array],
        rounding: Array,
        columns: Array,
        scales: Array | float = 1.0,
        held: Held | None = None,
    ) -> Array:
        """Some parts: (p, n) weights, (p,) top variances with all that they may lack; the bound of each part.

        `influence` gives Σₚ cₚ·(Gram matrix of the rows wₚᵢ·(xₚᵢ − μₚ)) for (p,) factors c; `rounding` is
        (p,) what rounding may hide of a variance, `columns` (p,) how many columns each part has, `held` what
        the f heaviest rows hold, if that is known.
        """
        if held is None:
            held = Held(*(to_host_float64(each) for each in held_by_heaviest(weights, self._f)))
        with np.errstate(all="ignore"):
            # An answer of 0, whatever was sent, is not moved.
            moves = np.broadcast_to(scales, len(weights)) > 0
            if not moves.all():
                held = Held(np.where(moves, held.heaviest, 0.0), np.where(moves, held.others, 1.0))
                variances = np.where(moves, variances, 0.0)
            bounds = scales * bounds_of_parts(held, variances)
            least = np.where(bounds > 0, SMALLEST_SQUARE, 0.0)
            self._squares += float(np.maximum(bounds**2, least).sum())
            each = scales**2 * (variances / held.others)
            known = np.isfinite(each).all()
            factors = np.where(moves, np.maximum((scales / held.others) ** 2, SMALLEST_SQUARE), 0.0)
            self._influence += influence(factors)
            # By a product, where the weights are: parts may be many.
            lines = np.stack((each if known else np.zeros_like(each), factors * rounding, columns))
            shares, hidden, summed = to_host_float64(beside(lines, weights) @ weights)
            if known:  # each line at most `least` too large
                self._shares += shares + len(weights) * least.max(initial=0.0)
            else:
                own = to_host_float64(weights)
                lines = np.maximum(own * each[:, None], least[:, None])
                self._shares += np.where(own > 0, lines, 0.0).sum(0)
            self._rounding += hidden + SMALLEST_SQUARE
        self._columns += summed
        return np.asarray(bounds)

    @property
    def weights(self) -> Array:
        """(n,) the mean weight of each row over all columns."""
        return np.asarray(self._columns / self._columns.sum())

    def bound(self) -> float:
        """The least of the three bounds."""
        if self._f <= 0:
            return 0.0
        bounds = (self._squares, float(np.sort(self._shares)[::-1][: self._f].sum()), self._as_one())
        return math.sqrt(min(math.inf if math.isnan(each) else each for each in bounds))

    def _as_one(self) -> float:
        """The third, for the rows' mean weights."""
        r = self.weights
        live = r > 0
        with np.errstate(all="ignore"):
            roots = np.sqrt(r[live])
            matrix = self._influence[np.ix_(live, live)] / roots[:, None] / roots
            rounding = float((self._rounding[live] / r[live]).max())
        if not np.isfinite(matrix).all():
            return math.inf
        top = float(np.linalg.eigvalsh(matrix)[-1])
        held = min(float(np.sort(r)[::-1][: self._f].sum()), 0.5)  # r·(1 − r) is largest at one half
        return held * (1 - held) * (max(top, 0.0) * (1 + 1e-9) + rounding)
