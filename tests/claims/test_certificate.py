"""The certificate: thousands of attempts to violate it, with weights of every origin."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import randeigen
from clouds import ATTACKS, HONEST, gaussian, with_byzantine
from randeigen import RandEigen, rules
from randeigen.certificate import corruptible, meaning
from randeigen.geometry import measure
from randeigen.rows import as_rows

RULES = [
    RandEigen(f=4),
    RandEigen(f=4, removal="random"),
    RandEigen.as_published(0.2),
    rules.Filtering(f=4, gamma=1.0),
    rules.Filtering.converging(f=4),
    rules.Mean(f=4),
]


def moved(rows: np.ndarray, weights: np.ndarray, byzantine: np.ndarray) -> float:
    """How far these Byzantine rows moved the weighted mean from that of the honest rows alone."""
    honest = np.where(byzantine, 0.0, weights)
    if honest.sum() == 0:
        return math.inf
    return float(np.linalg.norm(weights @ rows - honest @ rows / honest.sum()))


@pytest.mark.parametrize("seed", range(25))
def test_no_choice_of_byzantine_rows_violates_it_for_any_weights(seed: int) -> None:
    """1,000 clouds: random weights, random Byzantine sets, and Byzantine rows where the bound is tight."""
    rng = np.random.default_rng(seed)
    for _ in range(40):
        n, d, f = int(rng.integers(2, 25)), int(rng.integers(1, 30)), 0
        f = int(rng.integers(0, n))
        rows = rng.standard_normal((n, d)) * np.exp(3 * rng.standard_normal((n, 1)))
        weights = rng.random(n) ** rng.integers(1, 6) * (rng.random(n) > 0.2)
        if weights.sum() == 0:
            continue
        byzantine = np.zeros(n, dtype=bool)
        byzantine[rng.choice(n, f, replace=False)] = True
        if rng.random() < 0.5:  # all Byzantine rows at one point, all honest rows at another: equality
            rows[byzantine], rows[~byzantine] = rng.standard_normal(d), rng.standard_normal(d)
        if rng.random() < 0.3:  # and the heaviest rows lie
            byzantine = np.argsort(np.argsort(weights)) >= n - f
        weights /= weights.sum()
        geometry, _ = measure(as_rows(rows), seed=seed)
        bound = randeigen.certify(geometry, weights, f)
        assert moved(rows, weights, byzantine) <= bound * (1 + 1e-9) + 1e-12


def test_it_is_tight() -> None:
    rows = np.zeros((10, 3))
    rows[:2] = 1.0
    byzantine = np.arange(10) < 2
    result = randeigen.aggregate(rows, rule=rules.Mean(f=2))
    assert result.bias_bound == pytest.approx(moved(rows, result.weights, byzantine), rel=1e-6)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("cloud", HONEST)
@pytest.mark.parametrize("attack", ATTACKS)
def test_it_holds_for_the_weights_of_every_rule(rule: rules.RandEigen, cloud: str, attack: str) -> None:
    rows = with_byzantine(HONEST[cloud](20, 60), 4, attack)
    result = randeigen.aggregate(rows, rule=rule, seed=0)
    assert moved(rows, result.weights, np.arange(20) < 4) <= result.bias_bound * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["gram", "sketch", "gaussian"])
@pytest.mark.parametrize("seed", range(5))
def test_it_holds_on_a_sketch_too(kind: str, seed: int) -> None:
    rows = with_byzantine(gaussian(20, 30_000, seed), 4, "sqrt_d").astype(np.float32)
    result = randeigen.aggregate(rows, f=4, geometry=kind, seed=seed)
    assert moved(rows, result.weights, np.arange(20) < 4) <= result.bias_bound


def test_float32_rounding_is_added_to_what_it_claims() -> None:
    """Rows that differ in the last bits of a float32: what the table cannot see, the bound must allow."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows = (1 + 1e-6 * rng.standard_normal((8, 2000))).astype(np.float32)
        result = randeigen.aggregate(rows, rule=rules.Mean(f=3))
        worst = max(
            moved(rows.astype(np.float64), result.weights, np.isin(np.arange(8), rng.choice(8, 3, False)))
            for _ in range(20)
        )
        assert worst <= result.bias_bound


@settings(max_examples=200)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(0, 25))
def test_the_corruptible_share_is_that_of_the_heaviest_rows(weights: list[float], f: int) -> None:
    ordered = sorted(weights, reverse=True)
    held, rest = corruptible(np.array(weights), f)
    assert held == pytest.approx(sum(ordered[:f]))
    assert rest == pytest.approx(sum(ordered[f:]))


def test_when_byzantine_rows_may_hold_all_the_weight_nothing_is_promised() -> None:
    geometry, _ = measure(as_rows(gaussian(5, 4)))
    one = np.eye(5)[2]
    assert randeigen.certify(geometry, one, 1) == math.inf
    assert randeigen.certify(geometry, one, 0) == 0


def test_rules_can_be_compared_by_it_on_live_data() -> None:
    rows = with_byzantine(gaussian(40, 300), 8, "far")
    plain = randeigen.aggregate(rows, rule=rules.Mean(f=8)).bias_bound
    assert randeigen.aggregate(rows, f=8).bias_bound < plain / 10


class TestWhatTheCallerStated:
    """The certificate covers f or ceil(eps·n) corrupt rows, or it is inf."""

    @pytest.mark.parametrize("n", range(1, 7))
    @pytest.mark.parametrize("eps", [1e-12, 0.01, 0.1, 0.2, 0.25, 0.34, 0.49])
    @pytest.mark.parametrize("rule", [RandEigen, rules.Mean, rules.Median, rules.GeometricMedian])
    def test_so_few_rows_that_eps_is_half_of_them_have_no_bound(self, rule: Any, n: int, eps: float) -> None:
        rows = np.zeros((n, 2))
        rows[-1] = 1e6
        f = max(math.ceil(eps * n - 1e-9), 1)
        result = randeigen.aggregate(rows, rule=rule(eps), seed=0)
        assert result.f == f
        if 2 * f >= n:
            assert result.bias_bound == math.inf
            assert any("bias_bound is inf" in note for note in result.verdict.notes)
        else:
            reference = result.weights @ rows
            away = np.linalg.norm(result.mean - reference)
            for byzantine in itertools.combinations(range(n), f):
                off = moved(rows, result.weights, np.isin(np.arange(n), byzantine)) + away
                assert off <= result.bias_bound * (1 + 1e-6)

    @pytest.mark.parametrize("rule", [RandEigen(f=0), RandEigen(0.0), rules.Mean(f=0), rules.Krum(f=0)])
    @pytest.mark.parametrize("n", range(1, 7))
    def test_where_f_is_0_the_bound_is_0(self, rule: Any, n: int) -> None:
        result = randeigen.aggregate(1e6 * gaussian(n, 3), rule=rule, seed=0)
        assert (result.f, result.bias_bound) == (0, 0.0)

    def test_a_stage_before_the_rule_states_too(self) -> None:
        rows = gaussian(10, 3)
        assert randeigen.aggregate(rows, rule=rules.NNM(0.49) | RandEigen(0.1)).bias_bound == math.inf
        assert randeigen.aggregate(rows, rule=rules.NNM() | RandEigen(0.1)).bias_bound < math.inf

    @pytest.mark.parametrize("n", [3, 4, 5, 6, 8, 12])
    @pytest.mark.parametrize("f", [0, 1, 2, 3])
    def test_dropping_more_rows_than_f_leaves_f_among_the_rest(self, n: int, f: int) -> None:
        for gone in range(f + 1, n):
            if 2 * f >= n:
                continue
            rows = np.zeros((n, 2))
            rows[:gone], rows[-1] = np.nan, 1e6
            result = randeigen.aggregate(rows, f=f, on_excess="drop", seed=0)
            left = n - gone
            assert result.f == f
            assert any("were dropped although" in note for note in result.verdict.notes)
            if f and 2 * f >= left:
                assert result.bias_bound == math.inf
                continue
            usable, weights = rows[gone:], result.weights[gone:]
            for byzantine in itertools.combinations(range(left), f):
                off = moved(usable, weights, np.isin(np.arange(left), byzantine))
                assert off <= result.bias_bound * (1 + 1e-6) + 1e-9

    def test_three_of_five_dropped_is_no_certain_mean(self) -> None:
        rows = np.array([[np.nan]] * 3 + [[0.0], [1e6]])
        result = randeigen.aggregate(rows, f=2, on_excess="drop")
        assert result.bias_bound == math.inf
        assert any("2 of 2 usable rows were assumed corrupt" in note for note in result.verdict.notes)

    @pytest.mark.parametrize(
        ("rule", "n", "gone"),
        [
            (rules.Krum(f=3), 10, 4),
            (rules.MultiKrum(f=3), 10, 5),
            (rules.Bulyan(f=2), 11, 4),
            (rules.TrimmedMean(f=3), 10, 6),
            (rules.Bucketing(2) | rules.TrimmedMean(f=2), 12, 5),
            (rules.Bucketing(2) | RandEigen(f=2), 12, 8),
            (rules.NNM() | rules.Krum(f=3), 10, 6),
            (rules.MDA(f=3), 10, 6),
        ],
        ids=repr,
    )
    def test_a_rule_that_tolerates_fewer_of_the_rest_answers_and_says_so(
        self, rule: Any, n: int, gone: int
    ) -> None:
        rows = gaussian(n, 4)
        rows[:gone] = np.nan
        result = randeigen.aggregate(rows, rule=rule, on_excess="drop", seed=0)
        assert np.isfinite(result.mean).all()
        assert result.f == rule.assumed_corrupt(n)
        if 2 * result.f >= n - gone:
            assert result.bias_bound == math.inf


class TestTheOtherHalf:
    """How far the answer is from the plain mean, and who was cut together."""

    @pytest.mark.parametrize(
        "rule",
        [
            RandEigen(f=4),
            rules.Mean(f=4),
            rules.Krum(f=4),
            rules.Median(f=4),
            rules.TrimmedMean(f=4),
            rules.Bulyan(f=4),
            rules.Clipping(3.0) | rules.Mean(f=4),
            rules.NNM() | rules.Median(f=4),
            rules.Bucketing(2) | RandEigen(f=4),
        ],
        ids=repr,
    )
    @pytest.mark.parametrize("offset", [0.0, 1e3])
    @pytest.mark.parametrize("geometry", ["auto", "gram"])
    def test_the_distance_to_the_plain_mean_is_that(self, rule: Any, offset: float, geometry: str) -> None:
        rows = with_byzantine(gaussian(22, 300), 3, "sqrt_d") + offset
        rows[5] = np.nan
        result = randeigen.aggregate(rows, rule=rule, seed=1, geometry=geometry)
        usable = np.delete(rows, 5, axis=0)
        wanted = np.linalg.norm(result.mean - usable.mean(0))
        assert result.distance_to_mean == pytest.approx(wanted, rel=1e-6, abs=1e-9 * (1 + offset))

    @pytest.mark.parametrize("scale", [1e-150, 1e-30, 1e30, 1e150])
    @pytest.mark.parametrize("rule", [RandEigen(f=4), rules.Median(f=4)])
    def test_it_scales_with_the_rows(self, rule: Any, scale: float) -> None:
        rows = with_byzantine(gaussian(20, 50), 3, "far")
        one, other = (
            randeigen.aggregate(r, rule=rule, seed=0).distance_to_mean for r in (rows, rows * scale)
        )
        assert other / scale == pytest.approx(one, rel=1e-6)

    @pytest.mark.parametrize("dtype", [np.float16, np.float32])
    def test_it_holds_in_the_answers_own_precision(self, dtype: type) -> None:
        rows = with_byzantine(gaussian(30, 2000), 5, "sqrt_d").astype(dtype)
        result = randeigen.aggregate(rows, f=5)
        wanted = np.linalg.norm(result.mean.astype(float) - rows.astype(float).mean(0))
        assert result.distance_to_mean == pytest.approx(wanted, rel=1e-3)

    def test_the_plain_mean_is_at_distance_0(self) -> None:
        assert randeigen.aggregate(1e3 + gaussian(7, 20), f=0).distance_to_mean == 0
        again = randeigen.aggregate(1e3 + gaussian(7, 20), rule=rules.Mean(f=2))
        assert again.distance_to_mean < 1e-10  # but for the rounding of the sum

    def test_claims_do_not_change_what_the_plain_mean_is(self) -> None:
        rows = gaussian(10, 20)
        result = randeigen.aggregate(rows, f=1, row_weights=np.arange(1, 11))
        wanted = np.linalg.norm(result.mean - rows.mean(0))
        assert result.distance_to_mean == pytest.approx(wanted)

    def test_an_honest_minority_that_was_cut_is_named(self) -> None:
        rows = 1e-3 * np.random.default_rng(0).normal(size=(60, 3))
        rows[:20, 0] += 1
        result = randeigen.aggregate(rows, f=12)
        assert np.linalg.norm(result.mean - rows[:48].mean(0)) == pytest.approx(0.417, abs=0.01)
        assert result.bias_bound < 1e-3
        assert result.distance_to_mean == pytest.approx(1 / 3, abs=0.01)
        assert result.verdict.cut_together == (tuple(range(20)),)
        (note,) = (note for note in result.verdict.notes if "cut together" in note)
        assert note.startswith("rows 0, 1, 2, ")
        assert "agree with each other as closely as the kept rows do: they may be an honest minority" in note
        assert "they are 20 and only 12 usable rows may be corrupt" in note

    @pytest.mark.parametrize("d", [1, 3, 100])
    @pytest.mark.parametrize(("n", "few", "f"), [(60, 20, 12), (30, 8, 6), (100, 20, 10), (12, 4, 3)])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_minorities_of_other_shapes_are_named_too(
        self, n: int, few: int, f: int, d: int, dtype: type
    ) -> None:
        rng = np.random.default_rng([n, d])
        for noise in (0.0, 1e-3):
            rows = noise * rng.normal(size=(n, d)) + 7
            where = rng.permutation(n)[:few]
            rows[where] += 1 / math.sqrt(d)
            rows[0] = np.nan
            groups = randeigen.aggregate(rows.astype(dtype), f=f).verdict.cut_together
            assert {row for group in groups for row in group} >= set(where[where > 0][: few // 2].tolist())

    @pytest.mark.parametrize("cloud", HONEST)
    def test_a_tight_cluster_of_f_rows_may_be_either(self, cloud: str) -> None:
        rows = with_byzantine(HONEST[cloud](60, 200), 12, "far")
        result = randeigen.aggregate(rows, f=12)
        assert result.verdict.cut_together == (tuple(range(12)),)
        (note,) = (note for note in result.verdict.notes if "cut together" in note)
        assert "or, as they are no more than f = 12, corrupt rows that act as one" in note

    @pytest.mark.parametrize("cloud", HONEST)
    @pytest.mark.parametrize("d", [10, 500])
    def test_scattered_outliers_are_no_minority(self, cloud: str, d: int) -> None:
        rows = HONEST[cloud](60, d)
        for how in ("scattered", "flip"):
            assert randeigen.aggregate(with_byzantine(rows, 12, how), f=12).verdict.cut_together == ()
        assert randeigen.aggregate(rows, f=12).verdict.cut_together == ()

    def test_a_tight_group_beside_scattered_outliers_is_found(self) -> None:
        rows = with_byzantine(gaussian(80, 100), 5, "scattered")
        rows[5:15] += 3
        assert randeigen.aggregate(rows, f=20).verdict.cut_together == (tuple(range(5, 15)),)


class TestCertifyOnItsOwn:
    """Public, so its input is checked."""

    @pytest.mark.parametrize(
        ("weights", "f", "sentence"),
        [
            ([0.2] * 4, 1, r"shape \(4,\).*5 rows"),
            ([[0.2] * 5], 1, r"shape \(1, 5\)"),
            ([0.2, 0.2, 0.2, 0.2, math.nan], 1, "weight 4 is nan"),
            ([0.2, -0.2, 0.2, 0.2, 0.2], 1, r"weight 1 is -0\.2"),
            ([0.2, 0.2, math.inf, 0.2, 0.2], 1, "weight 2 is inf"),
            ([0.0] * 5, 1, "all 0"),
            (["a"] * 5, 1, "not numbers"),
            ([0.2] * 5, -1, "f=-1"),
            ([0.2] * 5, 6, "f=6 of 5 rows"),
            ([0.2] * 5, 1.0, "f=1.0"),
            ([0.2] * 5, True, "f=True"),
            ([0.2] * 5, None, "f=None"),
        ],
    )
    def test_mistakes_are_reported_in_a_sentence(self, weights: Any, f: Any, sentence: str) -> None:
        geometry, _ = measure(as_rows(gaussian(5, 4)))
        with pytest.raises(randeigen.RandEigenError, match=sentence):
            randeigen.certify(geometry, weights, f)

    def test_rows_are_no_geometry(self) -> None:
        with pytest.raises(randeigen.BadRows, match="geometry of the rows, found ndarray"):
            randeigen.certify(gaussian(5, 4), np.ones(5), 1)  # type: ignore[arg-type]

    @pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
    def test_only_the_ratios_of_weights_count(self, scale: float) -> None:
        geometry, _ = measure(as_rows(gaussian(5, 4)))
        one = randeigen.certify(geometry, np.arange(1.0, 6), 1)
        assert randeigen.certify(geometry, scale * np.arange(1.0, 6), 1) == pytest.approx(one)
        assert randeigen.certify(geometry, np.arange(1.0, 6), 5) == math.inf


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "path",
    [
        *(
            "README.md",
            "docs/threat-model.md",
            "docs/laboratory.md",
            "docs/training.md",
            "docs/departures.md",
        ),
        *("docs/rules.md", "src/randeigen/certificate.py", "src/randeigen/types.py", "src/randeigen/api.py"),
        *(
            "src/randeigen/cli/commands/aggregate.py",
            "src/randeigen/cli/audit.py",
            "src/randeigen/torch/group_verdict.py",
        ),
    ],
)
def test_what_it_means_is_one_sentence_wherever_it_is_shown(path: str) -> None:
    assert meaning() in " ".join((ROOT / path).read_text().split())


def test_nothing_reads_as_a_distance_to_the_honest_mean() -> None:
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.py"), ROOT / "pyproject.toml"]
    for path in texts:
        said = " ".join(path.read_text().split())
        for wrong in (
            "how far off it can be",
            "how far off the answer can be",
            "from the honest rows' mean`",
        ):
            assert wrong not in said, path
