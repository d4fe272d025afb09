"""The paper's claims and ours, as test names."""

from __future__ import annotations

import math

import numpy as np
import pytest

import randeigen
from clouds import ATTACKS, HONEST, gaussian, with_byzantine
from randeigen import RandEigen, rules

N, D = 60, 500


def bias(rows: np.ndarray, weights: np.ndarray, honest: np.ndarray) -> float:
    """Distance of the weighted mean from the honest mean, in standard deviations of the honest rows."""
    spread = math.sqrt(np.linalg.norm(np.cov(honest.T, bias=True), 2))
    return float(np.linalg.norm(weights @ rows - honest.mean(0))) / spread


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("cloud", HONEST)
@pytest.mark.parametrize("eps", [0.05, 0.2])
def test_bias_stays_within_the_bound_when_some_rows_lie(cloud: str, attack: str, eps: float) -> None:
    f = math.ceil(eps * N)
    rows = with_byzantine(HONEST[cloud](N, D), f, attack)
    found = bias(rows, randeigen.aggregate(rows, eps=eps).weights, rows[f:])
    assert found <= 1.2 * math.sqrt(eps / (1 - eps))


def test_the_bias_does_not_grow_with_the_dimension() -> None:
    found = []
    for d in (100, 1_000, 10_000):
        rows = with_byzantine(gaussian(N, d), 12, "sqrt_d")
        found.append(np.linalg.norm(randeigen.aggregate(rows, eps=0.2).mean - rows[12:].mean(0)))
    plain = [np.linalg.norm(with_byzantine(gaussian(N, d), 12, "sqrt_d").mean(0)) for d in (100, 10_000)]
    assert max(found) < 1
    assert plain[1] > 8 * max(found)


@pytest.mark.parametrize("cloud", HONEST)
@pytest.mark.parametrize("eps", [0.05, 0.1, 0.2])
def test_without_byzantine_rows_the_answer_is_close_to_the_mean(cloud: str, eps: float) -> None:
    rows = HONEST[cloud](100, D)
    assert bias(rows, randeigen.aggregate(rows, eps=eps).weights, rows) < 0.25


def test_byzantine_rows_far_out_have_no_part_in_the_answer() -> None:
    rows = with_byzantine(gaussian(N, D), 12, "far")
    result = randeigen.aggregate(rows, eps=0.2)
    assert not result.kept[:12].any()
    assert result.weights[12:].sum() == pytest.approx(1)


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e-6, 1.0, 1e6, 1e30, 1e200])
def test_scaling_every_row_scales_the_answer(scale: float) -> None:
    rows = with_byzantine(gaussian(30, 200), 3, "sqrt_d")
    one, other = (randeigen.aggregate(r, eps=0.1, seed=1) for r in (rows, rows * scale))
    np.testing.assert_allclose(other.weights, one.weights, atol=1e-9)
    np.testing.assert_allclose(other.mean / scale, one.mean, atol=1e-9)
    assert other.bias_bound / scale == pytest.approx(one.bias_bound, rel=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_common_offset_of_ten_thousand_spreads_changes_no_verdict(dtype: type) -> None:
    rows = with_byzantine(gaussian(40, 3000), 4, "sqrt_d")
    near = randeigen.aggregate(rows.astype(dtype), eps=0.1, seed=1)
    far = randeigen.aggregate((rows + 1e4).astype(dtype), eps=0.1, seed=1)
    np.testing.assert_allclose(far.weights, near.weights, atol=1e-4 if dtype == np.float32 else 1e-8)
    assert far.bias_bound == pytest.approx(near.bias_bound, rel=1e-3)


def test_permuting_the_rows_permutes_the_weights() -> None:
    rows = with_byzantine(gaussian(50, 300), 5, "inside")
    order = np.random.default_rng(3).permutation(50)
    one, other = randeigen.aggregate(rows, eps=0.1), randeigen.aggregate(rows[order], eps=0.1)
    np.testing.assert_allclose(other.weights, one.weights[order], atol=1e-7)
    np.testing.assert_allclose(other.mean, one.mean, atol=1e-6)


def test_the_default_does_not_depend_on_the_seed() -> None:
    rows = with_byzantine(gaussian(80, 300), 8, "scattered")
    answers = [randeigen.aggregate(rows, eps=0.1, seed=seed).weights for seed in (0, 1, 2**70)]
    np.testing.assert_allclose(answers[1], answers[0], atol=1e-7)
    np.testing.assert_allclose(answers[2], answers[0], atol=1e-7)


def test_a_seed_replays_the_coins_and_no_seed_draws_new_ones() -> None:
    rows, rule = gaussian(50, 100), RandEigen(eps=0.2, removal="random")
    first = randeigen.aggregate(rows, rule=rule)
    again = randeigen.aggregate(rows, rule=rule, seed=first.seed)
    np.testing.assert_array_equal(again.weights, first.weights)
    assert len({randeigen.aggregate(rows, rule=rule).seed for _ in range(5)}) == 5


def test_no_global_random_state_is_read_or_set() -> None:
    torch = pytest.importorskip("torch")
    np.random.seed(0)
    torch.manual_seed(0)
    before = np.random.get_state()[1].copy(), torch.get_rng_state().clone()  # type: ignore[index, union-attr]
    randeigen.aggregate(gaussian(20, 50), rule=RandEigen(eps=0.2, removal="random"))
    assert (np.random.get_state()[1] == before[0]).all()  # type: ignore[index]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_random_removal_is_robust_too_and_certified() -> None:
    rows = with_byzantine(gaussian(N, D), 12, "sqrt_d")
    result = randeigen.aggregate(rows, rule=RandEigen(0.2, removal="random"), seed=5)
    assert bias(rows, result.weights, rows[12:]) <= 1.2 * math.sqrt(0.2 / 0.8)
    assert np.isfinite(result.bias_bound)


def test_a_rule_is_a_plain_callable_on_vectors() -> None:
    vectors = list(gaussian(11, 7))
    np.testing.assert_allclose(RandEigen(f=2)(vectors), randeigen.aggregate(vectors, f=2).mean)


def test_eps_and_f_mean_the_same_number_of_rows() -> None:
    assert RandEigen(0.1).assumed_corrupt(30) == 3  # 0.1 · 30 is 3.0000000000000004 in floats
    assert RandEigen(0.1).assumed_corrupt(31) == 4
    assert RandEigen(0.49).assumed_corrupt(10) == 4  # never half
    assert RandEigen(0.1).assumed_corrupt(1) == 0


def test_eps_zero_is_the_plain_mean() -> None:
    rows = gaussian(20, 30)
    result = randeigen.aggregate(rows, eps=0)
    np.testing.assert_allclose(result.mean, rows.mean(0), atol=1e-15)
    assert result.bias_bound == 0


class TestAsPublished:
    """Algorithm 3 as printed, whose ends docs/departures.md measures."""

    def test_it_throws_honest_rows_away_when_nobody_attacks(self) -> None:
        rows = gaussian(100, 300)
        kept = [
            randeigen.aggregate(rows, rule=RandEigen.as_published(0.1), seed=s).kept.sum() for s in range(3)
        ]
        assert max(kept) < 60
        assert randeigen.aggregate(rows, eps=0.1).weights.max() < 1.2 / 100

    def test_at_a_fifth_it_removes_every_row_and_says_so(self) -> None:
        stops = set()
        for seed in range(6):
            result = randeigen.aggregate(gaussian(100, 200), rule=RandEigen.as_published(0.2), seed=seed)
            assert result.kept.sum() <= 5
            assert np.isfinite(result.mean).all()
            stops.add(result.verdict.stop.name)
        assert "EMPTY" in stops or "MAX_ROUNDS" in stops

    def test_its_first_round_removes_by_distance_over_the_largest(self) -> None:
        rows = gaussian(200, 20)
        rows[0] = 100
        gone = 1 - np.mean(
            [randeigen.aggregate(rows, rule=RandEigen.as_published(0.003), seed=s).kept for s in range(40)],
            axis=0,
        )  # 2·n·eps is one round
        assert gone[0] == 1
        assert 0 < gone[1:].mean() < 0.05  # honest rows are at about 1/100 of the Byzantine one's distance

    def test_it_runs_on_the_gaussian_sketch(self) -> None:
        assert RandEigen.as_published(0.1).geometry == "gaussian"


class TestFiltering:
    """The paper's Algorithms 2 and 4."""

    def test_with_the_true_threshold_it_removes_the_byzantine_rows(self) -> None:
        rows = with_byzantine(gaussian(N, D), 6, "far")
        gamma = 1.5 * np.linalg.norm(np.cov(rows[6:].T), 2)
        result = randeigen.aggregate(rows, rule=rules.Filtering(0.1, gamma=gamma), seed=0)
        assert not result.kept[:6].any()
        assert result.verdict.stop.name == "BELOW_THRESHOLD"

    def test_a_threshold_above_the_spread_removes_nobody(self) -> None:
        result = randeigen.aggregate(gaussian(N, D), rule=rules.Filtering(0.1, gamma=1e9))
        assert result.kept.all()

    def test_the_threshold_has_no_default(self) -> None:
        with pytest.raises(randeigen.BadParameter, match="gamma"):
            rules.Filtering(0.1)

    def test_the_converging_one_stops_at_the_published_floor(self) -> None:
        result = randeigen.aggregate(gaussian(100, 50), rule=rules.Filtering.converging(0.1), seed=0)
        assert result.verdict.stop.name in ("FLOOR", "MAX_ROUNDS", "CONVERGED")
        assert result.kept.sum() < 75


def test_a_cloud_in_which_nothing_stands_out_is_left_alone_at_once() -> None:
    rows = gaussian(50, 100_000).astype(np.float32)
    result = randeigen.aggregate(rows, eps=0.2)
    assert result.verdict.stop.name == "ISOTROPIC"
    assert result.verdict.rounds == 1
    np.testing.assert_allclose(result.weights, 1 / 50)


@pytest.mark.parametrize("byzantine", [1, 2, 10])
def test_byzantine_rows_in_such_a_cloud_get_little_weight(byzantine: int) -> None:
    rows = gaussian(50, 100_000).astype(np.float32)
    rows[:byzantine] += 2.0 / np.sqrt(byzantine)
    result = randeigen.aggregate(rows, eps=0.2)
    assert result.weights[:byzantine].sum() < 0.02
