"""Each attack is what its definition says, and hurts whoever averages plainly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from randeigen import attacks
from randeigen.attacks import AdaptiveAttack, RowsFunction
from randeigen.attacks.updates.distance import krum_picks
from randeigen.lab.study_grid import GRID_ATTACKS
from randeigen.types import Array

H, M, D = 80, 20, 150
EPS = M / (H + M)


def honest_rows(h: int = H, d: int = D, seed: int = 0) -> Array:
    """Off centre: there is a mean to push against. Columns of different width: std is not flat."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.standard_normal((h, d)) * np.linspace(0.5, 2, d) + 0.3 * rng.standard_normal(d))


def made(attack: RowsFunction, honest: Array, m: int = M, seed: int = 1) -> Array:
    return attack(honest, m, np.random.default_rng(seed))


def plain(rows: Array) -> Array:
    return np.full(len(rows), 1 / len(rows))


def lambda1(rows: Array) -> float:
    return float(np.linalg.norm(np.cov(rows.T, bias=True), 2))


def bias(honest: Array, byzantine: Array) -> float:
    """Of the plain mean, in honest standard deviations along their top direction."""
    moved = np.vstack([honest, byzantine]).mean(axis=0) - honest.mean(axis=0)
    return float(np.linalg.norm(moved)) / math.sqrt(lambda1(honest))


EVERY = {**GRID_ATTACKS, "hidden": AdaptiveAttack(plain)}
SUBTLE = {"mimic", "alie"}  # what they do to a plain mean shows over many rounds, not in one


@pytest.fixture
def honest() -> Array:
    return honest_rows()


class TestEveryAttack:
    """What a caller may rely on, whichever attack it is."""

    @pytest.mark.parametrize("name", EVERY)
    def test_it_sends_m_finite_rows_in_the_honest_dtype(self, name: str) -> None:
        for dtype in (np.float32, np.float64):
            byzantine = made(EVERY[name], np.asarray(honest_rows(), dtype=dtype))
            assert byzantine.shape == (M, D)
            assert byzantine.dtype == dtype
            assert np.isfinite(byzantine).all()
            assert name == "zero" or byzantine.any()

    @pytest.mark.parametrize("name", EVERY)
    def test_the_same_coins_give_the_same_rows(self, name: str, honest: Array) -> None:
        np.testing.assert_array_equal(made(EVERY[name], honest), made(EVERY[name], honest))

    @pytest.mark.parametrize("name", EVERY)
    def test_the_honest_rows_stay_as_they_are(self, name: str, honest: Array) -> None:
        before = honest.copy()
        byzantine = made(EVERY[name], honest)
        np.testing.assert_array_equal(honest, before)
        assert not np.shares_memory(byzantine, honest)

    @pytest.mark.parametrize("name", EVERY)
    def test_nobody_lying_sends_nothing(self, name: str, honest: Array) -> None:
        assert made(EVERY[name], honest, 0).shape == (0, D)

    @pytest.mark.parametrize("name", EVERY)
    @pytest.mark.parametrize("row", [np.zeros(7), np.arange(7.0)], ids=["zeros", "equal"])
    def test_honest_rows_without_spread_or_length_are_survived(self, name: str, row: Array) -> None:
        assert np.isfinite(made(EVERY[name], np.tile(row, (9, 1)), 3)).all()

    @pytest.mark.parametrize("name", EVERY)
    def test_one_byzantine_row_and_few_honest_ones_will_do(self, name: str) -> None:
        assert made(EVERY[name], honest_rows(3, 5), 1).shape == (1, 5)

    @pytest.mark.parametrize("name", [name for name in EVERY if name not in SUBTLE])
    def test_it_hurts_the_plain_mean(self, name: str, honest: Array) -> None:
        # As much as Byzantine rows hidden within the honest spread could, at the least.
        assert bias(honest, made(EVERY[name], honest)) > 0.15

    @pytest.mark.parametrize("name", ["far", "orthogonal", "anti-dnc", "noise", "ipm-10", "sign-flip-10"])
    def test_the_gross_ones_ruin_the_plain_mean(self, name: str, honest: Array) -> None:
        assert bias(honest, made(EVERY[name], honest)) > 1


def test_sign_flip_sends_honest_rows_turned_round(honest: Array) -> None:
    for sent in made(attacks.SignFlip(10.0), honest):
        assert np.abs(honest + sent / 10).max(axis=1).min() < 1e-12


def test_far_stands_c_spreads_out_and_orthogonal_each_on_its_own(honest: Array) -> None:
    mean, unit = honest.mean(axis=0), math.sqrt(lambda1(honest))
    far, apart = made(attacks.Far(50.0), honest), made(attacks.Orthogonal(50.0), honest)
    for byzantine in (far, apart):
        np.testing.assert_allclose(np.linalg.norm(byzantine - mean, axis=1), 50 * unit, rtol=1e-9)
    assert np.linalg.matrix_rank(far - mean, tol=1e-6 * unit) == 1
    assert np.linalg.matrix_rank(apart - mean, tol=1e-6 * unit) == M


def test_sqrt_d_is_as_long_as_an_honest_row(honest: Array) -> None:
    lengths = np.linalg.norm(honest - honest.mean(axis=0), axis=1)
    away = np.linalg.norm(made(attacks.SqrtD(), honest) - honest.mean(axis=0), axis=1)
    np.testing.assert_allclose(away, math.sqrt((lengths**2).mean()), rtol=1e-9)


@pytest.mark.parametrize("name", ["ipm", "ipm-10", "hidra", "trimmed-mean", "krum"])
def test_it_points_against_the_mean(name: str, honest: Array) -> None:
    assert (made(GRID_ATTACKS[name], honest) @ honest.mean(axis=0) < 0).all()


@pytest.mark.parametrize(("h", "m", "z"), [(95, 5, 0.040), (90, 10, 0.112), (80, 20, 0.286), (18, 2, 0.0)])
def test_alie_deviates_by_what_a_majority_exceeds(h: int, m: int, z: float) -> None:
    rows = honest_rows(h)
    assert attacks.ALIE.largest(h, m) == pytest.approx(z, abs=1e-3)
    deviation = (rows.mean(axis=0) - made(attacks.ALIE(), rows, m)) / rows.std(axis=0)
    np.testing.assert_allclose(deviation, attacks.ALIE.largest(h, m), atol=1e-12)


def test_trimmed_mean_attack_stands_beyond_the_honest_range_of_models(honest: Array) -> None:
    model = np.random.default_rng(5).standard_normal(D)
    for start, attack in (
        (np.zeros(D), attacks.TrimmedMeanAttack()),
        (model, attacks.TrimmedMeanAttack(model=model)),
    ):
        models, sent = start - honest, start - made(attack, honest)[0]
        low, high = models.min(axis=0), models.max(axis=0)
        assert ((sent <= low) | (sent >= high)).all()
        growing = honest.sum(axis=0) < 0
        assert (sent[growing] <= low[growing]).all()
        assert (sent[~growing] >= high[~growing]).all()


def squares_apart(a: Array, b: Array) -> Array:
    return np.asarray(((a[:, None] - b) ** 2).sum(axis=2))


@pytest.mark.parametrize("along", ["std", "sign", "unit"])
def test_min_max_goes_exactly_as_far_as_two_honest_rows_are_apart(along: str, honest: Array) -> None:
    mean, sent = honest.mean(axis=0), made(attacks.MinMax(along), honest)[0]  # type: ignore[arg-type]
    diameter = squares_apart(honest, honest).max()
    assert ((honest - sent) ** 2).sum(axis=1).max() <= diameter * (1 + 1e-9)
    beyond = mean + 1.001 * (sent - mean)
    assert ((honest - beyond) ** 2).sum(axis=1).max() > diameter


@pytest.mark.parametrize("strict", [False, True])
def test_min_sum_goes_exactly_as_far_as_an_honest_sum_of_distances(strict: bool, honest: Array) -> None:
    mean, sent = honest.mean(axis=0), made(attacks.MinSum(strict=strict), honest)[0]
    sums = squares_apart(honest, honest).sum(axis=1)
    allowed = sums.min() if strict else sums.max()
    assert ((honest - sent) ** 2).sum() <= allowed * (1 + 1e-9)
    assert ((honest - (mean + 1.001 * (sent - mean))) ** 2).sum() > allowed


def test_the_krum_attack_is_krums_choice_and_twice_as_far_would_not_be(honest: Array) -> None:
    sent = made(attacks.KrumAttack(), honest)[0]
    assert krum_picks(honest, sent, M) >= H
    assert krum_picks(honest, 2 * sent, M) < H


@pytest.mark.parametrize("m", [5, 10, 20])
def test_hidra_hides_in_the_variance_the_published_test_allows(m: int, honest: Array) -> None:
    rows = honest[: 100 - m]
    mean, byzantine = rows.mean(axis=0), made(attacks.HIDRA(), rows, m)
    assert (byzantine == byzantine[0]).all()
    assert np.linalg.matrix_rank(np.vstack([byzantine, mean]), tol=1e-6) == 1
    assert lambda1(np.vstack([rows, byzantine])) <= math.sqrt(20) * lambda1(rows)


def test_the_hidra_that_was_shipped_is_weaker_than_the_published_one(honest: Array) -> None:
    mean = honest.mean(axis=0)
    published, shipped = (
        np.linalg.norm(made(GRID_ATTACKS[n], honest)[0] - mean) for n in ("hidra", "hidra-0.5")
    )
    assert published / shipped == pytest.approx(2.635, abs=1e-3)


def test_a_decoy_owns_the_widest_direction_and_the_rest_stand_off_to_its_side(honest: Array) -> None:
    mean, byzantine = honest.mean(axis=0), made(attacks.AntiDnC(), honest)
    typical = np.linalg.norm(honest - mean, axis=1).mean()
    decoy, rest = byzantine[0] - mean, byzantine[1:] - mean
    np.testing.assert_allclose(np.linalg.norm(decoy), 2000 * typical)
    np.testing.assert_allclose(np.linalg.norm(rest, axis=1), 40 * typical)
    assert np.abs(rest @ decoy).max() < 1e-6 * typical**2
    centred = np.vstack([honest, byzantine]) - np.vstack([honest, byzantine]).mean(axis=0)
    along = np.abs(centred @ np.linalg.svd(centred, full_matrices=False)[2][0])
    assert along.argmax() == H
    assert along[H + 1 :].max() < 1.05 * along[:H].max()  # beside it the others look honest


def test_mimics_repeat_one_honest_row(honest: Array) -> None:
    byzantine = made(attacks.Mimic(), honest)
    assert (byzantine == byzantine[0]).all()
    assert (honest == byzantine[0]).all(axis=1).sum() == 1


def test_the_adaptive_attacker_finds_more_than_the_fixed_bodies_it_tries() -> None:
    """Against a rule that drops rows beyond 3 spreads, it must come close to 3 and not beyond."""
    honest, unit = honest_rows(), math.sqrt(lambda1(honest_rows()))

    def cut(rows: Array) -> Array:
        middle = np.median(rows, axis=0)
        away = np.linalg.norm(rows - middle, axis=1)
        keep = away <= np.median(away) + 3 * unit
        return np.asarray(keep / keep.sum())

    byzantine = made(AdaptiveAttack(cut), honest)
    rows = np.vstack([honest, byzantine])
    found = np.linalg.norm(cut(rows) @ rows - honest.mean(axis=0))
    for name in ("far", "near", "ipm", "hidra-0.5"):
        other = np.vstack([honest, made(GRID_ATTACKS[name], honest)])
        assert found > np.linalg.norm(cut(other) @ other - honest.mean(axis=0))
