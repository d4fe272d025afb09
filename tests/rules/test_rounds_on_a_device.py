"""The verdict from rounds that a GPU went through is the one that the host comes to round by round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from randeigen.backend.batched import FilterRounds
from randeigen.geometry.gram import GramGeometry
from randeigen.rules import RandEigen
from randeigen.rules.randeigen import far_outliers
from randeigen.rules.randeigen_batched import STOPS
from randeigen.rules.randeigen_on_device import verdict_of
from randeigen.types import Array, TopDirection

KINDS = ("round", "shifted", "far out", "each in a direction of its own", "equal", "in very many columns")


class Recorded(GramGeometry):
    """A geometry that remembers its top directions, in full."""

    asked: list[tuple[Array, TopDirection]]

    def top_direction(self, weights: Array, settled: float = 0.0) -> TopDirection:
        top = super().top_direction(weights)
        self.asked.append((weights, top))
        return top

    def top_variance(self, weights: Array) -> TopDirection:
        return self.top_direction(weights)


def cloud(kind: str, n: int) -> Any:
    rng = np.random.default_rng(n)
    rows = rng.standard_normal((n, 30_000 if kind == "in very many columns" else 400))
    if kind == "shifted":
        rows[: n // 6] += 1
    elif kind == "far out":
        rows[0] *= 1e9
    elif kind == "each in a direction of its own":
        rows = np.eye(n, 400) * 1.3 ** np.arange(n)[:, None]
    elif kind == "equal":
        rows[:] = rows[0]
    return rows


@pytest.mark.parametrize("n", [4, 12, 40, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_rounds_in_hand_come_to_the_same_verdict(kind: str, n: int) -> None:
    rows, f = cloud(kind, n), max(n // 6, 1)
    gram, prior = np.zeros((n + 1, n + 1)), np.random.default_rng(0).random(n) + 0.5
    gram[:n, :n] = rows @ rows.T
    geometry = Recorded(gram, prior, np.random.default_rng(1).standard_normal((n, 8)), precision=1e-6)
    object.__setattr__(geometry, "asked", [])
    one_by_one = RandEigen(f=f).weigh(geometry, f, np.random.default_rng(2))
    weights, tops = zip(*geometry.asked, strict=True)
    rounds = FilterRounds(
        np.array(weights),
        np.array([top.projections for top in tops]),
        np.array([top.variance for top in tops]),
        np.array([top.allowance for top in tops]),
        STOPS.index(one_by_one.stop),
    )
    if len(weights) > 1:
        rounds.weights[-1] *= 1 - 2**-52  # a GPU's average rounds in another way
    far = far_outliers(geometry, f)
    at_once = verdict_of(rounds, geometry, np.where(far, 0.0, prior), f, far)
    assert (at_once.stop, at_once.answer_round) == (one_by_one.stop, one_by_one.answer_round)
    for name in ("weights", "spreads", "bounds", "dropped_in_round", "scores", "far_outliers"):
        np.testing.assert_allclose(
            getattr(at_once, name), getattr(one_by_one, name), rtol=1e-12, err_msg=name
        )
