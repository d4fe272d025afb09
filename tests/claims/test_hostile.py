"""Attacks on the arithmetic: try to blind it, stall it, overflow it, crash it."""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import numpy as np
import pytest

import randeigen
from clouds import gaussian, with_byzantine
from randeigen import BadFraction, BadParameter, BadRows, RandEigen, TooManyCorrupt
from randeigen.geometry import measure
from randeigen.rows import as_rows

N, D, F = 30, 2000, 6


@pytest.fixture
def rows() -> np.ndarray:
    return gaussian(N, D).astype(np.float32)


def honest_error(result: Any, rows: np.ndarray, byzantine: int) -> float:
    honest = np.asarray(rows[byzantine:], dtype=np.float64)
    return float(np.linalg.norm(result.mean - honest.mean(0)))


@pytest.mark.parametrize("size", [1e3, 1e8, 1e15, 1e19, 1e30, 3e38])
@pytest.mark.parametrize("byzantine", [1, F])
def test_rows_of_any_size_do_not_blind_the_table_to_the_others(
    rows: np.ndarray, size: float, byzantine: int
) -> None:
    alone = randeigen.aggregate(rows[byzantine:], f=F, seed=0)
    rows[:byzantine] = np.float32(size)
    result = randeigen.aggregate(rows, f=F, seed=0)
    assert not result.kept[:byzantine].any()
    assert honest_error(result, rows, byzantine) < 0.5
    assert np.isfinite(result.bias_bound)
    assert result.bias_bound == pytest.approx(alone.bias_bound, rel=0.2)


@pytest.mark.parametrize("byzantine", [1, F])
def test_byzantine_rows_behind_a_extreme_decoy_are_still_seen(rows: np.ndarray, byzantine: int) -> None:
    rows[1 : byzantine + 1] += 20.0
    rows[0] = 1e30
    result = randeigen.aggregate(rows, f=F + 1)
    assert result.weights[: byzantine + 1].sum() < 0.01


def test_a_extreme_number_in_a_single_column_is_enough(rows: np.ndarray) -> None:
    rows[0, 1234] = -3e38
    result = randeigen.aggregate(rows, f=1)
    assert not result.kept[0]
    assert honest_error(result, rows, 1) < 0.5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 1999, slice(None)])
def test_a_row_that_is_not_finite_gets_no_weight_and_uses_up_one_of_f(
    rows: np.ndarray, bad: float, where: Any
) -> None:
    rows[4, where] = bad
    result = randeigen.aggregate(rows, f=2, seed=0)
    without = randeigen.aggregate(np.delete(rows, 4, 0), f=1, seed=0)
    assert result.weights[4] == 0
    assert "not finite" in result.unusable[4]
    np.testing.assert_allclose(np.delete(result.weights, 4), without.weights, atol=1e-6)
    np.testing.assert_allclose(result.mean, without.mean, atol=1e-6)
    assert result.bias_bound == pytest.approx(without.bias_bound, rel=1e-4)


@pytest.mark.parametrize("kind", ["gram", "sketch", "gaussian", "short rows"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_every_geometry_finds_rows_that_are_not_finite(kind: str, bad: float) -> None:
    rows = gaussian(20, 5 if kind == "short rows" else 5000)
    rows[3, 2] = bad
    result = randeigen.aggregate(rows, f=2, geometry="auto" if kind == "short rows" else kind)
    assert list(result.unusable) == [3]
    assert np.isfinite(result.mean).all()


def test_more_unusable_rows_than_byzantine_rows_fails_closed_and_names_them(rows: np.ndarray) -> None:
    rows[[3, 7, 9]] = np.nan
    with pytest.raises(TooManyCorrupt, match=r"3 of 30 rows.*at most 2.*row 3.*row 7.*row 9.*on_excess") as e:
        randeigen.aggregate(rows, f=2)
    assert e.value.rows == (3, 7, 9)


def test_dropping_the_excess_says_so_and_claims_no_less_corruption(rows: np.ndarray) -> None:
    rows[[3, 7, 9]] = np.nan
    result = randeigen.aggregate(rows, f=2, on_excess="drop")
    assert any("3 unusable rows were dropped" in note for note in result.verdict.notes)
    alone = randeigen.aggregate(np.delete(rows, [3, 7, 9], 0), f=2)
    assert result.bias_bound == pytest.approx(alone.bias_bound, rel=1e-4)


def test_nothing_but_nan_is_an_error_even_when_dropping(rows: np.ndarray) -> None:
    rows[:] = np.nan
    with pytest.raises(TooManyCorrupt):
        randeigen.aggregate(rows, f=2, on_excess="drop")


@pytest.mark.parametrize("eps", [0.1, 0.3])
def test_no_cloud_makes_it_loop_for_long(eps: float) -> None:
    """Rows at every order of magnitude: each round kills the farthest and leaves the next one to rule."""
    for ladder in (
        2.0 ** np.arange(200),
        1.01 ** np.arange(200),
        np.concatenate((np.zeros(100), np.arange(100))),
    ):
        rows = gaussian(200, 50)
        rows *= ladder[:, None]
        began = time.perf_counter()
        result = randeigen.aggregate(rows, eps=eps)
        assert result.verdict.rounds <= 200
        assert time.perf_counter() - began < 20  # a hang, not a speed


def test_negligible_weight_sets_no_scale() -> None:
    """Where byzfl's CAF hangs: after the first round the far rows weigh 0 but would still be the maximum."""
    for size in (1e5, 1e6, 1e8, 1e10, 1e15, 1e30):
        rows = gaussian(12, 20)
        rows[0], rows[1] = size, -size
        result = randeigen.aggregate(rows, f=2)
        assert not result.kept[:2].any()
        assert honest_error(result, rows, 2) < 1.5


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_very_few_rows(n: int) -> None:
    rows = gaussian(n, 10)
    result = randeigen.aggregate(rows, eps=0.4)
    assert np.isfinite(result.mean).all()
    assert result.weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e30, 1e-30])
def test_all_rows_equal_is_that_row_with_certainty(value: float) -> None:
    result = randeigen.aggregate(np.full((9, 17), value, dtype=np.float32), eps=0.3)
    np.testing.assert_allclose(result.mean, np.float32(value), rtol=1e-6)
    assert result.bias_bound <= 1e-6 * value


def test_a_majority_of_equal_rows_wins_over_a_few_others() -> None:
    rows = np.ones((10, 5))
    rows[:3] = [[5.0], [-7.0], [100.0]]
    result = randeigen.aggregate(rows, f=3)
    np.testing.assert_allclose(result.mean, 1.0, atol=1e-9)


def test_rows_of_zeros_in_most_columns_are_measured_as_they_are() -> None:
    rows = np.zeros((20, 50_000), dtype=np.float32)
    rows[:, :10] = gaussian(20, 10)
    rows[0, 40_000:] = 3.0
    result = randeigen.aggregate(rows, f=2)
    assert not result.kept[0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_input_is_never_modified_and_its_dtype_comes_back(dtype: type) -> None:
    rows = with_byzantine(gaussian(20, 300), 4, "far").astype(dtype)
    rows[5, 7] = np.nan
    before = rows.copy()
    result = randeigen.aggregate(rows, f=5)
    np.testing.assert_array_equal(rows, before)
    assert result.mean.dtype == dtype
    assert not np.shares_memory(result.mean, rows)


def test_hostile_numbers_raise_no_warnings() -> None:
    rows = gaussian(20, 300).astype(np.float32)
    rows[0], rows[1], rows[2], rows[3] = np.nan, np.inf, 3e38, -3e38
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        randeigen.aggregate(rows, f=5)
        randeigen.aggregate(rows, f=5, geometry="sketch")


class TestReadings:
    """The number of passes over the rows is fixed, whatever they hold."""

    class Counted:
        def __init__(self, rows: np.ndarray) -> None:
            self.inner = as_rows(rows)
            self.n, self.d, self.unusable, self.passes = self.inner.n, self.inner.d, self.inner.unusable, 0
            self.segment_columns, self.on_host = self.inner.segment_columns, self.inner.on_host

        def blocks(self, multiple: int = 1) -> Any:
            self.passes += 1
            return self.inner.blocks(multiple)

        def answer(self) -> Any:
            return self.inner.answer()

    @pytest.mark.parametrize("hostile", ["nothing", "offset", "extreme", "nan", "faint"])
    def test_rows_are_read_once_to_measure(self, rows: np.ndarray, hostile: str) -> None:
        if hostile == "offset":
            rows += 1e4
        elif hostile == "extreme":
            rows[:F] = 1e30
        elif hostile == "nan":
            rows[:F, ::3] = np.nan
        elif hostile == "faint":
            rows *= 1e-25
        source = self.Counted(rows)
        measure(source)
        assert source.passes == 1


class TestPivot:
    """A shift that an adversary cannot choose."""

    def test_byzantine_rows_that_spike_the_pivot_do_not_blind_the_gram_matrix(self) -> None:
        rows = (gaussian(20, 500) + 1e4).astype(np.float32)
        rows[:8, 77] = 1e30  # two of three pivot rows will often be Byzantine with the same spike
        for seed in range(12):
            geometry, _ = measure(as_rows(rows), seed=seed)
            exact = rows[8:].astype(np.float64)
            exact -= exact.mean(0)
            between = geometry.squared_distances()[8:, 8:]
            true = ((exact[:, None] - exact[None]) ** 2).sum(-1)
            np.testing.assert_allclose(between, true, atol=1e-2 * true.max())


class TestCallersMistakes:
    """Errors before any pass over the data: what was asked, what was found, what to do."""

    @pytest.mark.parametrize("eps", [-0.1, 0.5, 0.6, 1, float("nan"), float("inf"), "0.1", True, None])
    def test_eps_outside_its_range(self, eps: Any, rows: np.ndarray) -> None:
        with pytest.raises(BadFraction):
            randeigen.aggregate(rows, eps=eps)

    @pytest.mark.parametrize("f", [-1, 15, 30, 1.5, "2", True])
    def test_f_outside_its_range(self, f: Any, rows: np.ndarray) -> None:
        with pytest.raises(BadFraction):
            randeigen.aggregate(rows, f=f)

    def test_two_promises_at_once(self, rows: np.ndarray) -> None:
        with pytest.raises(BadFraction, match=r"exactly one of eps.*found eps=0.1 and f=3"):
            randeigen.aggregate(rows, eps=0.1, f=3)
        with pytest.raises(BadFraction, match="exactly one"):
            randeigen.aggregate(rows, eps=0.1, rule=RandEigen(0.1))
        with pytest.raises(BadFraction, match="none of them"):
            randeigen.aggregate(rows)

    @pytest.mark.parametrize("rule", ["krum", 5, RandEigen, np.mean, object()])
    def test_a_rule_that_is_none(self, rule: Any, rows: np.ndarray) -> None:
        with pytest.raises(BadParameter, match="not a rule"):
            randeigen.aggregate(rows, rule=rule)

    def test_unknown_options(self, rows: np.ndarray) -> None:
        with pytest.raises(BadParameter, match=r"geometry='gramm'.*'gram'"):
            randeigen.aggregate(rows, eps=0.1, geometry="gramm")
        with pytest.raises(BadParameter, match="on_excess='ignore'"):
            randeigen.aggregate(rows, eps=0.1, on_excess="ignore")
        with pytest.raises(BadParameter, match="removal='hard'"):
            RandEigen(0.1, removal="hard")

    @pytest.mark.parametrize("seed", [0, 2**64, 2**70, 2**300, np.int8(3), np.uint64(2**64 - 1)])
    def test_any_whole_number_from_0_is_a_seed(self, seed: Any, rows: np.ndarray) -> None:
        rule = RandEigen(eps=0.2, removal="random")
        one, two = (randeigen.aggregate(rows, rule=rule, seed=seed) for _ in range(2))
        assert one.seed == seed
        assert type(one.seed) is int
        np.testing.assert_array_equal(one.weights, two.weights)

    @pytest.mark.parametrize("seed", [-1, 1.5, 2.0, "x", True, np.bool_(True), np.float64(3), -(2**70)])
    def test_a_seed_that_is_not_a_whole_number(self, seed: Any, rows: np.ndarray) -> None:
        with pytest.raises(BadParameter, match="seed"):
            randeigen.aggregate(rows, eps=0.1, seed=seed)


class TestClaimedWeights:
    """A number the sender wrote beside its vector is as hostile as the vector."""

    def test_they_are_ignored_unless_asked_for_and_capped_when_used(self) -> None:
        rows = gaussian(20, 50)
        result = randeigen.aggregate(rows, f=0, row_weights=[10] * 19 + [10**9])
        assert result.weights[-1] == pytest.approx(3 / 22)

    def test_honest_ones_weigh_the_mean(self) -> None:
        rows, counts = gaussian(20, 50), np.arange(10, 30)
        result = randeigen.aggregate(rows, f=0, row_weights=counts)
        np.testing.assert_allclose(result.mean, counts @ rows / counts.sum(), atol=1e-12)

    @pytest.mark.parametrize("claim", [np.nan, np.inf, -30, -np.inf])
    def test_nonsense_costs_its_sender_all_weight(self, claim: float) -> None:
        result = randeigen.aggregate(gaussian(20, 50), f=2, row_weights=[10.0] * 19 + [claim])
        assert result.weights[-1] == 0
        assert np.isfinite(result.mean).all()

    def test_the_certificate_takes_them_into_account(self) -> None:
        rows = gaussian(20, 50)
        even = randeigen.aggregate(rows, rule=randeigen.rules.Mean(f=1))
        heavy = randeigen.aggregate(rows, rule=randeigen.rules.Mean(f=1), row_weights=[1.0] * 19 + [3.0])
        assert heavy.bias_bound > even.bias_bound

    @pytest.mark.parametrize(
        "claim", [None, "30", b"30", "x", 1j, [3], {}, 10**400, np.datetime64("2020")], ids=type
    )
    def test_what_is_no_number_costs_its_sender_all_weight_too(self, claim: Any) -> None:
        result = randeigen.aggregate(gaussian(20, 50), f=2, row_weights=[10] * 19 + [claim])
        assert result.weights[-1] == 0
        assert np.isfinite(result.mean).all()

    @pytest.mark.parametrize("claim", [2**70, 1e308, np.float32(3e38), np.uint64(2**64 - 1), 10**300])
    def test_huge_claims_are_capped(self, claim: Any) -> None:
        result = randeigen.aggregate(gaussian(20, 50), f=0, row_weights=[10] * 19 + [claim])
        assert result.weights[-1] == pytest.approx(3 / 22)
        heavy = randeigen.aggregate(gaussian(20, 50), f=0, row_weights=[10] * 19 + [claim], cap=float("inf"))
        assert heavy.weights[-1] == pytest.approx(1, abs=1e-6)

    def test_they_come_in_any_form_that_holds_numbers(self) -> None:
        torch = pytest.importorskip("torch")
        rows, counts = gaussian(6, 20), [3, 1, 2, 2, 1, 3]
        wanted = randeigen.aggregate(rows, f=1, row_weights=counts, seed=0).weights
        forms = [
            tuple(counts), np.array(counts, np.int8), np.array(counts, np.float16), np.array(counts, object),
            torch.tensor(counts), torch.tensor(counts, dtype=torch.bfloat16, requires_grad=False),
            torch.tensor([float(c) for c in counts], requires_grad=True), [np.float32(c) for c in counts],
            [torch.tensor(c) for c in counts], range(6),
        ]  # fmt: skip
        for form in forms[:-1]:
            np.testing.assert_array_equal(
                randeigen.aggregate(rows, f=1, row_weights=form, seed=0).weights, wanted
            )
        assert randeigen.aggregate(rows, f=1, row_weights=forms[-1], seed=0).weights.sum() == pytest.approx(1)

    @pytest.mark.parametrize(
        "claims",
        [
            "abcd", b"abcd", 3, 3.0, object(), {0: 1, 1: 1, 2: 1, 3: 1}, {1, 2, 3, 4}, iter([1, 1, 1, 1]),
            ["1", "2", "3", "4"], [None] * 4, np.array(["1", "2", "3", "4"]), np.ones(4, complex),
            np.array(["2020"] * 4, "M8[Y]"), np.ones((4, 1)), np.ones((1, 4)), np.ones(()), [[1]] * 4,
            [], [1, 1, 1], [1] * 5, [0, 0, 0, 0], [np.nan] * 4, [-1] * 4, [np.inf] * 4,
            np.ones((2, 2), object),
        ],
        ids=lambda claims: repr(claims).partition(" at 0x")[0],
    )  # fmt: skip
    def test_what_holds_no_claims_is_the_callers_mistake(self, claims: Any) -> None:
        with pytest.raises(BadRows, match="row_weights"):
            randeigen.aggregate(gaussian(4, 5), f=1, row_weights=claims)

    @pytest.mark.parametrize("cap", [0.5, np.nan, "3", None, True])
    def test_a_cap_is_a_ratio_from_1(self, cap: Any) -> None:
        with pytest.raises(BadParameter, match="cap="):
            randeigen.aggregate(gaussian(4, 5), f=1, row_weights=[1] * 4, cap=cap)

    @pytest.mark.parametrize("on_excess", ["raise", "drop"])
    def test_rows_left_that_all_claim_0_count_the_same(self, on_excess: str) -> None:
        rows = np.array([[np.nan]] * 2 + [[1.0], [2.0], [3.0]])
        f = 2 if on_excess == "raise" else 1
        result = randeigen.aggregate(rows, f=f, on_excess=on_excess, row_weights=[1, 1, 0, 0, 0])
        np.testing.assert_allclose(result.mean, [2.0])
        assert any("no usable row claims a positive weight" in note for note in result.verdict.notes)

    def test_a_lone_row_left_that_claims_0_is_the_answer(self) -> None:
        rows = np.array([[np.nan], [np.nan], [np.nan], [1.0]])
        result = randeigen.aggregate(rows, f=1, on_excess="drop", row_weights=[1, 1, 1, 0])
        assert result.mean == 1
        assert result.bias_bound == np.inf

    @pytest.mark.parametrize("claim", [0, 1, 10**9, np.nan, -1, "x"])
    def test_what_an_unusable_row_claims_changes_nothing(self, claim: Any) -> None:
        rows, claims = gaussian(9, 20), [5, 7, 3, 9, 4, 6, 8, 2, 1]
        rows[3] = np.nan
        wanted = randeigen.aggregate(rows, f=2, row_weights=claims, seed=0)
        claims[3] = claim
        found = randeigen.aggregate(rows, f=2, row_weights=claims, seed=0)
        np.testing.assert_array_equal(found.weights, wanted.weights)

    def test_senders_who_claim_0_cannot_stop_the_call(self) -> None:
        rows = gaussian(5, 10)
        result = randeigen.aggregate(rows, f=2, row_weights=[0, 0, 0, 10, 10])
        assert np.isfinite(result.mean).all()

    def test_nonsense_from_more_than_f_rows_is_not_their_fault(self) -> None:
        rows = with_byzantine(gaussian(10, 20), 3, "far")
        result = randeigen.aggregate(rows, f=3, row_weights=[1, 1, 1] + [np.nan] * 7)
        assert np.linalg.norm(result.mean - rows[3:].mean(0)) < 2
        assert any("7 usable rows claim no number from 0" in note for note in result.verdict.notes)

    @pytest.mark.parametrize("n", [4, 5, 6, 8, 12, 20])
    @pytest.mark.parametrize("share", [0.2, 0.25, 0.3, 0.4])
    def test_f_senders_who_claim_the_most_do_not_decide(self, n: int, share: float) -> None:
        f = min(math.ceil(share * n), (n - 1) // 2)
        for seed in range(3):
            rng = np.random.default_rng([n, f, seed])
            honest, direction = rng.standard_normal((n - f, 10)), rng.standard_normal(10)
            spread = math.sqrt(np.linalg.norm(np.cov(honest.T, bias=True), 2))
            claims = np.append(np.full(f, 1e9), np.ceil(np.exp(4 + rng.standard_normal(n - f))))
            for far in (1, 3, 30, 1000):
                lies = honest.mean(0) + far * spread * direction / np.linalg.norm(direction)
                rows = np.vstack((np.tile(lies, (f, 1)), honest))
                result = randeigen.aggregate(rows, f=f, row_weights=claims)
                assert np.linalg.norm(result.mean - honest.mean(0)) < 2 * spread
                (note,) = (note for note in result.verdict.notes if "row_weights" in note)
                assert f"the {f} heaviest of {n} usable rows would hold" in note

    def test_claims_are_mixed_until_the_heaviest_hold_a_third(self) -> None:
        rows = gaussian(12, 30)
        result = randeigen.aggregate(rows, rule=randeigen.rules.Mean(f=3), row_weights=[100] * 3 + [1] * 9)
        assert result.weights[:3].sum() == pytest.approx(1 / 3)
        even = randeigen.aggregate(rows, rule=randeigen.rules.Mean(f=5), row_weights=[100] * 3 + [1] * 9)
        np.testing.assert_allclose(even.weights, 1 / 12)

    def test_mistakes_are_named(self) -> None:
        with pytest.raises(BadRows, match=r"shape \(3,\).*20 rows"):
            randeigen.aggregate(gaussian(20, 50), f=2, row_weights=[1, 2, 3])
        with pytest.raises(BadParameter, match=r"cap=0\.5"):
            randeigen.aggregate(gaussian(20, 50), f=2, row_weights=[1.0] * 20, cap=0.5)
        with pytest.raises(BadRows, match="median is not positive"):
            randeigen.aggregate(gaussian(20, 50), f=2, row_weights=[0.0] * 20)
