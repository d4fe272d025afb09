"""Algorithm 3 as printed: its sketch is as wide, and its power iteration as long, as the paper says."""

from __future__ import annotations

import math

import numpy as np
import pytest

import randeigen
from randeigen import RandEigen
from randeigen.errors import BadParameter
from randeigen.geometry import measure
from randeigen.geometry.projection import GaussianProjection
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
