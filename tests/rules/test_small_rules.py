"""Tukey's median, the semidefinite programme, and the chunked rules of Zhu et al."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from randeigen import BadParameter, BadRows, MissingExtra, aggregate
from randeigen.column_combiners import as_combiner
from randeigen.rules import RandEigen
from randeigen.rules._tukey_depth import deepest_along, deepest_in_plane
from randeigen.rules.chunked import ChunkedFiltering, ChunkedNoRegret
from randeigen.rules.preaggregation import NNM
from randeigen.rules.semidefinite import Semidefinite, least_top_variance
from randeigen.rules.tukey import TukeyMedian
from randeigen.rules.zhu import NoRegret, ZhuFiltering

CHUNKED = [ChunkedFiltering, ChunkedNoRegret]
needs_solver = pytest.mark.skipif(importlib.util.find_spec("clarabel") is None, reason="needs clarabel")


def rows_of(n: int, d: int, dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(dtype)


def depth(spots: np.ndarray, points: np.ndarray, directions: int = 5000) -> np.ndarray:
    """(m,) the depth of each spot along many directions: never less than its true depth."""
    turn = np.linspace(0, 2 * np.pi, directions, endpoint=False)
    along = np.stack((np.cos(turn), np.sin(turn)))
    seen = points @ along
    return np.array([(seen <= spot @ along + 1e-7).sum(axis=0).min() for spot in spots])


# Tukey's median


@pytest.mark.parametrize("n", [3, 4, 5, 8, 13, 30])
def test_no_spot_in_the_plane_is_deeper(n: int) -> None:
    points = rows_of(n, 2, seed=n)
    found, deep = deepest_in_plane(points)
    assert depth(found[None], points)[0] == deep
    spots = np.random.default_rng(1).uniform(points.min(axis=0), points.max(axis=0), (400, 2))
    assert depth(spots, points).max() <= deep
    assert deep >= np.ceil(n / 3)


def test_known_deepest_points() -> None:
    square = np.array([(0.0, 0), (2, 0), (2, 2), (0, 2)])
    np.testing.assert_allclose(deepest_in_plane(square)[0], (1, 1), atol=1e-6)  # where the diagonals meet
    triangle = np.array([(0.0, 0), (3, 0), (0, 3)])
    np.testing.assert_allclose(deepest_in_plane(triangle)[0], (1, 1), atol=1e-6)  # all of it has depth 1
    centred, deep = deepest_in_plane(np.vstack((square, (1, 1))))
    np.testing.assert_allclose(centred, (1, 1), atol=1e-6)
    assert deep == 3
    line = np.outer(rows_of(9, 1)[:, 0], (1.0, 2.0))
    np.testing.assert_allclose(deepest_in_plane(line)[0], np.median(line, axis=0), atol=1e-6)
    same = np.array([(1.0, 1)] * 4 + [(5.0, 5)] * 3)
    assert deepest_in_plane(same)[1] == 4
    np.testing.assert_array_equal(deepest_in_plane(same)[0], (1, 1))


def test_random_directions_come_close_to_the_exact_depth() -> None:
    points = rows_of(60, 2)
    turn = np.linspace(0, np.pi, 500, endpoint=False)
    found, deep = deepest_along(points, np.stack((np.cos(turn), np.sin(turn)), axis=1))
    exact = deepest_in_plane(points)[1]
    assert exact <= deep <= exact + 1
    assert depth(found[None], points)[0] >= exact - 1


def test_the_verdict_says_whether_the_point_is_exact() -> None:
    for d, exactly in ((1, True), (2, True), (3, False), (30, False)):
        result = aggregate(rows_of(25, d), rule=TukeyMedian(f=4), seed=0)
        (note,) = result.verdict.notes
        assert ("directions, not exactly" in note) != exactly
        assert np.linalg.norm(result.mean - rows_of(25, d).mean(axis=0)) <= result.bias_bound
    np.testing.assert_allclose(
        TukeyMedian(f=4)(rows_of(25, 1)), np.median(rows_of(25, 1), axis=0), atol=1e-12
    )
    assert "not exactly" in aggregate(rows_of(201, 2), rule=TukeyMedian(f=4)).verdict.notes[0]


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("extreme", [np.nan, np.inf, 1e30, 1e100])
def test_extreme_rows_hardly_move_the_deepest_point(d: int, extreme: float) -> None:
    rows = rows_of(30, d)
    honest = rows[3:].mean(axis=0)
    rows[:3] = extreme
    assert np.linalg.norm(TukeyMedian(f=3)(rows) - honest) < 1


@pytest.mark.parametrize("d", [1, 2, 4])
def test_the_deepest_point_moves_with_the_rows(d: int) -> None:
    rows, rule = rows_of(20, d), TukeyMedian(f=3)
    answer, order = aggregate(rows, rule=rule, seed=5).mean, np.random.default_rng(1).permutation(20)

    def again(other: np.ndarray) -> np.ndarray:
        return np.asarray(aggregate(other, rule=rule, seed=5).mean)

    np.testing.assert_allclose(again(rows[order]), answer, atol=1e-7)
    np.testing.assert_allclose(again(rows + 100), answer + 100, atol=1e-6)
    for scale in (1e-30, 1e-6, 1e6, 1e30):
        np.testing.assert_allclose(again(rows * scale), answer * scale, atol=1e-7 * scale)
    if d == 2:  # affine maps too
        turn = np.array([(2.0, 1.0), (0.5, -3.0)])
        np.testing.assert_allclose(again(rows @ turn), answer @ turn, atol=1e-6)


def test_small_and_dull_inputs_have_deepest_points() -> None:
    for d in (1, 2, 3):
        np.testing.assert_allclose(TukeyMedian(f=0)(rows_of(1, d)), rows_of(1, d)[0])
        np.testing.assert_allclose(TukeyMedian(f=0)(rows_of(2, d)), rows_of(2, d).mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(TukeyMedian(f=1)(np.ones((5, d), np.float32)), np.ones(d))


def test_tukey_refuses_what_it_cannot_do() -> None:
    with pytest.raises(BadRows, match="at most 100 columns"):
        TukeyMedian(f=2)(rows_of(20, 101))
    with pytest.raises(BadRows, match="at most 100 columns"):
        TukeyMedian(f=2)(rows_of(8, 5000))
    with pytest.raises(BadRows, match="up to 2000 rows"):
        TukeyMedian(f=2)(np.zeros((2001, 2)))
    with pytest.raises(BadRows, match='"auto"'):
        aggregate(rows_of(20, 4), rule=TukeyMedian(f=2), geometry="gram")
    with pytest.raises(BadParameter):
        TukeyMedian(f=2, directions=0)


def test_mixed_rows_have_a_deepest_point() -> None:
    rows = rows_of(20, 2)
    rows[:2] += 50
    assert np.linalg.norm((NNM() | TukeyMedian(f=2))(rows) - rows[2:].mean(axis=0)) < 1


# The semidefinite programme


@needs_solver
@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_the_programme_finds_the_least_variance() -> None:
    points, cap = rows_of(12, 3), 1 / 9
    best = least_top_variance(points, cap)
    assert best.sum() == pytest.approx(1)
    assert best.max() <= cap * (1 + 1e-6)

    def top_variance(weights: np.ndarray) -> float:
        return float(np.linalg.eigvalsh((points.T * weights) @ points)[-1])

    rng = np.random.default_rng(0)
    for _ in range(300):  # any other weights under the cap are wider
        other = np.zeros(12)
        other[rng.permutation(12)[:9]] = cap
        mix = rng.random()
        assert top_variance(best) <= top_variance(mix * best + (1 - mix) * other) * (1 + 1e-6)


@needs_solver
@pytest.mark.parametrize("d", [3, 200])
def test_the_programme_finds_the_byzantine_rows(d: int) -> None:
    rows = rows_of(25, d, np.float32)
    rows[:4] += 3
    result = aggregate(rows, rule=Semidefinite(f=4), seed=0)
    assert np.linalg.norm(result.mean - rows[4:].mean(axis=0)) <= result.bias_bound
    assert result.bias_bound <= 2 * aggregate(rows, rule=RandEigen(f=4), seed=0).bias_bound
    assert result.verdict.spreads[-1] <= result.verdict.spreads[0] * (1 + 1e-6)
    if d == 200:
        assert result.weights[:4].sum() < 0.02  # an even share would be 0.16


@needs_solver
@pytest.mark.parametrize("extreme", [np.nan, np.inf, 1e30])
def test_the_programme_survives_extreme_rows(extreme: float) -> None:
    rows = rows_of(20, 10)
    honest = rows[2:].mean(axis=0)
    rows[:2] = extreme
    result = aggregate(rows, rule=Semidefinite(f=3), seed=0)
    assert np.linalg.norm(result.mean - honest) < 1
    assert not result.kept[:2].any()


@needs_solver
def test_the_programme_has_answers_for_small_and_dull_inputs() -> None:
    np.testing.assert_allclose(Semidefinite(f=0)(rows_of(1, 4)), rows_of(1, 4)[0])
    np.testing.assert_allclose(Semidefinite(f=1)(np.ones((5, 4))), np.ones(4))
    np.testing.assert_allclose(Semidefinite(f=0)(rows_of(9, 4)), rows_of(9, 4).mean(axis=0), atol=1e-12)
    answer = Semidefinite(f=2)(rows_of(12, 5))
    np.testing.assert_allclose(
        Semidefinite(f=2)(rows_of(12, 5) * 1e20 + 1e20), (answer + 1) * 1e20, rtol=1e-3
    )


@needs_solver
def test_the_programme_refuses_rows_that_span_too_much() -> None:
    with pytest.raises(BadRows, match=r"found 59, for which a programme would take 0\.2 minutes"):
        Semidefinite(f=5)(rows_of(60, 100))
    assert np.isfinite(Semidefinite(f=5)(rows_of(60, 4))).all()


def test_the_programme_refuses_what_it_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRows, match="up to 200 rows, found 201"):
        Semidefinite(f=2)(rows_of(201, 3))
    monkeypatch.setattr("randeigen.rules.semidefinite.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"randeigen\[sdp\]"):
        Semidefinite(f=2)(rows_of(10, 3))


# Zhu's rules in chunks


@pytest.mark.parametrize("rule", CHUNKED)
def test_a_chunk_is_judged_as_whole_rows_are(rule: Any) -> None:
    whole = ZhuFiltering if rule is ChunkedFiltering else NoRegret
    rows = rows_of(30, 250)
    rows[:5, :100] += 2
    answer = rule(f=5, sigma=1.0, chunk=100)(rows)
    assert answer.dtype == rows.dtype
    for at in (slice(0, 100), slice(100, 200), slice(200, 250)):
        np.testing.assert_allclose(answer[at], whole(f=5, sigma=1.0)(rows[:, at]), atol=1e-6)


@pytest.mark.parametrize("rule", CHUNKED)
def test_cut_blocks_change_nothing_if_cut_between_chunks(rule: Any) -> None:
    rows = rows_of(20, 400)
    rows[:4] += 1
    judge = rule(f=4, sigma=1.0, chunk=100)
    decision = judge.decide(_geometry(rows), 4, np.random.default_rng(0))
    assert decision.verdict is None
    combiner = as_combiner(decision.combine)
    whole = combiner(slice(0, 400), rows)
    parts = [combiner(slice(a, a + 200), rows[:, a : a + 200]) for a in (0, 200)]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-12)


def _geometry(rows: np.ndarray) -> Any:
    from randeigen.geometry import measure
    from randeigen.rows import as_rows

    return measure(as_rows(rows))[0]


@pytest.mark.parametrize("rule", CHUNKED)
@pytest.mark.parametrize("extreme", [np.nan, np.inf, 1e30])
def test_extreme_rows_do_not_spoil_chunks(rule: Any, extreme: float) -> None:
    rows = rows_of(20, 300, np.float32)
    honest = rows[2:].mean(axis=0)
    rows[0], rows[1, 100:] = extreme, extreme
    result = aggregate(rows, rule=rule(f=3, sigma=1.0, chunk=100), seed=0)
    assert np.linalg.norm(result.mean - honest) < 6
    assert np.linalg.norm(result.mean - honest) <= result.bias_bound * (1 + 1e-6)


@pytest.mark.parametrize("rule", CHUNKED)
def test_chunks_of_small_and_dull_inputs_have_answers(rule: Any) -> None:
    np.testing.assert_allclose(rule(f=0, sigma=1.0)(rows_of(1, 6)), rows_of(1, 6)[0])
    np.testing.assert_allclose(rule(f=0, sigma=1.0)(rows_of(9, 6)), rows_of(9, 6).mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(rule(f=1, sigma=1.0)(np.ones((9, 6))), np.ones(6))


def test_the_promise_has_no_default() -> None:
    for rule in CHUNKED:
        with pytest.raises(BadParameter, match="needs sigma"):
            rule(eps=0.1)
        with pytest.raises(BadParameter, match="chunk=0"):
            rule(eps=0.1, sigma=1.0, chunk=0)
