"""Every loop of every rule ends, soon and with a named stop, whatever the table holds."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import pytest

from clouds import gaussian, with_byzantine
from randeigen import BadFraction, BadParameter, aggregate, rules
from randeigen.certificate import certify
from randeigen.geometry import measure
from randeigen.geometry.gram import GramGeometry
from randeigen.registry import build_rule
from randeigen.rows import as_rows
from randeigen.rules import (
    ARC,
    CAF,
    MDA,
    NNM,
    RULES,
    SMEA,
    Clipping,
    DnC,
    Filtering,
    Krum,
    Mean,
    RandEigen,
    rule_class,
)  # fmt: skip
from randeigen.rules.base import MAX_STAGES, Rule
from randeigen.rules.randeigen import (
    PATIENT_AND_HURRIED_ROUNDS,
    PATIENT_AND_HURRIED_ROUNDS_OF_MANY,
    hurried_share,
    reference_verdict,
    removed_at_random,
)
from randeigen.types import Array, Decision, Geometry, Stop, TopDirection, Verdict
from studies.variants import VARIANTS, SoftFilter

PROMISED = {name: parameter for name in RULES if (parameter := rule_class(name).known_variance)}
TRUSTING = tuple(name for name in RULES if rule_class(name).trusts_a_row)
SLOW = ("tukey", "semidefinite")
MIXING = ("nnm", "bucketing", "clipping:c=1.5", "arc", "nnm+nnm+nnm", "arc+bucketing", "nnm+clipping:c=0.5")
CERTIFYING = ("randeigen", "random", "caf", "median", "trimmed-mean")


def make(name: str, f: int) -> Any:
    """The rule by its name; a variance below any promised makes those that stop at one go on."""
    last = name.rpartition("+")[2]
    promised = f":{PROMISED[last]}=1e-30" if last in PROMISED else ""
    return build_rule(name + (":directions=40" if last == "tukey" else promised), None, f)


def clouds(n: int, f: int, d: int = 8) -> dict[str, Array]:
    """Rows that are one point, or nearly, or nearly so once a few are gone."""
    rng = np.random.default_rng([n, f])
    cloud, one, point = rng.normal(size=(n, d)), np.arange(n)[:, None] == n - 1, rng.normal(size=d)
    few = np.arange(n)[:, None] < f
    return {
        "zeros": np.zeros((n, d)),
        "one point": np.tile(point, (n, 1)),
        "all but one are one point": np.where(one, point + 1, point),
        "two points": np.where(few, point, -point),
        "two halves": np.where(np.arange(n)[:, None] < n // 2, 0.0, 1.0) * np.ones(d),
        "either side": np.outer((-1.0) ** np.arange(n), np.ones(d)),
        "a line": np.outer(np.arange(n), point),
        "doubling on a line": np.outer(2.0 ** np.minimum(np.arange(n), 40), point),
        "each on its own axis": np.eye(n, max(n, d)) * 1.1 ** np.minimum(np.arange(n), 90)[:, None],
        "one far away": np.where(one, 1e30 * cloud, cloud),
        "one far from one point": np.where(one, 1e30, 0.0) * np.ones(d),
        "rounding alone": 1 + 1e-15 * cloud,
        "every size": cloud * 10.0 ** np.linspace(-20, 20, n)[:, None],
        "twins": np.where(np.arange(n)[:, None] < n // 2, cloud, cloud[0]),
        "a few shifted": cloud + 20.0 * few,
        "a few in the middle": np.where(few, 0.01 * cloud[-1], cloud),
    }


def priors(n: int) -> dict[str, Array]:
    """Masses, some of them 0; in the last fewer rows have any than may be corrupt."""
    rng = np.random.default_rng(n)
    return {
        "even": np.ones(n),
        "half of them 0": np.where(rng.permutation(n) < n // 2, 0.0, 1.0),
        "any": rng.random(n) + 1e-3,
        "of every size": 10.0 ** -rng.integers(0, 18, n),
        "one row's": np.where(np.arange(n) == n // 2, 1.0, 0.0),
    }


def gram_of(rows: Array, kind: str = "gram") -> Geometry:
    geometry, unusable = measure(as_rows(rows), kind, 1)
    assert not unusable
    return geometry


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail, rather than wait for ever."""

    def late(*_: object) -> None:
        raise TimeoutError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def verdict_of(rule: Any, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
    """The rule's own, or the reference that its certificate leans on."""
    decision = (
        rule.decide(geometry, f, rng) if isinstance(rule, Rule) else Decision(rule.weigh(geometry, f, rng))
    )
    return decision.verdict or reference_verdict(decision, geometry, f, rng)


def judged(rule: Any, geometry: Geometry, f: int, seed: int = 0) -> Verdict:
    """The verdict, and what must hold of any."""
    with within(10):
        verdict = verdict_of(rule, geometry, f, np.random.default_rng(seed))
    assert isinstance(verdict.stop, Stop)
    assert np.isfinite(verdict.weights).all()
    assert (verdict.weights >= 0).all()
    assert verdict.weights.sum() == pytest.approx(1, abs=1e-9)
    assert np.isfinite(verdict.scale)
    assert verdict.rounds <= sum(PATIENT_AND_HURRIED_ROUNDS) + 2 or verdict.rounds <= geometry.n + 1
    return verdict


def sizes(name: str, ns: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Numbers of rows and of corrupt ones that the rule takes: none, and as many as it can."""
    for n in ns:
        for f in {0, (n - 1) // 3, (n - 1) // 2}:
            try:
                make(name, f).assumed_corrupt(n)
            except BadFraction:
                continue
            yield n, f


@pytest.mark.parametrize("name", RULES)
def test_every_rule_has_an_answer_for_every_gram_matrix_and_every_prior(name: str) -> None:
    kind = "sketch" if name == "tukey" else "gram"
    for n, f in sizes(name, (1, 3, 11) if name in SLOW else (1, 2, 3, 4, 5, 11)):
        rule = make(name, f)
        for cloud, rows in clouds(n, f).items():
            geometry = gram_of(rows, kind)
            for prior in priors(n).values() if n == 3 or (n == 11 and name not in SLOW) else [np.ones(n)]:
                verdict = judged(rule, geometry.with_prior_weights(prior), f)
                if name not in TRUSTING:
                    assert not verdict.weights[prior == 0].any(), cloud


@pytest.mark.parametrize("name", ["randeigen", "random", "caf", "filtering", "zhu-filtering", "no-regret"])
@pytest.mark.parametrize("n", [50, 100])
def test_more_rows_end_as_well(name: str, n: int) -> None:
    for f in (n // 10, (n - 1) // 2):
        for rows in clouds(n, f, 60).values():
            judged(make(name, f), gram_of(rows), f)


@pytest.mark.parametrize("mixing", MIXING)
@pytest.mark.parametrize("name", [name for name in RULES if not name.startswith(("tukey", "semi"))])
def test_mixed_rows_that_became_one_point_are_judged(mixing: str, name: str) -> None:
    if "bucketing" in mixing and name in TRUSTING:
        pytest.skip("buckets leave no row in its place")
    try:
        rule = make(f"{mixing}+{name}", 2)
        rule.assumed_corrupt(12)
    except BadFraction:
        pytest.skip("too few rows")
    for rows in clouds(12, 2).values():
        judged(rule, gram_of(rows), 2)
    judged(rule, gram_of(clouds(12, 2)["a few shifted"]).with_prior_weights(priors(12)["of every size"]), 2)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 40])
def test_the_deepest_point_of_a_plane_is_found_in_every_table(n: int) -> None:
    turn = 2 * np.pi * np.arange(n) / n
    for rows in (*clouds(n, n // 3, 2).values(), np.column_stack((np.cos(turn), np.sin(turn)))):
        with within(10):
            assert np.isfinite(aggregate(rows[:, :2], rule=build_rule("tukey", None, 0), seed=0).mean).all()


class Noise(GramGeometry):
    """A table whose eigensolver found a variance, and no row off the mean along its direction."""

    def top_direction(self, weights: Array, settled: float = 0.0) -> TopDirection:
        return TopDirection(1e-9, np.zeros(self.n))


@pytest.mark.parametrize("name", RULES)
def test_a_variance_without_projections_ends_the_loop(name: str) -> None:
    if name == "tukey":
        pytest.skip("it takes rows, and no table")
    n, f = 11, 2
    rows = gaussian(n, n)
    table = np.pad(rows @ rows.T, (0, 1))
    verdict = judged(make(name, f), Noise(table, np.ones(n), gaussian(n, 8)), f)
    if name in ("randeigen", "random", "caf", "zhu-filtering"):
        assert verdict.stop is Stop.IDENTICAL_ROWS


@pytest.mark.parametrize("removal", ["soft", "random"])
def test_rows_mixed_into_one_point_end_the_default(removal: str) -> None:
    for seed in range(3):
        rows = gaussian(200, 400, seed)
        rows[:20] += 20
        with within(20):
            found = aggregate(rows, rule=NNM() | RandEigen(f=20, removal=removal), seed=seed)
        assert found.weights[:20].sum() < 0.02
    rows = gaussian(44, 42, 14)
    rows[:4] += 20
    with within(20):
        assert aggregate(rows, rule=NNM() | CAF(f=4), seed=14).verdict.stop is Stop.IDENTICAL_ROWS


@pytest.mark.parametrize("f", [68, 80, 99])
def test_byzantine_rows_at_the_honest_mean_that_outlast_all_others_end_the_default(f: int) -> None:
    rows = gaussian(200, 400)
    rows[:f] = 0.01 * rows[0]
    for seed in range(2):
        with within(20):
            assert np.isfinite(aggregate(rows, f=f, seed=seed).mean).all()


@pytest.mark.parametrize("n", [2, 3, 4, 5, 9, 30])
def test_coins_never_take_every_row(n: int) -> None:
    f = (n - 1) // 2
    rows = gaussian(n, 10)
    rows[:f] += 3
    geometry = gram_of(rows)
    for seed in range(200 if n < 9 else 40):
        judged(RandEigen(f=f, removal="random"), geometry, f, seed)


def test_coins_that_took_every_row_each_time_leave_their_expectation() -> None:
    class Tails:
        def random(self, size: int) -> Array:
            return np.zeros(size)

    left = removed_at_random(np.ones(3), np.array([1.0, 0.5, 0.25]), Tails())  # type: ignore[arg-type]
    np.testing.assert_array_equal(left, [0.0, 0.5, 0.75])


def ladders(n: int, f: int, d: int) -> Iterator[Array]:
    """Rows found one a round: each stands out along its own direction, or dwarfs the next."""
    cloud = gaussian(n, d)
    for base in (2.0, 1.2, 1.05):
        steps = np.minimum(base ** np.arange(n), 1e12)[:, None]
        yield cloud * steps
        yield np.where(np.arange(n)[:, None] < f, cloud * steps, cloud)
        yield cloud + np.where(np.arange(n)[:, None] < f, 5 * steps, 0.0) * cloud[-1] / np.linalg.norm(
            cloud[-1]
        )
    yield np.eye(n, d) * 1.05 ** np.arange(n)[:, None]
    yield np.repeat(np.eye(n // 2, d), 2, axis=0) * (1.1 ** (np.arange(n) // 2))[:, None]
    yield with_byzantine(cloud, f, "scattered")
    yield np.outer(10.0 ** np.linspace(0, 3, n), np.ones(d)) + 1e-6 * cloud  # clusters within clusters


@pytest.mark.parametrize(("n", "f", "most"), [(100, 30, 50), (100, 49, 50), (300, 30, 18), (300, 120, 18)])
def test_no_ladder_of_rows_makes_rounds_grow_with_their_number(n: int, f: int, most: int) -> None:
    assert most == sum(PATIENT_AND_HURRIED_ROUNDS if n <= 160 else PATIENT_AND_HURRIED_ROUNDS_OF_MANY) + 2
    for rows in ladders(n, f, n):
        assert judged(RandEigen(f=f), gram_of(rows), f).rounds <= most


@pytest.mark.parametrize("f", [60, 90])
def test_hurried_rounds_still_find_rows_on_their_own_axes(f: int) -> None:
    rows = with_byzantine(gaussian(300, 300), f, "scattered")
    verdict = judged(RandEigen(f=f), gram_of(rows), f)
    assert verdict.weights[:f].sum() < 0.01
    assert np.linalg.norm(verdict.weights @ rows - rows[f:].mean(axis=0)) < 0.5


def test_a_hurried_round_takes_its_part_of_those_furthest_out_and_of_equals_alike() -> None:
    rows = np.diag([9.0, 5.0, 5.0, 1.0, 1.0, 1.0])
    geometry, w = gram_of(rows), np.ones(6)
    spread = geometry.top_direction(w)
    share = hurried_share(np.zeros(6), geometry, spread, w, 2.0)
    np.testing.assert_allclose(share, [1, 0.5, 0.5, 0, 0, 0], atol=1e-9)


@pytest.mark.parametrize("name", CERTIFYING)
@pytest.mark.parametrize("cloud", ["gaussian", "own axes", "far", "scattered", "line"])
def test_the_weights_returned_are_the_weights_certified(name: str, cloud: str) -> None:
    n, f = 60, 9
    rng = np.random.default_rng(3)
    rows = gaussian(n, 80)
    if cloud in ("far", "scattered"):
        rows = with_byzantine(rows, f, cloud)
    for prior in (
        np.ones(n),
        rng.random(n),
        np.where(np.arange(n) < 20, 0.1, 3.0),
        10.0 ** -rng.random(n) * 3,
    ):
        if cloud == "own axes":
            rows = np.eye(n, 80) / np.sqrt(prior)[:, None]
        elif cloud == "line":
            rows = np.outer(rng.normal(size=n), np.ones(80))
        geometry = gram_of(rows).with_prior_weights(prior)
        verdict = judged(make(name, f), geometry, f)
        assert verdict.bounds
        assert certify(geometry, verdict.weights, f) <= verdict.bounds[verdict.answer_round] * (1 + 1e-9)


@pytest.mark.parametrize("name", [name for name in RULES if name not in CERTIFYING])
def test_other_rules_that_give_bounds_certify_what_they_return(name: str) -> None:
    rows = with_byzantine(gaussian(15, 12), 2, "sqrt_d")
    for seed in range(4):
        prior = np.random.default_rng(seed).random(15)
        geometry = gram_of(rows, "sketch" if name == "tukey" else "gram").with_prior_weights(prior)
        verdict = judged(make(name, 2), geometry, 2)
        if verdict.bounds:
            assert certify(geometry, verdict.weights, 2) <= verdict.bounds[verdict.answer_round] * (1 + 1e-9)


def test_light_rows_are_neither_dropped_after_the_certificate_nor_for_being_light() -> None:
    n, f = 100, 10
    claims = np.ones(n)
    claims[:3], claims[-48:] = 100, 0.14
    rows = np.zeros((n, 200))
    rows[np.arange(n), np.arange(n)] = 1 / np.sqrt(np.minimum(claims, 3))
    found = aggregate(rows, f=f, row_weights=claims)
    weights = found.weights.copy()
    weights[np.argsort(-weights)[:f]] = 0
    assert np.linalg.norm((found.weights - weights / weights.sum()) @ rows) <= found.bias_bound
    assert found.kept.all()
    assert certify(gram_of(rows), found.weights, f) <= found.bias_bound * (1 + 1e-9)
    assert aggregate(gaussian(20, 5), f=0, row_weights=[0.01] * 5 + [1.0] * 15).kept.all()


@pytest.mark.parametrize("name", [*VARIANTS, "as it is"])
def test_neighbours_of_the_default_claim_no_certificate_of_another_round(name: str) -> None:
    rule = VARIANTS.get(name, SoftFilter())
    geometry = gram_of(with_byzantine(gaussian(40, 60), 8, "far"))
    assert judged(rule, geometry, 8).bounds == ()
    judged(rule, Noise(np.zeros((12, 12)), np.ones(11), gaussian(11, 8)), 2)


@pytest.mark.parametrize("rule", [MDA(f=15), SMEA(f=3)])
def test_a_search_that_rows_make_hopeless_ends_with_the_best_so_far(rule: Any) -> None:
    rows = with_byzantine(gaussian(40 if isinstance(rule, MDA) else 14, 30), 3, "far")
    likely = rule._clock(len(rows), rule.f)
    impatient = replace(rule, patience=2.5 * likely.step)
    object.__setattr__(
        impatient, "_clock", lambda n, f: replace(likely, patience=impatient.patience, likely=1)
    )
    verdict = judged(impatient, gram_of(rows), rule.f)
    assert verdict.stop is Stop.MAX_ROUNDS
    assert "is not done after 3 steps" in verdict.notes[0]
    assert not verdict.weights[:3].any()


def test_numbers_beyond_floats_are_no_crash() -> None:
    rows = gaussian(9, 5)
    for rule in (DnC(f=3, c=1e308), Filtering(f=3, gamma=1.0), rules.ZhuFiltering(f=3, sigma=1.0)):
        for scale in (1.0, 1e140, 1e-140):
            assert np.isfinite(aggregate(rows * scale, rule=rule, seed=0).mean).all()
    with pytest.raises(BadFraction, match="may take inf years"):
        SMEA(f=900).assumed_corrupt(2000)
    with pytest.raises(BadFraction, match=r"may take .* years"):
        MDA(f=40_000).assumed_corrupt(100_000)


class TestLongChains:
    """Pre-aggregators one after another, further than a stack reaches."""

    def test_as_many_as_are_taken_work(self) -> None:
        rule = reduce(or_, [NNM()] * MAX_STAGES) | Krum(f=2)
        nested = reduce(lambda rule, before: before | rule, [Krum(f=2)] + [NNM()] * MAX_STAGES)
        for made in (rule, nested):
            assert made == made
            assert hash(made) == hash(made)
            assert repr(made).count("NNM") == MAX_STAGES
            with within(20):
                assert np.isfinite(aggregate(gaussian(12, 6), rule=made, seed=0).mean).all()
        with within(10):  # each stage used to ask those after it twice
            assert build_rule("nnm+" * MAX_STAGES + "krum", None, 2).assumed_corrupt(12) == 2
            assert build_rule("bucketing+" * MAX_STAGES + "mean", None, 0).assumed_corrupt(1000) == 0

    def test_buckets_before_a_row_that_is_trusted_by_its_index_are_refused_at_any_depth(self) -> None:
        with pytest.raises(BadParameter, match="leaves no row in place"):
            build_rule("bucketing+nnm+arc+monna", None, 1)

    @pytest.mark.parametrize("stage", [NNM(), ARC(), Clipping(1.0)])
    def test_more_are_refused_as_they_are_made(self, stage: Any) -> None:
        message = rf"{MAX_STAGES + 1} pre-aggregators in a row; give at most {MAX_STAGES}"
        with pytest.raises(BadParameter, match=message):
            reduce(or_, [stage] * 3000)
        with pytest.raises(BadParameter, match=message):
            reduce(lambda right, left: left | right, [stage] * 3000)
        with pytest.raises(BadParameter, match=message):
            reduce(lambda rule, before: before | rule, [Mean(f=2)] + [stage] * 3000)
        most = reduce(or_, [stage] * MAX_STAGES)
        with pytest.raises(BadParameter, match=f"{2 * MAX_STAGES} pre-aggregators"):
            most | (most | Mean(f=2))

    def test_names_of_them_are_refused_with_what_is_allowed(self) -> None:
        with pytest.raises(BadParameter, match=r"12,004 characters; give at most 2,000"):
            build_rule("nnm+" * 3000 + "krum", None, 2)
        with pytest.raises(BadParameter, match=rf"400 pre-aggregators; give at most {MAX_STAGES}"):
            build_rule("nnm+" * 400 + "krum", None, 2)
        with pytest.raises(BadParameter, match=r"1,000,000 characters"):
            build_rule("k" * 1_000_000, None, 2)
        with pytest.raises(BadParameter, match="is not a value"):
            build_rule("multi-krum:selected=" + "9" * 400, None, 2)
