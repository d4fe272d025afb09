"""How many nodes may be corrupt: in a sample, and among those that answered."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from randeigen.bridges.corruption import Declined, Tolerance, corrupt_among, corrupt_in_sample
from randeigen.errors import BadFraction, BadParameter


def tail(corrupt: int, nodes: int, asked: int, f: int) -> float:
    """The probability that more than f of the nodes asked are corrupt, by counting."""
    ways = sum(math.comb(corrupt, k) * math.comb(nodes - corrupt, asked - k) for k in range(f + 1, asked + 1))
    return ways / math.comb(nodes, asked)


@pytest.mark.parametrize(
    ("nodes", "asked", "eps", "f"),
    [(100, 10, 0.1, 4), (100, 20, 0.1, 6), (100, 50, 0.1, 9), (1000, 100, 0.1, 20), (5, 5, 0.2, 1)],
)
def test_a_sample_may_hold_more_than_its_share_of_corrupt_nodes(nodes, asked, eps, f):
    assert Tolerance(eps, None).among(asked, nodes) == f


@given(st.integers(1, 60), st.data())
def test_f_is_the_least_that_a_sample_exceeds_with_less_than_the_risk(nodes, data):
    corrupt, asked = data.draw(st.integers(0, nodes)), data.draw(st.integers(1, nodes))
    f = corrupt_in_sample(corrupt, nodes, asked, risk=0.001)
    assert tail(corrupt, nodes, asked, f) < 0.001 * (1 + 1e-9)
    assert f == 0 or tail(corrupt, nodes, asked, f - 1) >= 0.001 * (1 - 1e-9)


def test_who_is_asked_in_full_has_the_share_of_all():
    assert [Tolerance(0.2, None).among(n, n) for n in (5, 10, 100)] == [1, 2, 20]


def test_a_barred_node_is_one_of_the_corrupt():
    assert Tolerance(0.2, None).among(9, 10, known=1) == 1
    assert Tolerance(None, 2).among(9, 10, known=3) == 0


def test_a_refused_reply_uses_up_one_of_the_f():
    assert corrupt_among(rows=9, f=2, refused=1, absent=0) == 1


def test_silence_gives_nothing_away_where_enough_rows_are_left():
    assert corrupt_among(rows=8, f=3, refused=0, absent=2) == 3


def test_f_nodes_cannot_stop_a_round_by_saying_nothing():
    for n in range(3, 40):
        for f in range((n - 1) // 2 + 1):
            assert 0 <= 2 * corrupt_among(n - f, f, 0, f) < n - f


@pytest.mark.parametrize(
    ("rows", "f", "refused", "absent"),
    [(3, 1, 2, 0), (0, 1, 0, 3), (2, 2, 0, 3), (2, 1, 0, 0), (2, 2, 1, 2)],
)
def test_more_faults_than_were_said_decline_the_round(rows, f, refused, absent):
    with pytest.raises(Declined):
        corrupt_among(rows, f, refused, absent)


def test_what_is_feared_must_be_said_once_and_make_sense():
    for eps, f in ((None, None), (0.2, 1), (0.5, None), (-0.1, None), (None, -1)):
        with pytest.raises(BadFraction):
            Tolerance(eps, f)
    with pytest.raises(BadParameter):
        Tolerance(0.1, None, risk=0)
