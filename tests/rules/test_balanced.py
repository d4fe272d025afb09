"""Balanced against the bound that no rule can be below, and the search that shows how near it comes."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import randeigen
from randeigen import attacks
from randeigen.errors import BadParameter
from randeigen.lab.study_grid import GRID_ATTACKS
from randeigen.rules import Balanced, RandEigen
from randeigen.rules.balanced import least_share, nearest_to_all, off_by, without
from randeigen.types import Stop
from studies.documents import redrawn

ROOT = Path(__file__).resolve().parents[2]
N = 40
FRACTIONS = (0.1, 0.2, 0.3)


def lower_bound(eps: float) -> float:
    return math.sqrt((1 - eps) / (1 - 2 * eps))


def relative(answer: np.ndarray, honest: np.ndarray, f: int) -> float:
    """The bias in units of sqrt(eps/(1-eps)) honest standard deviations along the top direction."""
    centred = honest - honest.mean(axis=0)
    sigma = np.linalg.norm(centred, 2) / math.sqrt(len(honest))
    return float(np.linalg.norm(answer - honest.mean(axis=0)) / sigma / math.sqrt(f / len(honest)))


def three_clusters(f: int) -> Any:
    """Sizes and positions of three groups on a line, and every way that f of their rows may be corrupt."""
    for low, high in itertools.product({1, f // 2, f, 2 * f - 1, 2 * f}, repeat=2):
        for far in (0.2, 1.0, 3.0):
            sizes = (low, N - low - high, high)
            corrupt = {
                (a, f - a - b, b)
                for a, b in itertools.product({0, f // 2, f}, repeat=2)
                if a <= low and b <= high and 0 <= f - a - b <= sizes[1]
            }
            yield sizes, (-1.0, 0.0, far), corrupt


@pytest.mark.parametrize("eps", FRACTIONS)
@pytest.mark.parametrize("tolerance", [0.0, 0.9, 1.0])
def test_on_a_line_no_three_clusters_are_worse_than_the_bound(eps: float, tolerance: float) -> None:
    f, worst = round(eps * N), 0.0
    for sizes, positions, corrupt in three_clusters(f):
        if min(sizes) < 0:
            continue
        rows = np.repeat(positions, sizes)[:, None]
        answer = Balanced(f=f, tolerance=tolerance)(rows)
        for gone in corrupt:
            honest = np.repeat(positions, np.subtract(sizes, gone))[:, None]
            if np.ptp(honest) > 0:
                worst = max(worst, relative(answer, honest, f))
            else:
                np.testing.assert_allclose(answer, honest[0], atol=1e-6)
    assert worst <= lower_bound(eps) * (1 + 1e-6)


@pytest.mark.parametrize("eps", FRACTIONS)
def test_the_bound_is_reached_where_two_worlds_have_the_same_rows(eps: float) -> None:
    f = round(eps * N)
    rows = np.repeat((-1.0, 0.0, 1.0), (f, N - 2 * f, f))[:, None]
    answer = Balanced(f=f, tolerance=0.0)(rows)
    assert max(relative(answer, half, f) for half in (rows[f:], rows[:-f])) == pytest.approx(lower_bound(eps))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 9])
@pytest.mark.parametrize("seed", range(8))
def test_on_a_line_the_answer_is_within_the_bound_of_every_set_that_may_be_honest(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = np.outer(rng.standard_t(2, n), rng.standard_normal(3)) + 5.0  # rank one, in three columns
    f = (n - 1) // 2
    answer = Balanced(f=f)(rows)
    for kept in itertools.combinations(range(n), n - f):
        honest = rows[list(kept)]
        spread = np.linalg.norm(honest - honest.mean(axis=0), 2) / math.sqrt(n - f)
        off = np.linalg.norm(answer - honest.mean(axis=0))
        assert off <= math.sqrt(f / (n - 2 * f)) * spread * (1 + 1e-6) + 1e-9


def minority(f: int, d: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Honest rows, 1.5f of them on one side, and corrupt ones slightly on the other."""
    rng = np.random.default_rng(0)
    honest = 0.3 * rng.standard_normal((N - f, d))
    honest[: 3 * f // 2, 0] += 4.0
    corrupt = 0.3 * rng.standard_normal((f, d))
    corrupt[:, 0] -= 1.0
    return honest, np.vstack([honest, corrupt])


@pytest.mark.parametrize("eps", FRACTIONS)
def test_an_honest_minority_has_its_part_where_the_filter_takes_it(eps: float) -> None:
    f = round(eps * N)
    honest, rows = minority(f)
    balanced, filtered = (relative(rule(rows), honest, f) for rule in (Balanced(f=f), RandEigen(f=f)))
    assert balanced <= lower_bound(eps)
    assert filtered > 1.25 * lower_bound(eps)


def test_a_search_among_clusters_reaches_at_most_a_tenth_more_than_the_bound() -> None:
    script = load("what_a_search_reaches")
    clusters = script.CLOUDS["three clusters"]
    assert script.reached("balanced", clusters, 0.2, 0, 30) <= 1.1 * lower_bound(0.2)
    assert script.reached("randeigen", clusters, 0.2, 0, 30) > 1.3 * lower_bound(0.2)


def test_where_nothing_is_to_be_balanced_the_answer_is_the_filters() -> None:
    rows = np.random.default_rng(0).standard_normal((50, 5000))
    ours, filtered = (
        randeigen.aggregate(rows, rule=rule, seed=1) for rule in (Balanced(f=5), RandEigen(f=5))
    )
    np.testing.assert_array_equal(ours.weights, filtered.weights)
    assert ours.verdict.stop is not Stop.BALANCED
    assert not ours.verdict.notes


def test_where_it_moves_the_verdict_says_so_and_the_certificate_is_its_own() -> None:
    _, rows = minority(8)
    result = randeigen.aggregate(rows, rule=Balanced(f=8))
    assert result.verdict.stop is Stop.BALANCED
    assert "between all hypotheses" in result.verdict.notes[-1]
    w, centred = result.weights, rows - result.weights @ rows
    top_deviation = np.linalg.norm(np.sqrt(w)[:, None] * centred, 2)
    heaviest = np.sort(w)[-8:].sum()
    assert result.verdict.spreads[result.verdict.answer_round] == pytest.approx(top_deviation)
    assert result.bias_bound == pytest.approx(math.sqrt(heaviest / (1 - heaviest)) * top_deviation, rel=1e-6)


@pytest.mark.parametrize("form", ["equal", "two places", "one far", "a line", "square", "f far apart"])
@pytest.mark.parametrize(("n", "f"), [(1, 0), (2, 0), (3, 1), (4, 1), (7, 3), (30, 9), (41, 20)])
@pytest.mark.parametrize("tolerance", [0.0, 0.9])
def test_degenerate_tables_have_an_answer_among_the_rows(form: str, n: int, f: int, tolerance: float) -> None:
    rows = np.zeros((n, 4))
    i = np.arange(n)
    if form == "two places":
        rows[i % 2 == 0, 1] = 1.0
    elif form == "one far":
        rows[0] = 1e7
    elif form == "a line":
        rows[:, 2] = i
    elif form == "square":
        rows[i, i % 4] = 1.0
    elif form == "f far apart":
        rows[i[:f], i[:f] % 4] = 10.0 ** (i[:f] % 5)
    result = randeigen.aggregate(rows + 3.0, rule=Balanced(f=f, tolerance=tolerance), seed=1)
    assert np.isfinite(result.mean).all()
    assert result.weights.sum() == pytest.approx(1)
    assert (result.weights >= 0).all()
    assert result.bias_bound >= 0
    if form in ("equal", "one far", "f far apart") and f:
        np.testing.assert_allclose(result.mean, 3.0, atol=1e-6)


def test_equal_rows_have_equal_weight_wherever_they_stand() -> None:
    positions = np.repeat((0.0, 1.0, 5.0), (12, 20, 8))
    for columns in (positions[:, None], np.eye(3)[np.repeat((0, 1, 2), (12, 20, 8))]):
        order = np.random.default_rng(0).permutation(40)
        weights = randeigen.aggregate(columns[order], rule=Balanced(f=8), seed=0).weights
        for position in (0.0, 1.0, 5.0):
            np.testing.assert_allclose(np.ptp(weights[positions[order] == position]), 0, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("d", [1, 12])
def test_the_balance_scales_shifts_and_follows_the_order_of_rows(scale: float, d: int) -> None:
    _, rows = minority(8, d)
    order = np.random.default_rng(3).permutation(N)
    straight = randeigen.aggregate(rows, rule=Balanced(f=8), seed=1)
    other = randeigen.aggregate(scale * (rows[order] + 7.0), rule=Balanced(f=8), seed=2)
    assert straight.verdict.stop is Stop.BALANCED
    np.testing.assert_allclose(other.weights, straight.weights[order], atol=1e-5)


def test_row_weights_count() -> None:
    _, rows = minority(8)
    equal = randeigen.aggregate(rows, rule=Balanced(f=8), seed=1)
    same = randeigen.aggregate(rows, rule=Balanced(f=8), seed=1, row_weights=np.full(N, 3.0))
    np.testing.assert_allclose(same.weights, equal.weights, atol=1e-9)
    for d in (1, 12):
        counts = np.random.default_rng(0).uniform(0, 3, N)
        counts[5] = 0.0
        found = randeigen.aggregate(rows[:, :d], rule=Balanced(f=8), seed=1, row_weights=counts)
        assert found.weights[5] == 0
        assert np.isfinite(found.mean).all()


@pytest.mark.parametrize("given", [{"tolerance": -0.1}, {"tolerance": math.nan}, {"wide_penalty": math.inf}])
def test_parameters_that_make_no_sense_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(BadParameter, match=next(iter(given))):
        Balanced(0.1, **given)


def test_a_wide_penalty_draws_the_answer_to_the_narrow_hypotheses() -> None:
    honest, rows = minority(8)
    off = [relative(Balanced(f=8, tolerance=0, wide_penalty=p)(rows), honest, 8) for p in (0, 1, 2)]
    assert off == sorted(off)
    assert off[0] < off[2]


class TestItsTools:
    def test_the_nearest_mixture_balances_three_points(self) -> None:
        points = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]])
        apart = ((points[:, None] - points) ** 2).sum(axis=2)
        mixture, least = nearest_to_all(apart, np.ones(3))
        assert least == pytest.approx(1 / math.sqrt(3), rel=0.02)
        np.testing.assert_allclose(
            off_by(apart, mixture), np.linalg.norm(points - mixture @ points, axis=1), atol=1e-12
        )
        mixture, least = nearest_to_all(apart[:2, :2], np.array([1.0, 3.0]))
        np.testing.assert_allclose(mixture, (0.75, 0.25))
        assert least == pytest.approx(0.25)

    def test_removal_takes_the_largest_scores_and_shares_ties(self) -> None:
        left = without(np.ones(5), np.array([3.0, 1.0, 2.0, 2.0, 0.0]), 2)
        np.testing.assert_allclose(left, (0, 1, 0.5, 0.5, 1))
        np.testing.assert_allclose(without(np.ones(3), np.zeros(3), 1), 2 / 3)

    def test_the_way_is_no_longer_than_needed(self) -> None:
        assert least_share(lambda share: True) == 0
        assert least_share(lambda share: share >= 0.3) == pytest.approx(0.3)


class TestTheSearch:
    honest = np.random.default_rng(1).standard_normal((32, 10))

    def test_it_repeats_with_its_seed_and_keeps_to_its_budget(self) -> None:
        calls = []

        def rule(rows: np.ndarray) -> np.ndarray:
            calls.append(rows.shape)
            return np.asarray(RandEigen(f=8)(rows))

        one = attacks.search(rule, self.honest, 8, budget=50, seed=4)
        assert len(calls) == one.evaluations == 50
        assert set(calls) == {(40, 10)}
        other = attacks.search(RandEigen(f=8), self.honest, 8, budget=50, seed=4)
        np.testing.assert_array_equal(one.rows, other.rows)
        bias = np.linalg.norm(rule(np.vstack([self.honest, one.rows])) - self.honest.mean(axis=0))
        assert one.bias == pytest.approx(bias)

    def test_a_larger_budget_finds_no_less_and_more_than_fixed_attacks(self) -> None:
        # Both are enough for all first guesses, of which a quarter of the budget is tried.
        found = [attacks.search(RandEigen(f=8), self.honest, 8, budget=b).bias for b in (256, 400)]
        assert found[1] >= found[0]
        mean, rng = self.honest.mean(axis=0), np.random.default_rng(0)
        for name in ("far", "alie", "ipm", "mimic", "sign-flip"):
            rows = np.vstack([self.honest, GRID_ATTACKS[name](self.honest, 8, rng)])
            assert found[1] > np.linalg.norm(RandEigen(f=8)(rows) - mean)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize(("h", "m", "d"), [(3, 0, 2), (2, 1, 1), (5, 2, 1), (6, 2, 2), (4, 1, 3)])
    def test_small_and_equal_rows_can_be_attacked(self, h: int, m: int, d: int, dtype: Any) -> None:
        for honest in (np.ones((h, d), dtype), np.arange(h * d, dtype=dtype).reshape(h, d)):
            found = attacks.search(RandEigen(f=m), honest, m, budget=20)
            assert found.rows.shape == (m, d)
            assert found.rows.dtype == dtype
            assert np.isfinite(found.rows).all()

    def test_an_answer_that_is_no_number_is_the_worst_of_all(self) -> None:
        def fragile(rows: np.ndarray) -> np.ndarray:
            return np.full(10, np.nan if rows[-1, 0] > 1 else 0.0)

        assert attacks.search(fragile, self.honest, 8, budget=100).bias == math.inf


class TestTheDocument:
    """docs/departures.md, results/search.json and results/balanced.json."""

    record = json.loads((ROOT / "results" / "search.json").read_text())

    def test_its_other_tables_are_those_of_their_record(self) -> None:
        pytest.importorskip("torch")
        found = json.loads((ROOT / "results" / "balanced.json").read_text())
        text = (ROOT / "docs" / "departures.md").read_text()
        drawn = load("balanced_rule").tables(found)
        assert redrawn(text, drawn) == text, "run benchmarks/balanced_rule.py --redraw"

    def test_its_table_is_that_of_the_record(self) -> None:
        text = (ROOT / "docs" / "departures.md").read_text()
        drawn = load("what_a_search_reaches").tables(self.record)
        assert redrawn(text, drawn) == text, "run benchmarks/what_a_search_reaches.py --redraw"

    def test_the_record_holds_every_main_rule_beside_the_bound(self) -> None:
        script = load("what_a_search_reaches")
        assert set(self.record["reached"]) == set(script.RULES)
        for eps in FRACTIONS:
            assert self.record["bound"][f"{eps:g}"] == pytest.approx(lower_bound(eps))

    @pytest.mark.parametrize("eps", FRACTIONS)
    def test_balanced_is_within_a_tenth_of_the_bound_in_all_of_it(self, eps: float) -> None:
        for by_eps in self.record["reached"]["balanced"].values():
            assert by_eps[f"{eps:g}"] <= 1.1 * lower_bound(eps)


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
