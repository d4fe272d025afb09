"""Bulyan's picks, kept up to date from one to the next, are those of scores summed up afresh each time."""

from __future__ import annotations

import numpy as np
import pytest

from randeigen.rules.krum import _bulyan_selection
from randeigen.types import Array


def picked_afresh(apart: Array, f: int, count: int) -> list[int]:
    left = list(range(len(apart)))
    picked = []
    for _ in range(count):
        near = max(len(left) - f - 2, 1)
        scores = np.sort(apart[np.ix_(left, left)], axis=1)[:, : near + 1].sum(axis=1)
        picked.append(left.pop(int(np.argmin(scores))))
    return sorted(picked)


@pytest.mark.parametrize("kind", ["plain", "whole numbers", "equal rows", "far rows", "all sizes"])
@pytest.mark.parametrize(("n", "f"), [(3, 0), (7, 1), (11, 2), (23, 5), (40, 9), (120, 29)])
def test_picks_are_those_of_scores_summed_up_afresh(n: int, f: int, kind: str) -> None:
    rng = np.random.default_rng(n)
    rows = rng.standard_normal((n, 6))
    if kind == "whole numbers":  # many distances are equal
        rows = np.round(rows)
    elif kind == "equal rows":
        rows[::2] = rows[0]
    elif kind == "far rows":
        rows[:f] *= 1e8
    elif kind == "all sizes":
        rows *= rng.lognormal(0, 5, (n, 1))
    apart = ((rows[:, None] - rows) ** 2).sum(axis=2)
    assert _bulyan_selection(apart, f, n - 2 * f).tolist() == picked_afresh(apart, f, n - 2 * f)
