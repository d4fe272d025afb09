"""Rows first mixed, then judged: NNM, bucketing, clipping, ARC, and what they are composed with."""

from __future__ import annotations

import tracemalloc
import types
from typing import Any

import numpy as np
import pytest

from randeigen import BadFraction, BadParameter, aggregate
from randeigen.geometry import measure
from randeigen.rows import as_rows
from randeigen.rules import Mean, RandEigen
from randeigen.rules.coordinatewise import Median, TrimmedMean
from randeigen.rules.krum import Bulyan
from randeigen.rules.mixed import Chain, Mixed, PreAggregator
from randeigen.rules.preaggregation import ARC, NNM, Bucketing, Clipping
from randeigen.rules.trusted import MoNNA

PRES = [NNM(f=2), NNM(), Bucketing(2), Clipping(3.0), ARC(f=2), Clipping(4.0) | NNM(), Bucketing(2) | NNM()]
INNER = [RandEigen(f=2), Mean(f=2), Median(f=2), TrimmedMean(f=2)]


def rows_of(n: int, d: int, dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(dtype)


def mixed(pre: PreAggregator, rows: np.ndarray, f: int = 2, seed: int = 0) -> np.ndarray:
    """The mixed rows themselves, as byzfl's pre-aggregators return them."""
    geometry, _ = measure(as_rows(rows), "auto", seed)
    matrix = pre.matrix(geometry, f, np.random.default_rng(seed))
    np.testing.assert_allclose(matrix.sum(axis=1), 1)
    return matrix[:, :-1] @ rows


@pytest.mark.parametrize(("n", "d", "f"), [(12, 20, 2), (15, 40, 3), (9, 4, 1), (10, 20, 0)])
def test_mixed_rows_are_byzfls(byzfl: types.ModuleType, n: int, d: int, f: int) -> None:
    rows = rows_of(n, d) * np.linspace(0.5, 3, n)[:, None]
    for ours, theirs in (
        (NNM(f=f), byzfl.NNM(f)),
        (Clipping(4.0), byzfl.Clipping(4.0)),
        (ARC(), byzfl.ARC(f)),
    ):
        np.testing.assert_allclose(mixed(ours, rows, f), theirs(rows.copy()), atol=1e-5)


@pytest.mark.parametrize("s", [1, 2, 3, 5])
def test_buckets_hold_every_row_once(s: int) -> None:
    rows = rows_of(13, 20)
    geometry, _ = measure(as_rows(rows))
    matrix = Bucketing(s).matrix(geometry, 0, np.random.default_rng(3))
    assert matrix.shape == (-(-13 // s), 14)
    assert ((matrix[:, :-1] > 0).sum(axis=0) == 1).all()
    assert (matrix[:, -1] == 0).all()
    np.testing.assert_allclose(matrix.sum(axis=1), 1)
    other = Bucketing(s).matrix(geometry, 0, np.random.default_rng(4))
    assert s == 1 or not np.array_equal(matrix, other)


@pytest.mark.parametrize("rule", [RandEigen(f=2), Mean(f=2), Median(f=2), TrimmedMean(f=2), Bulyan(f=2)])
@pytest.mark.parametrize("pre", [NNM(f=2), ARC(f=2), Clipping(5.0), Clipping(5.0) | NNM()], ids=str)
def test_mixing_the_table_is_mixing_the_rows(pre: Any, rule: Any) -> None:
    rows = rows_of(15, 30) * np.linspace(0.5, 3, 15)[:, None]
    rows[:2] += 4
    composed, by_hand = aggregate(rows, rule=pre | rule), aggregate(mixed(pre, rows), rule=rule)
    np.testing.assert_allclose(composed.mean, by_hand.mean, atol=1e-9)
    assert composed.weights.sum() == pytest.approx(1)
    assert any("mixed first" in note for note in composed.verdict.notes)


def test_the_composition_reads_left_to_right() -> None:
    rows = rows_of(13, 30)
    by_hand = mixed(NNM(f=2), mixed(Clipping(4.0), rows))
    composed = Clipping(4.0) | NNM(f=2) | RandEigen(f=2)
    assert isinstance(composed, Mixed)
    assert isinstance(composed.pre, Chain)
    np.testing.assert_allclose(composed(rows), RandEigen(f=2)(by_hand), atol=1e-9)
    np.testing.assert_allclose(composed(rows), (Clipping(4.0) | (NNM(f=2) | RandEigen(f=2)))(rows), atol=1e-9)
    assert composed.weighs_rows()
    assert not (NNM() | Median(f=2)).weighs_rows()
    with pytest.raises(TypeError):
        NNM() | 3


def test_clipping_pulls_the_answer_to_the_origin_and_says_how_far() -> None:
    rows = rows_of(12, 30) + 5
    result = aggregate(rows, rule=Clipping(1.0) | Mean(f=2))
    short = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(result.mean, short.mean(axis=0), atol=1e-12)
    assert 0 < result.verdict.scale < 0.1
    np.testing.assert_allclose(result.mean, result.verdict.scale * result.weights @ rows, atol=1e-12)
    nothing = aggregate(rows, rule=Clipping(0.0) | RandEigen(f=2))
    assert not nothing.mean.any()


def test_mixing_without_clipping_scales_nothing() -> None:
    for pre in (NNM(), Bucketing(2)):
        result = aggregate(rows_of(13, 30), rule=pre | RandEigen(f=2))
        assert result.verdict.scale == 1.0


@pytest.mark.parametrize("inner", INNER, ids=str)
@pytest.mark.parametrize("pre", PRES, ids=str)
@pytest.mark.parametrize("extreme", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extreme_rows_change_little(pre: Any, inner: Any, extreme: float, dtype: Any) -> None:
    if isinstance(inner, Mean) and extreme == 1e30 and not isinstance(pre, Clipping | ARC):
        pytest.skip("a mean has no defence against a row that can be read")
    rows = rows_of(15, 30, dtype)
    honest = rows[2:].mean(axis=0)
    rows[0], rows[1] = extreme, -extreme
    before = rows.copy()
    result = aggregate(rows, rule=pre | inner, seed=0)
    assert result.mean.dtype == dtype
    assert np.linalg.norm(result.mean - honest) < 3
    assert np.isfinite(result.weights).all()
    np.testing.assert_array_equal(rows, before)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_one_nan_row_does_not_stay_in_the_mix_as_it_does_in_byzfls(byzfl: types.ModuleType) -> None:
    rows = rows_of(12, 20)
    rows[3] = np.nan
    for theirs in (byzfl.NNM(2), byzfl.Clipping(3.0), byzfl.ARC(2), byzfl.Bucketing(2)):
        assert np.isnan(theirs(rows.copy())).any()
    for ours in (NNM(), Clipping(3.0), ARC(), Bucketing(2)):
        assert np.isfinite((ours | Mean(f=2))(rows)).all()


def test_clipping_and_arc_leave_the_callers_rows_alone_where_byzfl_overwrites_them(
    byzfl: types.ModuleType,
) -> None:
    torch = pytest.importorskip("torch")
    rows = rows_of(12, 20) * np.linspace(0.5, 3, 12)[:, None]
    for theirs in (byzfl.Clipping(1.0), byzfl.ARC(2)):
        theirs_rows = rows.copy()
        theirs(theirs_rows)
        assert not np.array_equal(theirs_rows, rows)
    for ours in (Clipping(1.0), ARC(f=2)):
        before, tensor = rows.copy(), torch.tensor(rows, requires_grad=True)
        (ours | Mean(f=2))(rows)
        (ours | Mean(f=2))(tensor)  # byzfl raises here
        np.testing.assert_array_equal(rows, before)
        np.testing.assert_array_equal(tensor.detach().numpy(), before)


@pytest.mark.parametrize("inner", [Mean(f=10), RandEigen(f=10), TrimmedMean(f=10)], ids=str)
def test_memory_stays_flat_where_byzfls_nnm_takes_forty_copies(inner: Any) -> None:
    rows = rows_of(50, 2**17, np.float32)
    tracemalloc.start()
    try:
        (NNM() | inner)(rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**20


@pytest.mark.parametrize("inner", INNER, ids=str)
def test_rows_can_be_permuted_shifted_and_scaled(inner: Any) -> None:
    rows, shift = rows_of(15, 40), rows_of(1, 40, seed=9)
    rule = NNM() | inner
    answer, order = rule(rows), np.random.default_rng(1).permutation(15)
    np.testing.assert_allclose(rule(rows[order]), answer, atol=1e-10)
    np.testing.assert_allclose(rule(rows + 100 * shift), answer + 100 * shift[0], atol=1e-9)
    for scale in (1e-6, 1e6, 1e30):
        np.testing.assert_allclose(rule(rows * scale), answer * scale, rtol=1e-7, atol=1e-9 * scale)
        np.testing.assert_allclose((ARC() | inner)(rows * scale), (ARC() | inner)(rows) * scale, rtol=1e-7)
        clipped = (Clipping(4.0 * scale) | inner)(rows * scale)
        np.testing.assert_allclose(clipped, (Clipping(4.0) | inner)(rows) * scale, rtol=1e-7)


@pytest.mark.parametrize("pre", [NNM(), Bucketing(2), Clipping(100.0), ARC(), Bucketing(3) | NNM()], ids=str)
def test_small_and_dull_inputs_have_answers(pre: Any) -> None:
    alone = rows_of(1, 6)
    np.testing.assert_allclose((pre | RandEigen(f=0))(alone), alone[0])
    equal = np.tile(rows_of(1, 6), (9, 1))
    np.testing.assert_allclose((pre | RandEigen(f=1))(equal), equal[0])
    plain = rows_of(9, 6)
    assert np.linalg.norm((pre | RandEigen(f=0))(plain) - plain.mean(axis=0)) < 0.5


def test_the_larger_f_of_the_two_stages_counts() -> None:
    rows = rows_of(20, 30)
    assert aggregate(rows, rule=NNM(f=4) | RandEigen(f=2)).f == 4
    assert aggregate(rows, rule=NNM(f=1) | RandEigen(eps=0.2)).f == 4
    assert aggregate(rows, rule=ARC(eps=0.3) | Clipping(2.0) | Mean()).f == 6


def test_buckets_that_byzantine_rows_could_hold_half_of_are_refused() -> None:
    rows = rows_of(12, 30)
    with pytest.raises(BadFraction, match=r"makes 4 buckets of 12 rows, and f=2.*s of at most 2"):
        (Bucketing(3) | RandEigen(f=2))(rows)
    (Bucketing(2) | RandEigen(f=2))(rows)
    with pytest.raises(BadFraction, match="at least 11 rows, found 10"):
        (Bucketing(2) | Bulyan(f=2))(rows_of(20, 4))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, None])
def test_buckets_hold_a_whole_number_of_rows(wrong: Any) -> None:
    with pytest.raises(BadParameter):
        Bucketing(wrong)


def test_parameters_are_checked_before_any_row_is_seen() -> None:
    for wrong in (-1.0, np.nan, np.inf):
        with pytest.raises(BadParameter):
            Clipping(wrong)
    with pytest.raises(BadFraction):
        NNM(eps=0.1, f=1)
    with pytest.raises(BadFraction):
        ARC(eps=0.5)


def test_the_certificate_holds_on_the_rows_as_they_came() -> None:
    rows = rows_of(20, 50)
    rows[:4] += 2
    for rule in (NNM() | RandEigen(f=4), Bucketing(2) | RandEigen(f=4), NNM() | Median(f=4)):
        result = aggregate(rows, rule=rule, seed=0)
        honest = result.weights[4:] / result.weights[4:].sum() @ rows[4:]
        assert np.linalg.norm(result.mean - honest) <= result.bias_bound


def test_claims_of_example_counts_pass_through_the_mix() -> None:
    rows = rows_of(8, 30)
    claims = np.array([1.0, 1, 1, 2, 2, 2, np.nan, 1])
    result = aggregate(rows, rule=Clipping(1e6) | Mean(f=1), row_weights=claims)
    np.testing.assert_allclose(result.mean, np.nan_to_num(claims) / 10 @ rows, atol=1e-12)
    for pre in (NNM(), Bucketing(2)):
        assert aggregate(rows, rule=pre | Mean(f=1), row_weights=claims).weights[6] == 0


def test_columns_of_tensors_are_mixed_where_they_are() -> None:
    torch = pytest.importorskip("torch")
    rows = rows_of(13, 500, np.float32)
    for rule in (NNM() | Median(f=2), Clipping(3.0) | NNM() | TrimmedMean(f=2)):
        answer = rule(torch.tensor(rows))
        assert answer.dtype == torch.float32
        np.testing.assert_allclose(answer.numpy(), rule(rows), atol=1e-5)


def test_compositions_are_values() -> None:
    assert (NNM(f=2) | RandEigen(f=2)) == (NNM(f=2) | RandEigen(f=2))
    assert (NNM(f=2) | RandEigen(f=2)) != (NNM(f=1) | RandEigen(f=2))
    assert hash(Clipping(1.0) | NNM()) == hash(Clipping(1.0) | NNM())
    assert repr(NNM(f=2) | Mean(f=2)) == "Mixed(pre=NNM(eps=None, f=2), rule=Mean(eps=None, f=2))"


def test_a_trusted_row_is_found_again_when_others_fall_out() -> None:
    rows = rows_of(13, 30)
    rows[2] = np.nan
    alone = (Clipping(4.0) | MoNNA(f=2, trusted=5))(rows)
    np.testing.assert_allclose(alone, (Clipping(4.0) | MoNNA(f=1, trusted=4))(np.delete(rows, 2, axis=0)))
    with pytest.raises(BadParameter, match="leaves no row in place"):
        Bucketing(2) | MoNNA(f=2, trusted=5)
    assert np.isfinite((Bucketing(2) | (NNM() | RandEigen(f=2)))(rows)).all()


def test_the_bound_of_clipped_columns_is_measured_from_the_clipped_mean() -> None:
    rows = np.random.default_rng(0).standard_normal((20, 700))
    result = aggregate(rows, rule=Clipping(1.0) | Median(f=2))
    assert np.linalg.norm(result.mean) < 1
    assert result.bias_bound < 2  # rows are 26 long; from the mean of unclipped ones it would be more
