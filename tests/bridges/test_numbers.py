"""Numbers that strangers claim."""

from __future__ import annotations

import math

import numpy as np
import pytest

from randeigen.bridges.numbers import claim_of, numbers_in


@pytest.mark.parametrize(
    "value", [-1, math.nan, math.inf, 10**400, -(10**400), True, "7", b"7", None, [7], 1j]
)
def test_nothing_but_a_finite_count_is_a_claim(value):
    assert claim_of(value) is None


@pytest.mark.parametrize("value", [0, 7, 7.5, np.int64(7), np.float32(7.5)])
def test_counts_are_heard_whatever_their_type(value):
    assert claim_of(value) == float(value)


def test_a_report_is_reduced_to_its_numbers():
    report = {"loss": 0.5, "huge": 10**400, "nan": math.nan, "text": "x", 3: np.float32(0.25)}
    assert numbers_in(report) == {"loss": 0.5, "3": 0.25}
    assert numbers_in(["loss", 0.5]) == {}
