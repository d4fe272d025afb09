"""Shares of a Gram matrix, measured apart, add up to the matrix that is measured at once."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise, permutations
from operator import add
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from randeigen.geometry import measure
from randeigen.geometry.gram_accumulator import GramAccumulator
from randeigen.geometry.gram_share import GramShare
from randeigen.rows import as_rows

RNG = np.random.default_rng(0)
PLAIN = RNG.standard_normal((6, 3000))
CLOUDS = {
    "plain": PLAIN,
    "float32": PLAIN.astype(np.float32),
    "far from the origin": PLAIN + 1e6,
    "one row of 1e200": np.vstack((PLAIN[:-1], 1e200 * PLAIN[-1:])),
    "all of 1e-200": 1e-200 * PLAIN,
    "one column of 1e250": np.where(np.arange(3000) == 7, 1e250 * PLAIN, PLAIN),
}


def shares(rows: NDArray[np.floating], k: int) -> list[GramShare]:
    cuts = np.linspace(0, rows.shape[1], k + 1).astype(int)
    return [GramShare.measure(as_rows(rows[:, a:b]), 5) for a, b in pairwise(cuts.tolist())]


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("k", [1, 2, 7])
def test_shares_add_up_to_the_whole(cloud: str, k: int) -> None:
    rows = CLOUDS[cloud]
    whole, _ = measure(as_rows(rows), "gram", 5)
    total = reduce(add, shares(rows, k)).geometry(5)
    assert total.scale == whole.scale
    for squares in ("squared_norms", "squared_distances"):
        measured, expected = getattr(total, squares)(), getattr(whole, squares)()
        assert measured == pytest.approx(expected, rel=1e-6, abs=1e-6 * float(np.median(expected)))


def test_one_share_of_all_columns_is_the_whole_to_the_bit() -> None:
    for rows in (PLAIN, CLOUDS["float32"]):
        whole, _ = measure(as_rows(rows), "gram", 5)
        share = GramShare.measure(as_rows(rows), 5).geometry(5)
        assert np.array_equal(share.inner_products(), whole.inner_products())
        weights = np.full(6, 1 / 6)
        mine, theirs = share.top_direction(weights), whole.top_direction(weights)
        assert mine.variance == theirs.variance
        assert np.array_equal(mine.projections, theirs.projections)


def test_the_order_of_shares_does_not_matter() -> None:
    parts = shares(CLOUDS["float32"], 3)
    grams = [reduce(add, order).geometry(5).inner_products() for order in permutations(parts)]
    for gram in grams[1:]:
        assert gram == pytest.approx(grams[0], rel=1e-12, abs=1e-9)


def test_a_row_that_is_not_finite_in_one_share_is_unusable_in_the_sum() -> None:
    rows = PLAIN.copy()
    rows[2, 2999] = np.nan
    total = reduce(add, shares(rows, 4))
    assert total.unusable.tolist() == [False, False, True, False, False, False]
    assert not total.geometry(5).squared_norms()[2]


def test_a_share_of_nothing_adds_nothing() -> None:
    share = shares(PLAIN, 1)[0]
    for total in (share + GramShare.of_nothing(6), GramShare.of_nothing(6) + share):
        assert np.array_equal(total.geometry(5).inner_products(), share.geometry(5).inner_products())
        assert total.columns == 3000


def test_equal_rows_are_measured_as_quickly_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same batch on every rank, as in a smoke test: no row is scaled and measured again."""

    def again(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(GramAccumulator, "_scaled", again)
    rows = np.repeat(np.random.default_rng(0).standard_normal((1, 5000)), 4, axis=0).astype(np.float32)
    for block in (rows, rows * 0):
        assert not GramShare.measure(as_rows(block), 0).geometry(0).squared_distances().any()
