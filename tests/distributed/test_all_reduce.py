"""`all_reduce` is `aggregate` of the rows that the ranks hold, the same bits on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import randeigen
import rank_jobs
from ranks import Ranks

pytestmark = pytest.mark.dist
D = 5003  # no multiple of any number of ranks


def cloud(kind: str = "clean", n: int = 4, d: int = D, dtype: Any = np.float32) -> NDArray[Any]:
    rng = np.random.default_rng(1)
    rows = (rng.standard_normal(d) + 0.5 * rng.standard_normal((n, d))).astype(dtype)
    if kind == "sign":
        rows[1] *= -1
    elif kind == "NaN":
        rows[1, d - 1] = np.nan
    elif kind == "infinity":
        rows[1, 0] = np.inf
    elif kind == "layer":
        rows[1, :1000] *= -100
    elif kind != "clean":
        rows[1] *= dtype(float(kind))
    return rows


def close(mean: NDArray[Any], expected: NDArray[Any]) -> bool:
    return bool(np.linalg.norm(mean - expected) <= 1e-6 * np.linalg.norm(expected))


@pytest.mark.parametrize("kind", ["clean", "NaN", "infinity", "1e6", "1e30", "sign", "layer"])
def test_it_is_aggregate_of_the_gathered_rows(four: Ranks, kind: str) -> None:
    rows = cloud(kind)
    answers = four(rank_jobs.reduce_rows, rows, [7, 7, 3000], {"f": 1})
    for mean, exchange in answers[1:]:
        assert np.array_equal(mean, answers[0][0])
        assert exchange == answers[0][1]
    mean, exchange = answers[0]
    whole = randeigen.aggregate(rows, f=1, seed=exchange["seed"])
    assert exchange["weights"] == pytest.approx(whole.weights.tolist(), abs=1e-6)
    assert exchange["bias_bound"] == pytest.approx(whole.bias_bound, rel=1e-5)
    # Weights that are 1e-6 off move a mean of rows of norm 80 by so much.
    assert exchange["distance_to_mean"] == pytest.approx(whole.distance_to_mean, rel=1e-5, abs=1e-4)
    assert exchange["unusable"] == dict(whole.unusable)
    assert close(mean, whole.mean)
    assert kind == "clean" or exchange["weights"][1] == 0


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_any_number_of_ranks(four: Ranks, n: int) -> None:
    f = (n - 1) // 2
    rows = cloud("sign" if f else "clean", n)
    answers = four(rank_jobs.reduce_rows, np.resize(rows, (4, D)), [100], {"f": f, "seed": 3}, n)[:n]
    whole = randeigen.aggregate(rows, f=f, seed=3)
    for mean, exchange in answers:
        assert exchange["weights"] == pytest.approx(whole.weights.tolist(), abs=1e-6)
        assert close(mean, whole.mean)


def test_one_rank_has_the_bits_of_one_process(four: Ranks) -> None:
    rows = cloud(n=1)
    mean, exchange = four(rank_jobs.reduce_rows, np.resize(rows, (4, D)), [], {"f": 0, "seed": 3}, 1)[0]
    whole = randeigen.aggregate(rows, f=0, seed=3)
    assert np.array_equal(mean, whole.mean)
    assert exchange["bias_bound"] == whole.bias_bound


@pytest.mark.parametrize("d", [1, 3, 5])
def test_fewer_columns_than_ranks(four: Ranks, d: int) -> None:
    rows = cloud("1e6", d=d)
    for mean, exchange in four(rank_jobs.reduce_rows, rows, [1], {"f": 1, "seed": 3}):
        whole = randeigen.aggregate(rows, f=1, seed=3)
        assert exchange["weights"] == pytest.approx(whole.weights.tolist(), abs=1e-6)
        assert mean == pytest.approx(whole.mean, rel=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize("kind", ["clean", "1e300", "1e-300", "offset"])
def test_numbers_of_any_size(four: Ranks, dtype: Any, kind: str) -> None:
    rows = cloud("clean", dtype=np.float64)
    rows = rows + 1e3 if kind == "offset" else rows * (float(kind) if kind != "clean" else 1.0)
    with np.errstate(over="ignore"):
        rows = rows.astype(dtype)
    if not np.isfinite(rows).all():
        pytest.skip("float16 holds no such number")
    answers = four(rank_jobs.reduce_rows, rows, [2000], {"f": 1, "seed": 3})
    whole = randeigen.aggregate(rows, f=1, seed=3)
    for mean, exchange in answers:
        assert exchange["weights"] == pytest.approx(whole.weights.tolist(), abs=1e-6)
        assert exchange["bias_bound"] == pytest.approx(whole.bias_bound, rel=2e-3)  # it allows for rounding
        unit = 1e300 if kind == "1e300" else 1.0
        mean, expected = mean.astype(float) / unit, whole.mean.astype(float) / unit
        error = np.linalg.norm(mean - expected)
        assert error <= (1e-3 if dtype is np.float16 else 1e-6) * np.linalg.norm(expected)


@pytest.mark.parametrize("rule", ["mda", "median", "nnm+trimmed-mean", "geometric-median"])
def test_other_rules_go_through_the_same_exchange(four: Ranks, rule: str) -> None:
    rows = np.vstack((cloud("sign"), cloud()[:1]))[:4]
    answers = four(rank_jobs.reduce_rows, rows, [2000], {"f": 1, "rule": rule, "seed": 3})
    whole = randeigen.aggregate(rows, f=1, rule=rule, seed=3)
    for mean, exchange in answers:
        assert close(mean, whole.mean)
        assert exchange["bias_bound"] == pytest.approx(whole.bias_bound, rel=1e-4)
        assert exchange["distance_to_mean"] == pytest.approx(whole.distance_to_mean, rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("length", "BadRows", "rank 2 has 21 numbers in 2 tensors, float32 first, the 3 others 20 numbers"),
        ("shape", "BadRows", "in other shapes or dtypes"),
        ("dtype", "BadRows", "rank 2 has 20 numbers in 2 tensors, bfloat16 first"),
        ("integers", "BadRows", "rank 2 passed what cannot be averaged"),
        ("nothing", "BadRows", "rank 2 passed what cannot be averaged"),
        ("f", "BadParameter", "rank 2 asked for another rule, eps, f or seed"),
        ("seed", "BadParameter", "rank 2 asked for another rule, eps, f or seed"),
    ],
)
def test_a_rank_that_holds_something_else_is_an_error_on_every_rank(
    four: Ranks, kind: str, error: str, words: str
) -> None:
    for rank, failure in enumerate(four.attempt(rank_jobs.reduce_unlike, kind, {"f": 1})):
        assert failure.kind == error
        if rank != 2 or kind not in ("integers", "nothing"):
            assert words in failure.message
    mean, _ = four(rank_jobs.reduce_rows, cloud(), [], {"f": 1})[0]  # and the group works as before
    assert np.isfinite(mean).all()


def test_more_unusable_ranks_than_f_are_an_error_on_every_rank(four: Ranks) -> None:
    rows = cloud("NaN")
    rows[3, 5] = np.inf
    for failure in four.attempt(rank_jobs.reduce_rows, rows, [], {"f": 1}):
        assert failure.kind == "TooManyCorrupt"
        assert "2 of 4 rows are unusable" in failure.message
    for mean, exchange in four(rank_jobs.reduce_rows, rows, [], {"f": 1, "on_excess": "nan"}):
        assert np.isnan(mean).all()
        assert exchange["skipped"]
    for mean, exchange in four(rank_jobs.reduce_rows, rows, [], {"f": 1, "on_excess": "drop"}):
        assert np.isfinite(mean).all()
        assert sorted(exchange["unusable"]) == [1, 3]


def test_zero_and_stale_gradients_are_averaged_in_within_the_bound(four: Ranks) -> None:
    rows = cloud()
    rows[2] = 0
    mean, exchange = four(rank_jobs.reduce_rows, rows, [], {"f": 1})[0]
    honest = np.average(rows[[0, 1, 3]], axis=0, weights=np.array(exchange["weights"])[[0, 1, 3]])
    assert np.linalg.norm(mean - honest) <= exchange["bias_bound"]
