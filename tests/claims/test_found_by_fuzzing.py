"""What the fuzzer found, one claim for each class; `python -m fuzz` looks for more."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import randeigen
from clouds import gaussian
from randeigen import rules
from randeigen.errors import BadFraction, BadParameter
from randeigen.geometry import measure
from randeigen.geometry.lanczos import top_of_operator
from randeigen.rows import as_rows
from randeigen.rules.base import scores_in_variances
from randeigen.types import TopDirection


@pytest.fixture(autouse=True)
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def moved(rows: np.ndarray, result: Any, corrupt: Any) -> float:
    """How far these rows have moved the mean at its weights; in units of the largest number, times it."""
    most = np.abs(rows).max()
    exact = (rows / most).astype(np.longdouble)
    share = result.weights.copy()
    share[corrupt] = 0.0
    return float(most * np.linalg.norm(((result.weights - share / share.sum()) @ exact).astype(float)))


class TestParameters:
    """A parameter of the wrong type, or too large for a float, is an error as the rule is made."""

    WHOLE = ((rules.Krum, "spare"), (rules.MultiKrum, "selected"), (rules.FLTrust, "trusted"))
    REAL = (
        *((rules.DnC, "c"), (rules.NormClipping, "limit"), (rules.CenteredClipping, "tau")),
        *((rules.GeometricMedian, "nu"), (rules.Filtering, "gamma"), (rules.ZhuFiltering, "sigma")),
        *((rules.MDA, "patience"), (rules.Balanced, "tolerance")),
        *((rules.ChunkedFiltering, "sigma"), (rules.ChunkedNoRegret, "sigma")),
    )

    @pytest.mark.parametrize("wrong", [True, "3", [1], 1j, {}, 10**400, pytest.param(10**5000, id="huge")])
    @pytest.mark.parametrize(("rule", "name"), [*WHOLE, *REAL])
    def test_of_rules(self, rule: Any, name: str, wrong: Any) -> None:
        if name == "sigma" and wrong == [1]:
            wrong = [10**400]  # several are one for each chunk
        with pytest.raises(BadParameter, match=name):
            rule(f=1, **{name: wrong})

    @pytest.mark.parametrize("wrong", [1e-320, np.nan, 1.5, np.float64(2)])
    @pytest.mark.parametrize(("rule", "name"), WHOLE)
    def test_whole_numbers(self, rule: Any, name: str, wrong: Any) -> None:
        with pytest.raises(BadParameter, match=f"{name}=.*whole number"):
            rule(f=1, **{name: wrong})

    @pytest.mark.parametrize("wrong", [True, "3", None, [1], 1j, 10**400])
    @pytest.mark.parametrize("stage", [rules.Bucketing, rules.Clipping])
    def test_of_pre_aggregators(self, stage: Any, wrong: Any) -> None:
        with pytest.raises(BadParameter):
            stage(wrong)

    def test_numbers_of_numpy_will_do(self) -> None:
        rows = gaussian(12, 4)
        for rule in (rules.Krum(f=2, spare=np.int64(2)), rules.DnC(f=2, c=np.float32(1))):
            assert np.isfinite(randeigen.aggregate(rows, rule=rule).mean).all()

    @pytest.mark.parametrize("penalty", [1e3, 3e9, 1e300])
    def test_a_penalty_of_any_size_is_no_overflow(self, penalty: float) -> None:
        rows = np.random.default_rng(0).standard_t(2, (8, 11))
        assert np.isfinite(
            randeigen.aggregate(rows, rule=rules.Balanced(f=2, wide_penalty=penalty)).mean
        ).all()


class TestChains:
    """Every stage is given the greatest f of any, so a chain that cannot bear it is refused unread."""

    @pytest.mark.parametrize(
        ("rule", "n"),
        [
            (rules.NNM(f=2) | rules.Bucketing() | rules.Mean(f=0), 7),
            (rules.NNM(eps=0.499) | rules.MultiKrum(f=10), 37),
            (rules.Bucketing() | rules.ARC(f=2) | rules.MultiKrum(eps=0.187), 14),
            (rules.ARC(f=3) | rules.NNM() | rules.Bulyan(f=1), 14),
        ],
    )
    def test_before_any_row_is_read(self, rule: Any, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
        source = as_rows(gaussian(n, 5))
        monkeypatch.setattr(source, "blocks", lambda: pytest.fail("a row was read"))
        with pytest.raises(BadFraction):
            randeigen.aggregate(source, rule=rule)

    def test_fifty_stages_are_asked_at_once(self) -> None:
        rule: Any = rules.Mean(f=0)
        for _ in range(50):
            rule = rules.NNM(f=2) | rule
        assert rule.assumed_corrupt(7) == 2


class TestSizes:
    """Numbers near either end of the floats."""

    @pytest.mark.parametrize("tiny", [5e-324, 1e-300])
    def test_a_faint_minority_among_equal_rows_does_not_make_others_too_large(self, tiny: float) -> None:
        rows = np.zeros((10, 50))
        rows[:3] = tiny
        rows[8:] = gaussian(2, 50)
        result = randeigen.aggregate(rows, rule=rules.ZhuFiltering(eps=0.3, sigma=50.0))
        assert not result.unusable
        assert np.isfinite(result.bias_bound)

    @pytest.mark.parametrize("block_columns", [1, 2, 50])
    @pytest.mark.parametrize("shape", [(32, 166), (9, 1)])
    def test_rows_whose_squares_vanish_are_certified_however_they_are_read(
        self, shape: tuple[int, int], block_columns: int
    ) -> None:
        rows = 1.3e-247 * np.sign(gaussian(*shape))
        source = as_rows(rows, block_bytes=block_columns * 8 * len(rows))
        result = randeigen.aggregate(source, rule=rules.Mean(f=3), seed=0)
        worst = max(moved(rows, result, np.arange(i, i + 3)) for i in range(len(rows) - 3))
        assert 0 < worst <= result.bias_bound < 1e-240

    def test_a_row_that_vanishes_beside_the_others_is_in_the_bound(self) -> None:
        rows = np.zeros((6, 6), np.float32)
        rows[0, 0], rows[1], rows[4:] = 5e5, np.float32(1e-45), np.sign(gaussian(2, 6))
        for seed in range(20):
            result = randeigen.aggregate(rows, f=2, seed=seed)
            assert 0 < moved(rows.astype(float), result, [0, 1]) <= result.bias_bound < 1e-2

    @pytest.mark.parametrize("size", [1e100, 1e160, 1e250, 1e300])
    def test_the_papers_power_iteration_squares_no_size_twice(self, size: float) -> None:
        for rule in (rules.RandEigen.as_published(0.3), rules.Filtering(f=2, gamma=0.0)):
            result = randeigen.aggregate(size * gaussian(8, 1), rule=rule, seed=0)
            assert np.isfinite(result.mean).all()

    def test_rounding_of_mixed_rows_may_be_negative(self) -> None:
        rng = np.random.default_rng(0)
        for _ in range(20):
            rows = (rng.standard_normal((15, 23)) * (rng.random((15, 23)) < 0.1)).astype(np.float32)
            rows[:7] = rng.standard_normal(23)
            assert randeigen.aggregate(rows, rule=rules.ARC() | rules.RandEigen(f=7)).bias_bound >= 0

    @pytest.mark.parametrize("dtype", ["float16", "float32"])
    def test_rows_stretched_past_the_largest_number_end_there_and_say_so(self, dtype: str) -> None:
        most = float(np.finfo(dtype).max)
        rows = np.full((5, 20), 0.9 * most).astype(dtype)
        rows[1:] = 0.0
        rows[1:, 0] = 1.0  # they point the trusted row's way, and are made as long as it
        result = randeigen.aggregate(rows, rule=rules.FLTrust(f=1))
        exact = np.zeros(20)
        exact[0] = result.verdict.scale
        assert exact[0] == pytest.approx(np.linalg.norm(rows[0].astype(float)), rel=1e-5)
        assert result.mean.tolist()[0] == most
        assert np.linalg.norm(result.mean.astype(float) - exact) <= result.bias_bound


def test_the_answers_rounding_is_in_the_bound_where_eps_is_half_of_few_rows() -> None:
    """Of 8 rows eps = 0.4 fears 4, the rule assumes 3: with 3 unusable one is left to the certificate."""
    rows = (1e4 * gaussian(1, 200) + 10 * gaussian(8, 200)).astype(np.float16)
    rows[5:] = np.nan
    result = randeigen.aggregate(rows, rule=rules.Mean(eps=0.4))
    exact = rows[:5].astype(float).mean(axis=0)
    assert np.linalg.norm(result.mean.astype(float) - exact) <= result.bias_bound


def test_narrow_blocks_draw_no_tile_of_the_papers_projection_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    from randeigen.geometry import projection

    drawn: list[int] = []
    stream = projection.tile_generator
    monkeypatch.setattr(
        projection, "tile_generator", lambda key, tile: drawn.append(tile) or stream(key, tile)
    )
    source = as_rows(gaussian(6, 600), block_bytes=6 * 8)
    randeigen.aggregate(source, eps=0.2, geometry="gaussian", seed=0)
    assert drawn == [0, 1, 2]


def test_two_faint_corrupt_rows_do_not_make_the_one_wide_honest_row_too_large() -> None:
    rows = np.zeros((5, 78))
    rows[:2], rows[4] = 5e-324, gaussian(1, 78)[0]
    result = randeigen.aggregate(rows, rule=rules.Mean(f=2), seed=0)
    assert not result.unusable


@pytest.mark.parametrize("variance", [5e-324, 1e-310])
def test_scores_in_units_of_next_to_no_variance_are_numbers(variance: float) -> None:
    top = TopDirection(variance, np.array([1e-150, 0.0, 3.0]))
    assert np.isfinite(scores_in_variances(top)).all()


def test_lanczos_starts_again_where_the_first_image_was_rounding() -> None:
    """Rows alike but for 1e-117, about 1 from the origin: of the first image next to nothing may be left."""
    calls = iter([np.array([1e-234, 2e-234, -1e-234])])

    def operator(vector: np.ndarray) -> np.ndarray:
        return next(calls, np.diag([1e-32, 0.0, 0.0]) @ vector)

    assert top_of_operator(operator, np.ones((3, 1))).value == pytest.approx(1e-32)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_balance_among_rows_that_are_one_point(dtype: str) -> None:
    rows = np.full((9, 104), 0.1, dtype)
    result = randeigen.aggregate(rows, rule=rules.ARC() | rules.Balanced(f=3), seed=0)
    assert np.allclose(result.mean, rows[0])


@pytest.mark.parametrize("tolerance", [0.0, 1.0, 1e308])
def test_balance_with_any_tolerance(tolerance: float) -> None:
    result = randeigen.aggregate(gaussian(11, 22), rule=rules.Balanced(f=4, tolerance=tolerance), seed=0)
    assert np.isfinite(result.mean).all()


@pytest.mark.parametrize(
    "kind", [None, 3, [], ["gram"], "gaussian:eps_jl=", "gram:eps_jl=0.1", "gaussian:eps_jl=nan"]
)
def test_a_geometry_that_is_none_is_told(kind: Any) -> None:
    with pytest.raises(BadParameter):
        randeigen.aggregate(gaussian(5, 3), f=1, geometry=kind)


@pytest.mark.parametrize("eps_p", [0.0, 1e-320, 1e-9, 1.0, float("nan")])
def test_power_iteration_is_not_asked_for_more_steps_than_can_be_made(eps_p: float) -> None:
    with pytest.raises(BadParameter):
        rules.RandEigen.as_published(0.1, eps_p=eps_p)


@pytest.mark.parametrize("tiny", [5e-324, 1e-300, 1e-200])
@pytest.mark.parametrize("wide", [2, 3])
def test_finite_rows_are_never_unusable_whatever_a_majority_agrees_on(tiny: float, wide: int) -> None:
    """Two honest rows of zeros and two faint corrupt ones agree; the other honest ones must not be lost."""
    rows = np.zeros((4 + wide, 141))
    rows[:2], rows[4:] = tiny, gaussian(wide, 141)
    for seed in range(10):
        assert not randeigen.aggregate(rows, f=2, seed=seed).unusable


def test_subnormal_rows_beside_the_largest_float32_are_measured_exactly() -> None:
    rows = np.full((3, 10), -np.finfo(np.float32).max)
    rows[1:] = 1e-41 * gaussian(1, 10)
    rows = rows.astype(np.float32)
    rows[2] *= np.float32(1.09)
    for seed in range(10):
        result = randeigen.aggregate(rows, rule=rules.ARC() | rules.RandEigen(f=1), seed=seed)
        exact = rows.astype(np.longdouble)
        apart = np.sqrt(((exact[1] - exact[2]) ** 2).sum()) / 2
        assert result.weights[0] > 0 or apart <= result.bias_bound < 1.001 * apart


def test_faint_rows_beside_a_majority_of_the_largest_ones_have_a_bound() -> None:
    rows = np.full((60, 18), 1.8e305)
    rows[:21] = 1e-292 * gaussian(21, 18)
    geometry, _ = measure(as_rows(rows))
    assert randeigen.certify(geometry, np.arange(60) < 21, 20) > 1e-292


def test_a_rule_that_stretches_by_any_factor_has_a_distance_to_the_mean() -> None:
    rows = 1e6 * gaussian(35, 6)
    rows[21] = 1.8e305
    result = randeigen.aggregate(rows, rule=rules.FLTrust(f=16, trusted=21), seed=0)
    assert result.distance_to_mean > 0


def test_what_is_clipped_at_the_largest_number_is_told_without_corrupt_rows_too() -> None:
    rows = np.full((4, 21), 5e4, np.float16)
    rows[1:] = 1.0
    rows[1:, 0] = 6e4
    rows[3] = np.inf
    result = randeigen.aggregate(rows, rule=rules.FLTrust(f=1), seed=0)
    exact = (result.weights[:3] @ rows[:3].astype(float)) * result.verdict.scale
    assert np.linalg.norm(result.mean.astype(float) - exact) <= result.bias_bound


def test_a_pivot_near_overflow_does_not_make_smaller_rows_overflow() -> None:
    rows = np.full((4, 7), np.finfo(np.float32).max, np.float32)
    rows[0] = -3.4e35
    for seed in range(10):
        result = randeigen.aggregate(rows, f=1, seed=seed)
        assert np.isfinite(result.mean).all()
        assert not result.unusable


@pytest.mark.parametrize("nu", [1e-300, 1.0, 7e298])
@pytest.mark.parametrize("size", [1e-300, 1.0, 1e300])
def test_a_smoothing_of_any_size_beside_rows_of_any_size(nu: float, size: float) -> None:
    rows = size * gaussian(9, 3)
    assert np.isfinite(randeigen.aggregate(rows, rule=rules.GeometricMedian(f=2, nu=nu)).mean).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e8, 1e17])
def test_the_distance_to_the_mean_is_not_hidden_by_huge_rows_that_cancel(dtype: Any, size: float) -> None:
    rows = gaussian(20, 30, seed=1).astype(dtype)
    rows[0] *= size
    rows[1] = -rows[0] * (1 + np.finfo(dtype).eps)
    result = randeigen.aggregate(rows, eps=0.1, seed=0)
    exact = np.linalg.norm((result.mean - rows.astype(np.longdouble).mean(axis=0)).astype(float))
    assert result.distance_to_mean >= exact * (1 - 1e-6)


def test_power_iteration_starts_from_a_vector_of_plain_size_beside_removed_rows_far_out() -> None:
    rows = np.concatenate([-np.logspace(60, 139, 6)[:, None], 1e-47 * gaussian(37, 1, seed=0)])
    result = randeigen.aggregate(rows, rule=rules.PublishedRandEigen(f=21), seed=2)
    assert np.isfinite(result.mean).all()


@pytest.mark.parametrize("largest", [3e38, 9e307])
@pytest.mark.parametrize(
    "name", ["median", "meamed", "phocas", "trimmed-mean", "bulyan", "chunked-filtering:sigma=2"]
)
def test_rules_by_column_know_the_distance_to_the_mean_beside_the_largest_numbers(
    name: str, largest: float
) -> None:
    rows = gaussian(21, 7, seed=2).astype(np.float32 if largest < 1e39 else np.float64)
    rows[:3], rows[3] = largest, -largest
    result = randeigen.aggregate(rows, rule=name, f=4, seed=0)
    exact = result.mean.astype(np.longdouble) - rows.astype(np.longdouble).mean(axis=0)
    norm = float(largest * np.linalg.norm((exact / largest).astype(float)))
    assert result.distance_to_mean == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("n", [11, 17, 49])
@pytest.mark.parametrize("name", ["median", "meamed", "phocas", "trimmed-mean", "bulyan"])
def test_rules_by_column_know_the_distance_to_the_mean_of_rows_that_are_all_the_largest(
    name: str, n: int
) -> None:
    rows = np.full((n, 3), -np.finfo(np.float64).max)
    assert randeigen.aggregate(rows, rule=name, f=2, seed=0).distance_to_mean <= 1e-13 * -rows[0, 0]


@pytest.mark.parametrize("size", [2.0**-86, 1.0, 2.0**86])
def test_where_the_filter_meets_the_balanced_answer_its_weights_stay(size: float) -> None:
    ends = gaussian(2, 61, seed=3).astype(np.float32)
    rows = np.vstack([ends, ends.mean(axis=0)]) * np.float32(size)
    result = randeigen.aggregate(rows, rule=rules.Balanced(f=1), seed=0)
    assert result.weights == pytest.approx(np.full(3, 1 / 3), abs=1e-3)


@pytest.mark.parametrize("geometry", ["gram", "gaussian"])
@pytest.mark.parametrize("size", [2.0**-79, 1.0, 2.0**79])
def test_rows_of_zeros_have_no_direction_that_a_trusted_row_could_agree_with(
    geometry: str, size: float
) -> None:
    rows = gaussian(40, 147, seed=4).astype(np.float32) * np.float32(size)
    rows[5:15] = 0
    result = randeigen.aggregate(rows, rule=rules.FLTrust(f=10), seed=0, geometry=geometry)
    assert not result.weights[5:15].any()
    assert result.bias_bound <= 20 * size


@pytest.mark.parametrize(("n", "d"), [(26, 25), (92, 39), (300, 39), (65, 30), (1000, 64)])
@pytest.mark.parametrize("size", [1e83, 1e89, 3e89])
@pytest.mark.parametrize("geometry", ["auto", "gaussian"])
def test_eigenvalues_that_cannot_be_squared_are_those_of_other_sizes(
    n: int, d: int, size: float, geometry: str
) -> None:
    rows = gaussian(n, d, seed=5)
    rows[: n // 20] += 5
    usual, large = (
        randeigen.aggregate(scale * rows, f=n // 20, seed=0, geometry=geometry) for scale in (1.0, size)
    )
    assert large.bias_bound == pytest.approx(size * usual.bias_bound, rel=1e-6)
    assert large.weights == pytest.approx(usual.weights, abs=1e-9)
