"""Algorithm 3 as printed: its sketch is as wide, and its power iteration as long, as the paper says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import randeigen
from randeigen import RandEigen
from randeigen.errors import BadParameter
from randeigen.geometry import measure
from randeigen.geometry.gram import GramGeometry
from randeigen.geometry.gram_accumulator import GramAccumulator
from randeigen.geometry.gram_share import GramShare
from randeigen.geometry.projection import GaussianProjection
from randeigen.geometry.wide_gram import WideGramAccumulator, WideGramGeometry
from randeigen.partition import Partition
from randeigen.parts.measuring import MeasuredParts
from randeigen.registry import build_rule
from randeigen.rows.convert import as_rows
from randeigen.types import GeometryKind

ROWS = np.random.default_rng(0).standard_normal((30, 400)) / np.sqrt(np.arange(1, 401))


def power_iterate(rows: np.ndarray, start: np.ndarray, steps: int) -> tuple[float, np.ndarray]:
    """v_i = Cov·v_(i−1), i = 1 … N, as the paper writes it, with its eigenvalue and the rows' projections."""
    centred = rows - rows.mean(axis=0)
    covariance = centred.T @ centred / len(rows)
    v = start
    for _ in range(steps):
        v = covariance @ v
        v = v / np.linalg.norm(v)
    return float(v @ covariance @ v), centred @ v


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_power_iteration_makes_exactly_the_steps_it_is_asked_for(steps: int) -> None:
    geometry, _ = measure(as_rows(ROWS), "gaussian", seed=3)
    points = geometry.coordinates
    assert points is not None
    found = geometry.top_direction_by_power_iteration(np.ones(30), steps, np.random.default_rng(5))
    variance, projections = power_iterate(
        points, np.random.default_rng(5).standard_normal(points.shape[1]), steps
    )
    assert found.variance == pytest.approx(variance, rel=1e-6)
    assert abs(found.projections) == pytest.approx(abs(projections), rel=1e-5, abs=1e-8)


def test_the_sketch_has_as_many_columns_as_its_error_asks_for() -> None:
    for eps_jl in (0.1, 0.25, 0.5):
        kind: GeometryKind = RandEigen.as_published(0.1, eps_jl=eps_jl).geometry
        points = measure(as_rows(ROWS), kind, seed=3)[0].coordinates
        assert points is not None
        assert points.shape[1] == math.ceil(math.log(400) / eps_jl**2)


def test_the_errors_are_parameters_of_the_rule_and_of_its_name() -> None:
    rule = build_rule("published:eps_jl=0.3,eps_p=0.2", 0.1)
    assert rule == RandEigen.as_published(0.1, eps_jl=0.3, eps_p=0.2)
    coarse = randeigen.aggregate(ROWS, rule=rule, seed=0)
    assert np.isfinite(coarse.mean).all()
    assert (
        coarse.weights != randeigen.aggregate(ROWS, rule=RandEigen.as_published(0.1), seed=0).weights
    ).any()


@pytest.mark.parametrize("wrong", [{"eps_jl": 0.0}, {"eps_jl": 1.0}, {"eps_p": 0.0}, {"eps_p": math.nan}])
def test_an_error_that_is_no_error_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadParameter, match=next(iter(wrong))):
        RandEigen.as_published(0.1, **wrong)


@pytest.mark.parametrize(
    "kind",
    [
        "gaussian:eps_jl=2",
        "gaussian:native=maybe",
        "gaussian:",
        "gaussian:0.1",
        "sketch:eps_jl=0.1",
        "gaussian:eps_jl=x",
    ],
)
def test_a_geometry_that_is_not_known_is_refused(kind: str) -> None:
    with pytest.raises(BadParameter, match="geometry="):
        randeigen.aggregate(ROWS, eps=0.1, geometry=kind)  # type: ignore[arg-type]


def test_a_projection_that_the_device_draws_is_a_gaussian_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("randeigen.geometry.projection.NATIVE_NUMBERS", 256 * 5000)
    rows = torch.from_numpy(ROWS).float()
    projection = GaussianProjection(7, 5000, native=True)
    points = np.zeros((30, 5000))
    projection.add(points, slice(0, 300), rows[:, :300])  # a tile and a part of the next
    projection.add(points, slice(300, 400), rows[:, 300:])
    assert (points**2).sum(axis=1) == pytest.approx((ROWS**2).sum(axis=1), rel=0.15)
    whole = np.zeros((30, 5000))
    GaussianProjection(7, 5000, native=True).add(whole, slice(0, 400), rows)
    assert whole == pytest.approx(points, abs=1e-4)


def test_on_a_cpu_the_projection_is_the_same_whoever_may_draw_it() -> None:
    rule, native = RandEigen.as_published(0.1), build_rule("published:native=true", 0.1)
    assert native.geometry == "gaussian:native=true"
    first, second = (randeigen.aggregate(ROWS, rule=each, seed=1).weights for each in (rule, native))
    assert (first == second).all()


def test_a_sketch_drawn_by_its_law_has_the_distribution_of_the_projected_rows() -> None:
    rows = ROWS.copy()
    rows[:3] += 0.4

    def statistics(kind: str) -> np.ndarray:
        """Of many sketches: the top variance, an inner product, the norm of a row from the origin."""
        found = []
        for seed in range(300):
            geometry, _ = measure(as_rows(rows), kind, seed)  # type: ignore[arg-type]
            products = geometry.inner_products()
            top = geometry.top_direction(np.ones(30)).variance
            found.append((top, products[0, 1], geometry.squared_norms()[5]))
        return np.array(found)

    projected, drawn = (statistics(f"gaussian:eps_jl=0.5{way}") for way in ("", ",law=true"))
    for one, other in zip(projected.T, drawn.T, strict=True):
        ks = _largest_gap(one, other)
        assert ks < 1.95 * math.sqrt(2 / 300), "a chance of one in a thousand"


def _largest_gap(one: np.ndarray, other: np.ndarray) -> float:
    """Of the two samples' cumulative distributions: the statistic of Kolmogorov and Smirnov."""
    at = np.concatenate([one, other])
    below = [np.searchsorted(np.sort(sample), at, side="right") / len(sample) for sample in (one, other)]
    return float(abs(below[0] - below[1]).max())


def test_the_law_leaves_out_what_the_projection_leaves_out() -> None:
    rows = ROWS.astype(np.float32)
    rows[4, 7], rows[9], rows[20] = np.nan, 0.0, rows[20] * np.float32(1e18)
    result = randeigen.aggregate(rows, rule=build_rule("published:law=true", 0.1), seed=2)
    assert list(result.unusable) == [4]
    assert not result.kept[20], "the row far out is removed in the first round"
    assert np.isfinite(result.mean).all()
    assert math.isfinite(result.bias_bound)


def test_a_long_row_takes_no_digits_from_the_others() -> None:
    rows = ROWS.copy()
    rows[0] *= 1e12
    points = measure(as_rows(rows), "gaussian:law=true", seed=3)[0].coordinates
    assert points is not None
    assert (points[1:] ** 2).sum(axis=1) == pytest.approx((rows[1:] ** 2).sum(axis=1), rel=0.3)


def test_a_sketch_is_drawn_in_one_way() -> None:
    assert build_rule("published:law=true", 0.1).geometry == "gaussian:law=true"
    with pytest.raises(BadParameter, match="give one"):
        build_rule("published:law=true,native=true", 0.1)
    with pytest.raises(BadParameter, match="geometry="):
        randeigen.aggregate(ROWS, eps=0.1, geometry="gaussian:law=perhaps")  # type: ignore[arg-type]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps each power iteration on an exact geometry made."""
    made: list[int] = []
    for kind in (GramGeometry, WideGramGeometry):
        whole = kind.top_direction_by_power_iteration

        def counted(self: object, weights: object, n: int, rng: object, whole: Any = whole) -> object:
            made.append(n)
            return whole(self, weights, n, rng)

        monkeypatch.setattr(kind, "top_direction_by_power_iteration", counted)
    return made


def paper_steps(d: int, eps_jl: float = 0.1, eps_p: float = 0.1) -> int:
    """N of the paper for d columns."""
    k = math.ceil(math.log(d) / eps_jl**2)
    return math.ceil(math.log(4 * k) / (2 * math.log(1 / (1 - eps_p))))


@pytest.mark.parametrize("d", [40, 400, 5_000])
def test_on_exact_inner_products_the_steps_are_those_of_the_real_d(steps: list[int], d: int) -> None:
    rows = np.random.default_rng(1).standard_normal((30, d))
    randeigen.aggregate(rows, rule=RandEigen.as_published(0.1), geometry="gram", seed=0)
    assert set(steps) == {paper_steps(d)}
    assert paper_steps(40) < paper_steps(400) < paper_steps(5_000) < paper_steps(2**18) == 41
    steps.clear()
    rule = RandEigen.as_published(0.1, eps_jl=0.3, eps_p=0.02)
    randeigen.aggregate(rows, rule=rule, geometry="gram", seed=0)
    assert set(steps) == {paper_steps(d, 0.3, 0.02)}


def test_rows_left_out_or_mixed_leave_d_as_it_is(steps: list[int]) -> None:
    rows = ROWS.copy()
    rows[4, 7] = np.nan
    randeigen.aggregate(rows, rule="nnm+published", eps=0.1, geometry="gram", seed=0)
    assert set(steps) == {paper_steps(400)}


def test_each_part_of_the_rows_has_its_own_d(steps: list[int]) -> None:
    rows = {"small": ROWS[:, :50], "large": ROWS[:, 50:]}
    many = [{name: leaf[i] for name, leaf in rows.items()} for i in range(30)]
    randeigen.aggregate(many, rule=RandEigen.as_published(0.1), partition="tensor", seed=0)
    assert set(steps) == {paper_steps(50), paper_steps(350)}


def test_whole_rows_that_are_measured_in_parts_have_the_d_of_all(steps: list[int]) -> None:
    parts = Partition.of("columns:130", [("", (400,))], 400)
    whole = MeasuredParts(as_rows(ROWS), parts, 0, None).whole
    RandEigen.as_published(0.1).weigh(whole, 3, np.random.default_rng(0))
    assert set(steps) == {paper_steps(400)}


def test_shares_of_the_columns_add_up_to_d(steps: list[int]) -> None:
    shares = [GramShare.measure(as_rows(ROWS[:, part]), 0) for part in (slice(0, 150), slice(150, 400))]
    rule = RandEigen.as_published(0.1)
    rule.weigh(sum(shares, GramShare.of_nothing(30)).geometry(1), 3, np.random.default_rng(0))
    assert set(steps) == {paper_steps(400)}


@pytest.mark.parametrize("kind", [GramAccumulator, WideGramAccumulator])
def test_d_is_that_of_all_blocks_together(steps: list[int], kind: Any) -> None:
    accumulator = kind(30, 0)
    accumulator.add(slice(0, 300), ROWS[:, :300])
    accumulator.add(slice(300, 400), ROWS[:, 300:])
    RandEigen.as_published(0.1).weigh(accumulator.geometry(), 3, np.random.default_rng(0))
    assert set(steps) == {paper_steps(400)}


def test_a_batch_of_gradients_has_as_many_columns_as_the_model_has_parameters(steps: list[int]) -> None:
    torch = pytest.importorskip("torch")
    import randeigen.torch

    model = torch.nn.Linear(40, 3)
    losses = model(torch.randn(30, 40)).square().sum(1)
    randeigen.torch.backward(losses, model, rule=RandEigen.as_published(0.1))
    assert set(steps) == {paper_steps(123)}


def test_where_inner_products_alone_are_known_d_is_that_of_the_papers_model(steps: list[int]) -> None:
    gram = np.zeros((31, 31))
    gram[:30, :30] = ROWS @ ROWS.T
    geometry = GramGeometry(gram, np.ones(30), np.ones((30, 8)))
    RandEigen.as_published(0.1).weigh(geometry, 3, np.random.default_rng(0))
    assert set(steps) == {41}
