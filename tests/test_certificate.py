"""The certificate: thousands of attempts to violate it, with weights of every origin."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import randeigen
from clouds import ATTACKS, HONEST, gaussian, with_liars
from randeigen import RandEigen, rules
from randeigen.certificate import corruptible
from randeigen.measure import measure
from randeigen.rows import as_rows

RULES = [
    RandEigen(f=4),
    RandEigen(f=4, removal="random"),
    RandEigen.as_published(0.2),
    rules.Filtering(f=4, gamma=1.0),
    rules.Filtering.converging(f=4),
    rules.Mean(f=4),
]


def moved(rows: np.ndarray, weights: np.ndarray, liars: np.ndarray) -> float:
    """How far these liars moved the weighted mean from that of the honest rows alone."""
    honest = np.where(liars, 0.0, weights)
    if honest.sum() == 0:
        return math.inf
    return float(np.linalg.norm(weights @ rows - honest @ rows / honest.sum()))


@pytest.mark.parametrize("seed", range(25))
def test_no_choice_of_liars_violates_it_for_any_weights(seed: int) -> None:
    """1,000 clouds: random weights, random sets of liars, and liars placed where the bound is tight."""
    rng = np.random.default_rng(seed)
    for _ in range(40):
        n, d, f = int(rng.integers(2, 25)), int(rng.integers(1, 30)), 0
        f = int(rng.integers(0, n))
        rows = rng.standard_normal((n, d)) * np.exp(3 * rng.standard_normal((n, 1)))
        weights = rng.random(n) ** rng.integers(1, 6) * (rng.random(n) > 0.2)
        if weights.sum() == 0:
            continue
        liars = np.zeros(n, dtype=bool)
        liars[rng.choice(n, f, replace=False)] = True
        if rng.random() < 0.5:  # all liars at one point, all honest rows at another: equality
            rows[liars], rows[~liars] = rng.standard_normal(d), rng.standard_normal(d)
        if rng.random() < 0.3:  # and the heaviest rows lie
            liars = np.argsort(np.argsort(weights)) >= n - f
        weights /= weights.sum()
        geometry, _ = measure(as_rows(rows), seed=seed)
        bound = randeigen.certify(geometry, weights, f)
        assert moved(rows, weights, liars) <= bound * (1 + 1e-9) + 1e-12


def test_it_is_tight() -> None:
    rows = np.zeros((10, 3))
    rows[:2] = 1.0
    liars = np.arange(10) < 2
    result = randeigen.aggregate(rows, rule=rules.Mean(f=2))
    assert result.bias_bound == pytest.approx(moved(rows, result.weights, liars), rel=1e-6)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("cloud", HONEST)
@pytest.mark.parametrize("attack", ATTACKS)
def test_it_holds_for_the_weights_of_every_rule(rule: rules.RandEigen, cloud: str, attack: str) -> None:
    rows = with_liars(HONEST[cloud](20, 60), 4, attack)
    result = randeigen.aggregate(rows, rule=rule, seed=0)
    assert moved(rows, result.weights, np.arange(20) < 4) <= result.bias_bound * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["gram", "sketch", "gaussian"])
@pytest.mark.parametrize("seed", range(5))
def test_it_holds_on_a_sketch_too(kind: str, seed: int) -> None:
    rows = with_liars(gaussian(20, 30_000, seed), 4, "sqrt_d").astype(np.float32)
    result = randeigen.aggregate(rows, f=4, geometry=kind, seed=seed)
    assert moved(rows, result.weights, np.arange(20) < 4) <= result.bias_bound


def test_float32_rounding_is_added_to_what_it_claims() -> None:
    """Rows that differ in the last bits of a float32: what the table cannot see, the bound must allow."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows = (1 + 1e-6 * rng.standard_normal((8, 2000))).astype(np.float32)
        result = randeigen.aggregate(rows, rule=rules.Mean(f=3))
        worst = max(
            moved(rows.astype(np.float64), result.weights, np.isin(np.arange(8), rng.choice(8, 3, False)))
            for _ in range(20)
        )
        assert worst <= result.bias_bound


@settings(max_examples=200)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(0, 25))
def test_the_corruptible_share_is_that_of_the_heaviest_rows(weights: list[float], f: int) -> None:
    ordered = sorted(weights, reverse=True)
    held, rest = corruptible(np.array(weights), f)
    assert held == pytest.approx(sum(ordered[:f]))
    assert rest == pytest.approx(sum(ordered[f:]))


def test_when_liars_may_hold_all_the_weight_nothing_is_promised() -> None:
    geometry, _ = measure(as_rows(gaussian(5, 4)))
    one = np.eye(5)[2]
    assert randeigen.certify(geometry, one, 1) == math.inf
    assert randeigen.certify(geometry, one, 0) == 0


def test_rules_can_be_compared_by_it_on_live_data() -> None:
    rows = with_liars(gaussian(40, 300), 8, "far")
    plain = randeigen.aggregate(rows, rule=rules.Mean(f=8)).bias_bound
    assert randeigen.aggregate(rows, f=8).bias_bound < plain / 10
