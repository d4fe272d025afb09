"""The certificate of parts holds at the ends of float64 and float32, in every part and in all together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import randeigen
from clouds import gaussian
from randeigen import rules
from randeigen.parts.judging import Judge

CUTS = ("tensor", "columns:1", "columns:2", "hybrid", "hybrid:columns:2")
SMALLEST = np.longdouble(1e-318)


@pytest.fixture(autouse=True)
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def norm(vector: np.ndarray) -> Any:
    most = np.abs(vector).max()
    return most * np.sqrt(((vector / most) ** 2).sum()) if most > 0 else most


def check_certificate(rows: np.ndarray, result: Any, corrupt: Any) -> None:
    """These rows have moved no part, nor all together, by more than is claimed."""
    exact, parts = rows.astype(np.longdouble), result.parts
    moved = np.zeros(rows.shape[1], dtype=np.longdouble)
    for run in parts.partition.runs:
        for k in range(run.times):
            part, at = run.part + k, slice(run.start + k * run.width, run.start + (k + 1) * run.width)
            weights = parts.weights[part].astype(np.longdouble)
            honest = weights.copy()
            honest[corrupt] = 0
            if not honest.any():
                assert result.bias_bound == math.inf
                continue
            change = weights / weights.sum() - honest / honest.sum()
            moved[at] = parts.scales[part] * (change @ exact[:, at])
            if not math.isnan(parts.bounds[part]):
                assert norm(moved[at]) <= np.longdouble(parts.bounds[part]) * (1 + 1e-9) + SMALLEST
    assert norm(moved) <= np.longdouble(result.bias_bound) * (1 + 1e-9) + SMALLEST
    plain = norm(exact.mean(0) - np.asarray(result.mean).astype(np.longdouble))
    assert plain <= np.longdouble(result.distance_to_mean) * (1 + 1e-6) + SMALLEST


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("far", [1e200, 1.7e305])
@pytest.mark.parametrize("near", [1e-231, 1e-180, 1e-30])
def test_rows_of_two_worlds(cut: str, far: float, near: float) -> None:
    rows = np.where(gaussian(24, 7) > 0, near, -near)
    rows[19:] = far * np.sign(gaussian(5, 1, seed=1))
    result = randeigen.aggregate(rows, f=5, seed=1, partition=cut)
    check_certificate(rows, result, slice(19, None))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    "rule", [rules.RandEigen(f=5), rules.DnC(f=5), rules.Krum(f=5), rules.GeometricMedian(f=5)]
)
def test_rows_that_are_nearly_all_one_point(cut: str, rule: Any) -> None:
    rows = np.zeros((24, 6))
    rows[:, 0] = 6.76e-319 * np.sign(gaussian(24, 1)[:, 0])
    for row, size in zip((5, 7, 9, 10, 11), (-2.8e-236, 1.9e-36, -2.5e-195, 2e-295, 1e200), strict=True):
        rows[row, 1 + row % 5] = size
    for seed in range(3):
        result = randeigen.aggregate(rows, rule=rule, seed=seed, partition=cut)
        check_certificate(rows, result, [5, 7, 9, 10, 11])


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("low", "high"), [(1e-300, 1e300), (1.0, 1e300), (1e-300, 1.0), (1e-150, 1e150)])
def test_parts_of_different_worlds(cut: str, low: float, high: float) -> None:
    rows = gaussian(12, 8)
    rows[:3] += 1
    rows *= np.repeat([low, high], 4)
    check_certificate(rows, randeigen.aggregate(rows, f=3, seed=0, partition=cut), slice(3))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("limit", [1e-300, 1e-200, 1e-100, 1e100])
def test_answers_clipped_to_next_to_nothing(cut: str, limit: float) -> None:
    rows = gaussian(20, 8)
    result = randeigen.aggregate(rows, rule=rules.NormClipping(f=2, limit=limit), seed=0, partition=cut)
    check_certificate(rows, result, slice(2))
    assert result.bias_bound < max(1e3 * limit, 1e-140)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("far", [1e20, 1e100, 1e300])
def test_a_row_that_was_left_out_does_not_widen_the_bound(cut: str, far: float) -> None:
    rows = gaussian(20, 8)
    usual = randeigen.aggregate(rows, f=2, seed=0, partition=cut).bias_bound
    rows[0] = far
    assert randeigen.aggregate(rows, f=2, seed=0, partition=cut).bias_bound < 3 * usual


def test_a_row_that_was_left_out_makes_no_part_of_a_hybrid_stand_out() -> None:
    for dtype, far in (("float32", 3e38), ("float64", 1e300)):
        rows = gaussian(20, 64).astype(dtype)
        rows[0] = far
        result = randeigen.aggregate(rows, f=2, seed=0, partition="hybrid:columns:4")
        assert not result.parts.own.any()


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("size", [2.0**-500, 2.0**-130, 2.0**130, 2.0**500])
@pytest.mark.parametrize("rule", ["centered-clipping", "norm-clipping", "zhu-filtering", "geometric-median"])
def test_lengths_that_a_rule_is_given_are_the_callers(cut: str, size: float, rule: str) -> None:
    def made(unit: float) -> Any:
        lengths = {"centered-clipping": "tau", "norm-clipping": "limit", "geometric-median": "nu"}
        given = {lengths[rule]: unit} if rule in lengths else {"sigma": unit**2}
        return randeigen.aggregate(rows * unit, rule=rules.RULES[rule](f=2, **given), seed=0, partition=cut)

    rows = gaussian(12, 8)
    rows[:2] += 3
    plain, scaled = made(1.0), made(size)
    assert scaled.mean / size == pytest.approx(plain.mean, rel=1e-6)
    assert scaled.bias_bound / size == pytest.approx(plain.bias_bound, rel=1e-3)
    assert [spread / size for spread in scaled.verdict.spreads] == pytest.approx(plain.verdict.spreads)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("dtype", "far"), [("float32", 3e38), ("float64", 1e30), ("float64", 1e100)])
def test_what_the_lightest_row_holds_may_be_less_than_the_rounding_of_1(
    cut: str, dtype: str, far: float
) -> None:
    rows = np.abs(gaussian(5, 8)).astype(dtype)
    rows[3] *= -1  # which is not trusted at all
    rows[4] = far  # the only one left when two are taken for corrupt
    result = randeigen.aggregate(rows, rule=rules.FLTrust(f=2, trusted=0), seed=0, partition=cut)
    check_certificate(rows, result, [1, 2])


@pytest.mark.parametrize("cut", CUTS)
def test_a_row_that_was_hardly_clipped_beside_others_that_were(cut: str) -> None:
    rows = 5e265 * gaussian(8, 5)
    rows[5] *= 1e-160
    result = randeigen.aggregate(rows, rule=rules.NormClipping(f=1, limit=1.0), seed=0, partition=cut)
    check_certificate(rows, result, 5)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("far", [1e100, 1e123, 1e150])
def test_weights_of_any_ratio_are_no_overflow(cut: str, far: float) -> None:
    rows = 1e-127 * gaussian(25, 4)
    rows[:2] = 1e-127 * far  # the trusted row among them: all others are stretched
    result = randeigen.aggregate(rows, rule=rules.FLTrust(f=12, trusted=0), seed=0, partition=cut)
    check_certificate(rows, result, slice(2, 14))


@pytest.mark.parametrize("cut", ["columns:1", "columns:4", "hybrid:columns:4"])
@pytest.mark.parametrize("far", [1e200, 1.7e308])
@pytest.mark.parametrize("near", [1e-250, 1.0, 1e100])
def test_parts_with_rows_too_long_to_be_squared_are_judged_at_once(
    cut: str, far: float, near: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = near * gaussian(20, 32)
    rows[:2] = far * np.sign(gaussian(2, 32))
    monkeypatch.setattr(Judge, "alone", None)  # which takes 30 times as long
    result = randeigen.aggregate(rows, f=2, seed=0, partition=cut)
    check_certificate(rows, result, slice(2))
    assert not result.parts.weights[:, :2].any()
    assert result.bias_bound < 20 * near


@pytest.mark.parametrize("cut", CUTS)
def test_where_more_rows_are_that_long_than_may_be_corrupt_nothing_is_certain(cut: str) -> None:
    for count in (3, 9):
        rows = gaussian(20, 8)
        rows[:count] = 1e300 * np.sign(gaussian(count, 8))
        result = randeigen.aggregate(rows, f=2, seed=0, partition=cut)
        assert np.isfinite(result.mean).all()
        check_certificate(rows, result, slice(2))
