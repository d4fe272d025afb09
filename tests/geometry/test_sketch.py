"""Sketches: offsets, hostile rows, and a certificate that does not hang on luck."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest

import randeigen
from clouds import gaussian
from randeigen import rules
from randeigen.backend.chunking import single_threaded_blas
from randeigen.backend.openblas import thread_switches
from randeigen.geometry import measure, point_sums, projection, sketch
from randeigen.geometry.eigen import Operator, Top
from randeigen.geometry.folded import ManyRowsGeometry
from randeigen.geometry.gram import GramGeometry
from randeigen.geometry.lanczos import top_of_operator
from randeigen.geometry.sketch import SketchGeometry
from randeigen.geometry.wide_gram import WideGramGeometry
from randeigen.rows import as_rows
from randeigen.rows.convert import ArrayRows
from randeigen.types import Array, Statistic
from shapes import Shape

KINDS = ["sketch", "gaussian"]


def attacked(n: int, d: int, f: int, dtype: type = np.float32) -> np.ndarray:
    """A round cloud with f rows shifted along one direction, by as much as rows are long."""
    rows = gaussian(n, d)
    direction = np.random.default_rng(1).standard_normal(d)
    direction[:8] = 0
    rows[:f] += np.sqrt(d) * direction / np.linalg.norm(direction)
    return rows.astype(dtype)


def off(result: randeigen.Aggregate, rows: np.ndarray, f: int) -> float:
    return float(np.linalg.norm(result.mean - rows[f:].astype(np.float64).mean(0)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", [0, 17])
def test_a_row_that_is_not_finite_spoils_no_other_row_whatever_the_seed(kind: str, row: int) -> None:
    rows = gaussian(30, 3000).astype(np.float32) + 100
    rows[row] = np.nan
    rows[row + 1, 5] = -np.inf
    for seed in range(20 if kind == "sketch" else 5):
        assert list(measure(as_rows(rows), kind, seed)[1]) == [row, row + 1]


@pytest.mark.parametrize("kind", ["auto", *KINDS])
@pytest.mark.parametrize("offset", [1e3, 1e5, 1e9, 1e20, 1e30])
@pytest.mark.parametrize("columns", [slice(0, 1), slice(0, 8), slice(None, None, 7)])
def test_offsets_in_some_columns_do_not_turn_the_filter_off(kind: str, offset: float, columns: slice) -> None:
    rows = attacked(60, 4000, 12)
    rows[:, columns] = 0
    plain = randeigen.aggregate(rows, f=12, geometry=kind, seed=3)
    rows[:, columns] = offset  # a counter that all share: its float32 has room for nothing else
    result = randeigen.aggregate(rows, f=12, geometry=kind, seed=3)
    assert plain.weights[:12].sum() < 0.05
    np.testing.assert_allclose(result.weights, plain.weights, atol=1e-4)
    # Beside such an offset the sum itself rounds, and the certificate says so.
    rounding = 2 * 62 * 2.0**-53 * offset * math.sqrt(len(range(4000)[columns]))
    assert plain.bias_bound * 0.995 <= result.bias_bound <= plain.bias_bound * 1.005 + rounding


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_may_differ_from_block_to_block_and_hostile_rows_stand_among_them(kind: str) -> None:
    rows = attacked(60, 4000, 12)
    for i, size in enumerate((0, 1e3, 1e8, 1e30)):
        rows[:, 1000 * i : 1000 * i + 5] = size
    rows[0], rows[1], rows[2], rows[3, 7] = 3e38, -3e38, np.nan, 3e38
    geometry, unusable = measure(ArrayRows(rows, 60 * 4 * 250), kind, seed=1)
    assert list(unusable) == [2]
    alive = np.delete(np.arange(60), 2)
    result = randeigen.aggregate(rows, f=13, geometry=kind, seed=1)
    assert result.weights[:12].sum() < 0.05
    exact = gaussian(60, 4000)[20:].astype(np.float32)
    exact[:, [i + j for i in range(0, 4000, 1000) for j in range(5)]] = 0
    between = ((exact[0].astype(float) - exact[1:]) ** 2).sum(1)
    found = geometry.take(alive).squared_distances()[19, 20:] * geometry.scale**2
    np.testing.assert_allclose(found, between, rtol=0.3)


def test_the_default_above_the_sketchs_threshold_survives_one_column_with_an_offset() -> None:
    for d in (5000, 16_000):
        rows = attacked(1000, d, 100)
        rows[:, 0] += 1e5
        result = randeigen.aggregate(rows, eps=0.1, seed=0)
        assert result.weights[:100].sum() < 0.01
        assert off(result, rows, 100) < 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e160, 1e200, 1e300, 1.7e308])
def test_a_finite_row_of_any_size_is_measured_and_is_never_certified(kind: str, size: float) -> None:
    rows = attacked(40, 3000, 4, np.float64)
    rows[:2] = size
    rows[1] *= -1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = randeigen.aggregate(rows, f=6, geometry=kind, seed=0)
    assert not result.unusable
    assert not result.kept[:2].any()
    assert off(result, rows, 4) < 15
    assert np.isfinite(result.bias_bound)
    geometry, _ = measure(as_rows(rows), kind, 0)
    assert not randeigen.certify(geometry, np.full(40, 1 / 40), 2) < size / 100


@pytest.mark.parametrize("kind", KINDS)
def test_honest_rows_may_be_as_large_as_floats_go(kind: str) -> None:
    rows = attacked(40, 3000, 4, np.float64)
    plain, large = (randeigen.aggregate(x, f=4, geometry=kind, seed=0) for x in (rows, rows * 1e305))
    assert not large.unusable
    np.testing.assert_allclose(large.weights, plain.weights, atol=1e-6)


def test_a_minority_cannot_set_the_pivot_however_the_sample_falls() -> None:
    rows = attacked(41, 2000, 4)
    rows[:20] = 1e30  # nearly half
    for seed in range(10):
        geometry, unusable = measure(as_rows(rows), "sketch", seed)
        assert not unusable
        assert geometry.squared_norms_from_pivot()[25] * geometry.scale**2 < 10 * 2000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "d", "f"), [(20, 200, 4), (5, 60, 2), (40, 3000, 10)])
def test_no_seed_breaks_the_certificate_of_a_forced_sketch(kind: str, n: int, d: int, f: int) -> None:
    rows = np.zeros((n, d))
    rows[:f] = gaussian(1, d, seed=5)
    weights = np.full(n, 1 / n)
    moved = float(np.linalg.norm(rows.mean(0)))
    for seed in range(100 if d < 1000 else 6):
        geometry, _ = measure(as_rows(rows), kind, seed)
        assert moved <= randeigen.certify(geometry, weights, f) <= 1.001 * moved


def test_a_sketchs_certificate_is_measured_on_a_table_that_had_no_part_in_the_verdict() -> None:
    def made(n: int, d: int) -> object:
        return measure(Shape(n, d))[0]  # type: ignore[arg-type]

    few, many = made(1300, 2**18), made(2100, 2**18)
    assert isinstance(few, SketchGeometry)
    assert isinstance(few.check, GramGeometry)
    assert isinstance(many, SketchGeometry)
    assert isinstance(many.check, SketchGeometry)
    assert many.check.distortion == projection.distortion(8400, projection.CHECK_HASHES) < 0.5
    assert isinstance(made(1000, 5000), GramGeometry)  # a sketch would be as wide as the rows
    assert isinstance(made(5000, 20_000), WideGramGeometry)
    assert isinstance(made(5000, 6000), SketchGeometry)


def test_two_columns_are_what_a_sparse_sketch_keeps_worst_and_its_distortion_allows_for_that() -> None:
    """|Sx|² for x on two columns, with every collision that a narrow sketch can have."""
    k, hashes = 64, 8
    allowed = projection.distortion(k, hashes, chance=1e-2)
    short, tries = 0, 1500
    for seed in range(tries):
        made = projection.SparseProjection(seed, k, hashes)
        points = np.zeros((1, made.k))
        made.add(points, slice(3, 4), np.full((1, 1), 0.5**0.5))
        made.add(points, slice(200, 201), np.full((1, 1), 0.5**0.5))
        short += float((points**2).sum()) < 1 - allowed
    assert short <= tries * 1e-2


@pytest.mark.parametrize("k", [512, 8192, 40_000, 200_000])
def test_more_hashes_and_more_columns_distort_less(k: int) -> None:
    one, two, wide = (projection.distortion(*x) for x in ((k, 4), (k, 8), (2 * k, 8)))
    assert 0 < wide < two <= one <= 1


@pytest.mark.parametrize("columns", [[3], [3, 3900], [3, 999, 2500, 3999], slice(None)])
def test_a_second_sketch_covers_what_was_moved(
    columns: list[int] | slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the exact Gram matrix would cost too much the certificate is a sketch's: wider, never short."""
    monkeypatch.setattr("randeigen.geometry.choice.MAX_EXACT_ROWS", 16)
    n, d, f = 30, 4000, 6
    rows = np.zeros((n, d), np.float32)
    rows[:f, columns] = 1
    moved = float(np.linalg.norm(rows.mean(0)))
    for seed in range(15):
        result = randeigen.aggregate(rows, rule=rules.Mean(f=f), geometry="sketch", seed=seed)
        assert moved <= result.bias_bound <= 4 * moved


PEAK = """
import resource, sys
import numpy as np
from randeigen import aggregate, rules
n, d = int(sys.argv[1]), int(sys.argv[2])
rows = np.memmap(sys.argv[3], np.float32, "w+", shape=(n, d))
for i in range(0, n, 100):
    rows[i : i + 100] = np.random.default_rng(i).standard_normal((100, d), dtype=np.float32)
aggregate(np.array(rows[:300, :400]), eps=0.1)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
aggregate(np.asarray(rows), rule=rules.Mean(eps=0.1))
print((peak() - before) * 1024 / rows.nbytes)
"""


@pytest.mark.parametrize(("n", "d"), [(2500, 8000), (20_000, 1000)])
def test_very_many_rows_need_no_more_room_than_they_take_themselves(
    n: int, d: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The rows lie in memory before the count begins; a quarter is left for blocks and BLAS."""
    path = tmp_path_factory.mktemp("rows") / "rows"
    command = [sys.executable, "-c", PEAK, str(n), str(d), str(path)]
    ratio = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert ratio < 1.25


@pytest.mark.parametrize("scale", [1e-38, 1.0, 5e37])
def test_rows_kept_in_float32_are_measured_as_in_float64(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (attacked(300, 60, 30).clip(-6, 6).astype(np.float64) * scale).astype(np.float32)
    wide = randeigen.aggregate(rows, f=30, geometry="sketch", seed=0)
    monkeypatch.setattr("randeigen.geometry.sketch_accumulator.MAX_FLOAT64_POINT_NUMBERS", 0)
    narrow, _ = measure(as_rows(rows), "sketch", 0)
    assert isinstance(narrow, SketchGeometry)
    assert narrow.points.dtype == np.float32
    again = randeigen.aggregate(rows, f=30, geometry="sketch", seed=0)
    np.testing.assert_allclose(again.weights, wide.weights, atol=1e-5)
    assert again.bias_bound == pytest.approx(wide.bias_bound, rel=1e-5)
    exact = rows.astype(np.float64) / scale
    apart = ((exact[0] - exact) ** 2).sum(1)
    np.testing.assert_allclose(
        narrow.squared_distances_from(0) * (narrow.scale / scale) ** 2, apart, rtol=1e-4, atol=1e-4
    )


def top_variance_of(rows: Array, weights: Array) -> float:
    """The oracle: by LAPACK, of the covariance of all columns, in float64."""
    centred = rows.astype(np.float64) - weights @ rows.astype(np.float64)
    return float(np.linalg.eigvalsh((centred.T * weights) @ centred)[-1])


@pytest.mark.parametrize("d", [60, 100, 300, 1000, 2000])
def test_a_sketch_with_more_columns_than_rows_costs_one_product_of_all_rows(
    d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round after round looks at inner products, as with the exact geometry, and no more at the points."""

    def never(*_: object) -> None:
        raise AssertionError("the points were multiplied once more")

    rows = attacked(200, d, 20)
    monkeypatch.setattr("randeigen.geometry.choice.MIN_FOLDED_ROWS", 10**9)
    exact = randeigen.aggregate(rows, f=20, geometry="gram", seed=2)
    if d >= 200:
        monkeypatch.setattr(sketch, "covariance_times", never)
    result = randeigen.aggregate(rows, f=20, geometry="sketch", seed=2)
    assert result.bias_bound == pytest.approx(exact.bias_bound, rel=0.06)
    assert result.weights[:20].sum() < 0.03
    f_share = np.sort(result.weights)[-20:].sum()
    oracle = math.sqrt(f_share / (1 - f_share) * top_variance_of(rows, result.weights))
    assert oracle <= 1.00001 * result.bias_bound <= 1.003 * oracle


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e15, 1e30])
def test_directions_of_thousands_of_short_rows_are_kept_and_the_bound_is_exact(
    dtype: type, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[int] = []

    def counted(apply: Operator, start: Array) -> Top:
        searches.append(1)
        return top_of_operator(apply, start)

    rows = (attacked(3000, 400, 300) * size).astype(dtype)
    rows[-1] = 1e3 * size
    monkeypatch.setattr(sketch, "top_of_operator", counted)
    result = randeigen.aggregate(rows, f=310, seed=2)
    assert result.verdict.rounds >= 4
    assert result.weights[:300].sum() < 0.01
    if size in (1.0, 1e15):  # larger or smaller numbers have no squares in float32
        assert len(searches) <= 4 < result.verdict.rounds
    f_share = np.sort(result.weights)[-310:].sum()
    oracle = size * math.sqrt(f_share / (1 - f_share) * top_variance_of(rows / size, result.weights))
    assert oracle <= 1.00001 * result.bias_bound <= 1.002 * oracle


@pytest.mark.parametrize(("n", "d"), [(170, 65), (500, 100), (3000, 150)])
def test_the_covariance_of_few_columns_is_made_whether_they_are_64_or_some_more(
    n: int, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("products with the points, where their covariance is small")

    monkeypatch.setattr(sketch, "covariance_times", never)
    rows = attacked(n, d, n // 10)
    weights = randeigen.aggregate(rows, f=n // 10, seed=2).weights
    geometry, _ = measure(as_rows(rows), "sketch", 2)
    assert geometry.top_variance(weights).variance == pytest.approx(top_variance_of(rows, weights), rel=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [20, 150, 300, 900])
def test_the_search_among_many_points_waits_for_no_busy_core_and_needs_none(
    d: int, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()

    def watched(*given: Array) -> Array:
        threads.add(thread_switches()[0]())
        return point_sums.projections_on(*given)

    rows = attacked(2000, d, 200, dtype)
    geometry, _ = measure(as_rows(rows), "sketch", 2)
    monkeypatch.setattr(sketch, "projections_on", watched)
    many = geometry.top_direction(np.ones(2000))
    with single_threaded_blas(0):
        one = geometry.top_direction(np.ones(2000))
    assert threads == {1}
    assert many.variance == one.variance
    assert np.array_equal(many.projections, one.projections)


def test_distances_from_one_point_need_no_distances_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = attacked(1500, 200, 150)
    geometry, _ = measure(as_rows(rows), "sketch", 2)
    weights = np.random.default_rng(0).random(1500)
    weights /= weights.sum()
    between = geometry.squared_distances()
    monkeypatch.setattr(SketchGeometry, "squared_distances", None)
    exact = rows.astype(np.float64)
    from_mean = ((exact - weights @ exact) ** 2).sum(axis=1)
    np.testing.assert_allclose(geometry.squared_distances_from_mean(7 * weights), from_mean, rtol=1e-5)
    np.testing.assert_allclose(geometry.squared_distances_from(20), between[20], rtol=1e-5)


def test_a_round_cloud_of_short_rows_is_left_alone_by_an_exact_search() -> None:
    """All on a sphere, and as many in every direction: no direction stands out, and the bound is no guess."""
    rows = np.vstack((np.eye(1100), -np.eye(1100)))
    result = randeigen.aggregate(rows, f=100, seed=2)
    share = 100 / 2200
    assert result.bias_bound == pytest.approx(math.sqrt(share / (1 - share) / 1100), rel=2e-3)


def test_a_sketch_by_name_of_rows_too_short_for_two_keeps_the_rows_for_its_certificate() -> None:
    for n in (300, 1000, 3000):
        made, _ = measure(Shape(n, 2**13), "sketch", want=Statistic.DIRECTIONS)  # type: ignore[arg-type]
        assert isinstance(made, ManyRowsGeometry)
        assert made.points.shape[1] < made.check.points.shape[1] == 2**13  # type: ignore[union-attr]
