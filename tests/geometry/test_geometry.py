"""The small space against the full space, for every kind of geometry and every storage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clouds import HONEST, gaussian
from randeigen.backend.arrays import median
from randeigen.backend.random_streams import Stream
from randeigen.geometry import measure, projection
from randeigen.geometry.gram import GramGeometry
from randeigen.geometry.sketch import SketchGeometry
from randeigen.rows import as_rows
from randeigen.types import Geometry
from shapes import Shape


def widest_in_full_space(rows: np.ndarray, weights: np.ndarray) -> tuple[float, np.ndarray]:
    w = weights / weights.sum()
    centred = rows - w @ rows
    _, values, axes = np.linalg.svd(np.sqrt(w)[:, None] * centred, full_matrices=False)
    return values[0] ** 2, (centred @ axes[0]) ** 2


def geometry_of(rows: np.ndarray, kind: str = "auto", seed: int = 0) -> Geometry:
    return measure(as_rows(rows), kind, seed)[0]


@pytest.mark.parametrize("cloud", HONEST)
@pytest.mark.parametrize(("n", "d"), [(20, 300), (90, 400), (150, 700)])  # dense solver, and Lanczos
def test_small_space_scores_equal_full_space_scores(cloud: str, n: int, d: int) -> None:
    rows, rng = HONEST[cloud](n, d), np.random.default_rng(1)
    weights = rng.random(n) * (rng.random(n) > 0.2)
    spread = geometry_of(rows).top_direction(weights)
    variance, scores = widest_in_full_space(rows, weights)
    assert spread.variance == pytest.approx(variance, rel=1e-9)
    np.testing.assert_allclose(spread.scores, np.where(weights > 0, scores, 0), atol=1e-5 * scores.max())


def test_short_rows_are_their_own_small_space() -> None:
    rows = gaussian(3000, 5)
    geometry = geometry_of(rows)
    assert isinstance(geometry, SketchGeometry)
    assert geometry.distortion == 0
    variance, scores = widest_in_full_space(rows, np.ones(3000))
    spread = geometry.top_direction(np.ones(3000))
    assert spread.variance == pytest.approx(variance, rel=1e-9)
    np.testing.assert_allclose(spread.scores, scores, atol=1e-6)


def test_few_rows_are_measured_exactly_and_many_are_sketched() -> None:
    assert isinstance(measure(Shape(100, 2**18))[0], GramGeometry)  # type: ignore[arg-type]
    wide = measure(Shape(1300, 2**18))[0]  # type: ignore[arg-type]
    assert isinstance(wide, SketchGeometry)
    assert wide.points.shape == (1300, 5200)  # four columns a row, so that round clouds stay round


@pytest.mark.parametrize("kind", ["gram", "sketch", "gaussian"])
def test_block_size_does_not_change_the_geometry(kind: str) -> None:
    rows = gaussian(12, 9000).astype(np.float32)
    one, other = (
        measure(as_rows(rows, block_bytes=size), kind, seed=7)[0].squared_distances()
        for size in (2**10, 2**24)
    )
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("kind", ["sketch", "gaussian"])
def test_another_seed_is_another_projection(kind: str) -> None:
    rows = gaussian(12, 9000)
    distances = [geometry_of(rows, kind, seed).squared_distances() for seed in (0, 1)]
    assert np.abs(distances[0] - distances[1]).max() > 1


@pytest.mark.parametrize("kind", ["sketch", "gaussian"])
@pytest.mark.parametrize("shape", ["round", "one heavy column", "a few heavy columns"])
def test_a_sketch_keeps_distances_and_variances(kind: str, shape: str) -> None:
    rows = gaussian(30, 20_000)
    if shape == "one heavy column":
        rows[:, 5] *= 1000
    elif shape == "a few heavy columns":
        rows[:, ::1000] *= 200
    exact, sketched = geometry_of(rows, "gram"), geometry_of(rows, kind, 3)
    off = ~np.eye(30, dtype=bool)
    ratio = sketched.squared_distances()[off] / exact.squared_distances()[off]
    assert abs(ratio - 1).max() < 0.3
    assert abs(ratio.mean() - 1) < 0.1
    found = sketched.top_direction(np.ones(30)).variance / exact.top_direction(np.ones(30)).variance
    assert 1 - 2 * projection.EPS_JL < found < (1 + math.sqrt(30 / projection.jl_width(20_000))) ** 2 + 0.1


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("kind", ["gram", "sketch", "gaussian"])
def test_lengths_are_those_of_the_callers_numbers(kind: str, offset: float) -> None:
    rows = gaussian(10, 4000) + offset
    lengths = geometry_of(rows, kind).squared_norms()
    np.testing.assert_allclose(lengths, (rows**2).sum(1), rtol=1e-9 if kind == "gram" else 0.3)


def test_rows_may_be_picked_and_mixed_as_in_full_space() -> None:
    rows, rng = gaussian(12, 400) + 3, np.random.default_rng(0)
    mixing = rng.random((5, 13))
    mixing /= mixing.sum(1, keepdims=True)
    mixed = mixing[:, :-1] @ rows  # the last column is the origin
    for kind in ("gram", "gaussian"):
        whole = geometry_of(rows, kind)
        tolerance = 1e-9 if kind == "gram" else 0.5
        np.testing.assert_allclose(
            whole.combine_rows(mixing).squared_norms(), (mixed**2).sum(1), rtol=tolerance
        )
        picked = whole.take(np.array([3, 1, 8]))
        np.testing.assert_allclose(
            picked.squared_distances(), whole.squared_distances()[np.ix_([3, 1, 8], [3, 1, 8])], atol=1e-9
        )


def test_table_entries_are_right_to_1e_5_in_float32() -> None:
    rows = gaussian(20, 60_000).astype(np.float32)
    exact = rows.astype(np.float64) @ rows.T.astype(np.float64)
    table = geometry_of(rows).gram[:-1, :-1]  # type: ignore[attr-defined]
    scale = np.sqrt(np.outer(exact.diagonal(), exact.diagonal()))
    assert (abs(table - exact) / scale).max() < 1e-5


@given(st.integers(0, 2**64), st.integers(1, 500), st.integers(0, 2000), st.integers(1, 3000))
def test_projections_are_additive_over_columns(seed: int, k: int, start: int, length: int) -> None:
    block = np.random.default_rng(0).standard_normal((2, length))
    cut = length // 3
    for made in (projection.GaussianProjection(seed, k), projection.SparseProjection(seed, k)):
        whole, parts = np.zeros((2, made.k)), np.zeros((2, made.k))
        made.add(whole, slice(start, start + length), block)
        made.add(parts, slice(start + cut, start + length), block[:, cut:])
        if cut:
            made.add(parts, slice(start, start + cut), block[:, :cut])
        np.testing.assert_allclose(whole, parts, atol=1e-5 * np.sqrt(length))


def test_the_papers_width() -> None:
    assert [projection.jl_width(d) for d in (5_000, 2**18, 319_520)] == [852, 1248, 1268]


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_the_median_is_numpys_and_leaves_the_values_as_they_were(n: int) -> None:
    values = np.random.default_rng(n).standard_normal(n)
    before = values.copy()
    assert median(values) == np.median(values)
    np.testing.assert_array_equal(values, before)


def test_the_median_of_the_largest_numbers_is_one_of_them() -> None:
    largest = np.finfo(np.float64).max
    assert median(np.full(4, largest)) == largest
    assert median(np.array([-largest, -largest])) == -largest
    assert median(np.array([1.0, np.inf])) == np.inf


def test_random_streams_keep_their_integers_so_that_recorded_seeds_replay() -> None:
    assert {name: int(stream) for name, stream in Stream.__members__.items()} == {
        "GAUSSIAN_PROJECTION": 1,
        "SPARSE_PROJECTION": 2,
        "MEASUREMENT": 3,
        "RULE": 4,
        "CHECK_PROJECTION": 5,
        "TORCH_RULE": 5,
        "CHECK_MEASUREMENT": 6,
        "PARTS": 7,
        "FOLDS": 8,
    }
