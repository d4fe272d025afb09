"""Median, trimmed mean, MeaMed, Phocas and Bulyan: every column on its own."""

from __future__ import annotations

import tracemalloc
import types
from typing import Any

import numpy as np
import pytest

import randeigen
from randeigen import BadFraction, TooManyCorrupt, aggregate, column_combiners
from randeigen.rows import as_rows
from randeigen.rules import RandEigen
from randeigen.rules._sorted_columns import SortedColumns, mean_of_nearest, median
from randeigen.rules.coordinatewise import MeaMed, Median, Phocas, TrimmedMean
from randeigen.rules.krum import Bulyan

RULES = [Median, TrimmedMean, MeaMed, Phocas, Bulyan]
COLUMN_RULES = RULES[:-1]
SHAPES = [(11, 40, 2), (12, 40, 2), (3, 5, 1), (50, 3000, 10), (15, 7, 3)]


def rows_of(n: int, d: int, dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(dtype)


def plain(rows: Any) -> np.ndarray:
    """A numpy copy of rows in any form."""
    if isinstance(rows, list):
        return np.array([plain(row) for row in rows])
    return np.array(rows if isinstance(rows, np.ndarray) else rows.cpu().numpy())


def nearest_mean(rows: np.ndarray, centre: np.ndarray, k: int) -> np.ndarray:
    """The obvious way: sort by distance, take k."""
    order = np.argsort(np.abs(rows - centre), axis=0, kind="stable")[:k]
    return np.take_along_axis(rows, order, axis=0).mean(axis=0)


def trimmed(rows: np.ndarray, f: int) -> np.ndarray:
    return np.sort(rows, axis=0)[f : len(rows) - f].mean(axis=0)


def bulyan(rows: np.ndarray, f: int) -> np.ndarray:
    """The obvious way, in d dimensions."""
    left, picked = list(range(len(rows))), []
    for _ in range(len(rows) - 2 * f):
        scores = []
        for i in left:
            apart = sorted(float(((rows[i] - rows[j]) ** 2).sum()) for j in left if j != i)
            scores.append(sum(apart[: max(len(left) - f - 2, 1)]))
        picked.append(left.pop(int(np.argmin(scores))))
    chosen = rows[sorted(picked)]
    return nearest_mean(chosen, np.median(chosen, axis=0), len(picked) - 2 * f)


ORACLES = {
    Median: lambda rows, f: np.median(rows, axis=0),
    TrimmedMean: trimmed,
    MeaMed: lambda rows, f: nearest_mean(rows, np.median(rows, axis=0), len(rows) - f),
    Phocas: lambda rows, f: nearest_mean(rows, trimmed(rows, f), len(rows) - f),
    Bulyan: bulyan,
}


@pytest.mark.parametrize("rule", COLUMN_RULES)
@pytest.mark.parametrize(("n", "d", "f"), SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_answer_is_that_of_the_definition(rule: Any, n: int, d: int, f: int, dtype: Any) -> None:
    rows = rows_of(n, d, dtype)
    before = rows.copy()
    answer = rule(f=f)(rows)
    assert answer.dtype == dtype
    np.testing.assert_allclose(answer, ORACLES[rule](rows, f), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize(("n", "f"), [(7, 1), (11, 2), (16, 3), (23, 5), (5, 0)])
def test_bulyan_is_that_of_the_definition(n: int, f: int) -> None:
    rows = rows_of(n, 30, seed=n)
    np.testing.assert_allclose(Bulyan(f=f)(rows), bulyan(rows, f), rtol=1e-9, atol=1e-9)


def test_the_median_is_numpys_bit_by_bit() -> None:
    for n in (7, 8):
        rows = rows_of(n, 1000, np.float32)
        np.testing.assert_array_equal(Median(f=1)(rows), np.median(rows, axis=0))


def test_the_trimmed_mean_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    rows = rows_of(20, 300)
    np.testing.assert_allclose(TrimmedMean(f=4)(rows), stats.trim_mean(rows, 0.2, axis=0), rtol=1e-12)


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_where_byzfl_is_right_we_agree(byzfl: types.ModuleType, form: str) -> None:
    rows: Any = rows_of(20, 500, np.float32)
    if form == "torch":
        rows = pytest.importorskip("torch").tensor(rows)
    pairs = (
        (Median(f=4), byzfl.Median()),
        (TrimmedMean(f=4), byzfl.TrMean(4)),
        (MeaMed(f=4), byzfl.Meamed(4)),
    )
    for ours, theirs in pairs:
        answer, expected = ours(rows), theirs(rows)
        assert type(answer) is type(expected)
        assert answer.dtype == expected.dtype
        np.testing.assert_allclose(plain(answer), plain(expected), atol=1e-5)


@pytest.mark.parametrize("rule", [Median, MeaMed])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_one_nan_row_does_not_spoil_the_answer_as_it_does_byzfls(byzfl: types.ModuleType, rule: Any) -> None:
    rows = rows_of(12, 20)
    rows[3] = np.nan
    theirs = byzfl.Median() if rule is Median else byzfl.Meamed(2)
    assert np.isnan(theirs(rows)).all()
    np.testing.assert_allclose(rule(f=2)(rows), ORACLES[rule](np.delete(rows, 3, axis=0), 1))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("extreme", [np.nan, np.inf, -np.inf, 1e30, -1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extreme_rows_change_little(rule: Any, extreme: float, dtype: Any) -> None:
    rows = rows_of(15, 30, dtype)
    honest = rows[2:].mean(axis=0)
    rows[0], rows[1] = extreme, -extreme
    result = aggregate(rows, rule=rule(f=2), seed=0)
    assert np.isfinite(result.mean).all()
    assert np.linalg.norm(result.mean - honest) < 3
    assert np.linalg.norm(result.mean - honest) <= result.bias_bound * (1 + 1e-6)
    assert np.isfinite(result.bias_bound)


@pytest.mark.parametrize("rule", RULES)
def test_rows_can_be_permuted_shifted_and_scaled(rule: Any) -> None:
    rows, shift = rows_of(15, 40), rows_of(1, 40, seed=9)
    answer = rule(f=2)(rows)
    order = np.random.default_rng(1).permutation(15)
    np.testing.assert_allclose(rule(f=2)(rows[order]), answer, atol=1e-12)
    np.testing.assert_allclose(rule(f=2)(rows + 100 * shift), answer + 100 * shift[0], atol=1e-10)
    for scale in (1e-30, 1e-6, 1e6, 1e30, -1.0):
        np.testing.assert_allclose(
            rule(f=2)(rows * scale), answer * scale, rtol=1e-9, atol=1e-12 * abs(scale)
        )


@pytest.mark.parametrize("rule", RULES)
def test_small_and_dull_inputs_have_answers(rule: Any) -> None:
    alone = rows_of(1, 6)
    np.testing.assert_array_equal(rule(f=0)(alone), alone[0])
    equal = np.tile(rows_of(1, 6, np.float32), (9, 1))
    np.testing.assert_allclose(rule(f=1)(equal), equal[0], rtol=1e-6)
    assert np.isfinite(rule(eps=0.0)(rows_of(9, 6))).all()
    result = aggregate(equal, rule=rule(f=1))
    assert result.bias_bound <= 1e-5


def test_without_byzantine_rows_trimming_is_the_mean() -> None:
    rows = rows_of(9, 6)
    for rule in (TrimmedMean, MeaMed, Phocas, Bulyan):
        np.testing.assert_allclose(rule(f=0)(rows), rows.mean(axis=0), atol=1e-12)


def test_twice_the_same_number_and_ties_are_settled() -> None:
    rows = np.array([[0.0], [0.0], [1.0], [2.0], [2.0]])  # both 0 and 2 are as near to the median 1
    assert MeaMed(f=1)(rows)[0] == pytest.approx(3 / 4)
    assert MeaMed(f=2)(rows)[0] == pytest.approx(1 / 3)


def test_fewer_may_be_kept_than_dropped() -> None:
    rows = rows_of(30, 50)
    for k in (1, 4, 14, 29, 30):
        centre = np.median(rows, axis=0)
        nearest = SortedColumns(
            lambda lines, k=k: mean_of_nearest(lines, (lines[:, 14] + lines[:, 15]) / 2, k)
        )
        found = nearest(slice(0, 50), rows)
        if k > 1:  # of the middle two, equally near, one is kept: which is a matter of rounding
            np.testing.assert_allclose(found, nearest_mean(rows, centre, k), atol=1e-12)
        assert np.abs(found - centre).max() < 4


@pytest.mark.parametrize("rule", RULES)
def test_the_certificate_leans_on_a_mean(rule: Any) -> None:
    rows = rows_of(15, 40)
    rows[:2] += 3
    result = aggregate(rows, rule=rule(f=2), seed=0)
    sure = aggregate(rows, rule=RandEigen(f=2), seed=0)
    assert np.linalg.norm(result.mean - rows[2:].mean(axis=0)) <= result.bias_bound
    assert result.weights.sum() == pytest.approx(1)
    if rule is not Bulyan:
        apart = np.linalg.norm(result.mean - sure.mean)
        assert result.bias_bound == pytest.approx(sure.bias_bound + apart)
        assert any("RandEigen" in note for note in result.verdict.notes)


def test_bulyan_needs_four_times_as_many_rows_as_byzantine_rows() -> None:
    with pytest.raises(BadFraction, match="at least 11 rows, found 10"):
        Bulyan(f=2)(rows_of(10, 4))
    with pytest.raises(BadFraction, match="at least"):
        Bulyan(eps=0.3)(rows_of(10, 4))
    Bulyan(f=2)(rows_of(11, 4))


def test_bulyan_leaves_a_far_row_unpicked() -> None:
    rows = rows_of(15, 40)
    rows[4] += 30
    result = aggregate(rows, rule=Bulyan(f=2))
    assert not result.kept[4]
    assert result.kept.sum() == 15 - 2 * 2


def test_more_nan_rows_than_byzantine_rows_fail_closed() -> None:
    rows = rows_of(12, 5)
    rows[:3] = np.nan
    with pytest.raises(TooManyCorrupt):
        Median(f=2)(rows)


@pytest.mark.parametrize("rule", RULES)
def test_the_answer_does_not_depend_on_how_rows_are_stored(rule: Any) -> None:
    torch = pytest.importorskip("torch")
    rows = rows_of(15, 3000, np.float32)
    answer = rule(f=2)(rows)
    for other in (np.asfortranarray(rows), torch.tensor(rows), torch.tensor(rows.T.copy()).T, list(rows)):
        before = plain(other)
        np.testing.assert_allclose(plain(rule(f=2)(other)), answer, atol=1e-6)
        np.testing.assert_array_equal(plain(other), before)
    half = rule(f=2)(rows.astype(np.float16))
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, answer, atol=1e-2)


@pytest.mark.parametrize("rule", RULES)
def test_memory_stays_flat(rule: Any) -> None:
    rows = np.zeros((50, 2**18), np.float32)  # never written: no page of it is touched twice
    rows[:, ::1000] = 1.0
    tracemalloc.start()
    try:
        rule(f=10)(rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - rows[0].nbytes < 64 * 2**20


@pytest.mark.gpu
@pytest.mark.parametrize("rule", RULES)
def test_a_gpu_gives_the_same_answer(rule: Any) -> None:
    torch = pytest.importorskip("torch")
    rows = rows_of(50, 100_000, np.float32)
    on_device = torch.tensor(rows, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    answer = rule(f=8)(on_device)
    assert torch.cuda.max_memory_allocated() - before < 64 * 2**20
    assert answer.is_cuda
    np.testing.assert_allclose(answer.cpu().numpy(), rule(f=8)(rows), atol=1e-5)


def test_rules_are_values() -> None:
    assert Median(eps=0.1) == Median(eps=0.1)
    assert hash(TrimmedMean(f=2)) == hash(TrimmedMean(f=2))
    with pytest.raises(BadFraction):
        Median(eps=0.5)
    with pytest.raises(randeigen.BadFraction):
        MeaMed()


def test_columns_that_a_gpu_has_begun_with_are_awaited_last(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, awaited = np.random.default_rng(0).standard_normal((9, 40)), list[bool]()
    # None: the kernel's sums have overflowed, and the columns are merged without it.
    monkeypatch.setattr(column_combiners, "_in_registers", lambda *given: lambda: awaited.append(True))
    merging = column_combiners.Merging(
        as_rows(rows), np.full(9, 1 / 9), np.ones(9, bool), SortedColumns(median),
        to_mean=column_combiners.DistanceToMean(),
    )  # fmt: skip
    merging.begin()
    assert not awaited
    answer, away, to_mean = merging.finish()
    assert awaited == [True]
    np.testing.assert_array_equal(answer, np.median(rows, axis=0))
    assert to_mean == pytest.approx(np.linalg.norm(answer - rows.mean(axis=0)))
    assert away == pytest.approx(to_mean)
