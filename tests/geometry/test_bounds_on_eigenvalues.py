"""The top eigenvalue at any scale, with an upper bound, from every solver, even where LAPACK fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest

import randeigen
from clouds import gaussian
from randeigen import rules
from randeigen.geometry import eigen
from randeigen.geometry.eigen import Top
from randeigen.geometry.gram import top_of_covariance
from randeigen.geometry.lanczos import top_of_operator

SIZES = [2, 41, 160, 161, 500]  # LAPACK, the block solvers, Lanczos


def solved(matrix: np.ndarray, seed: int = 0) -> Top:
    n = matrix.shape[0]
    half = np.full(n, n**-0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return top_of_covariance(matrix, half, np.random.default_rng(seed).standard_normal((n, 8)))


def covariance(n: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((n, 2 * n)) / np.arange(1, 2 * n + 1) ** 0.3
    rows -= rows.mean(0)
    return rows @ rows.T / n


def one_huge_entry(n: int) -> np.ndarray:
    matrix = covariance(n)
    matrix[-1, -1] = 1e180
    return matrix


def with_eigenvalues(values: np.ndarray) -> np.ndarray:
    basis = np.linalg.qr(np.random.default_rng(1).standard_normal((values.size, values.size)))[0]
    return np.asarray((basis * values) @ basis.T)


MATRICES: dict[str, Callable[[int], np.ndarray]] = {
    "zero": lambda n: np.zeros((n, n)),
    "rank one": lambda n: np.outer(np.arange(1.0, n + 1), np.arange(1.0, n + 1)),
    "one huge entry": one_huge_entry,
    "one huge entry among zeros": lambda n: np.diag(np.append(np.zeros(n - 1), 1e180)),
    "a repeated top": lambda n: with_eigenvalues(np.append(np.full(n // 2, 3.0), np.ones(n - n // 2))),
    "all alike": lambda n: np.eye(n),
    "graded": lambda n: with_eigenvalues(10.0 ** -np.linspace(0, 200, n)),
    "no gap at the top": lambda n: with_eigenvalues(np.cos(np.pi * np.arange(n) / (2 * n)) ** 2),
    "ordinary": covariance,
}


@pytest.mark.parametrize("exponent", [-900, -500, -280, 280, 500, 900])
@pytest.mark.parametrize("n", SIZES)
def test_a_common_power_of_two_changes_no_bit_but_the_scale(n: int, exponent: int) -> None:
    matrix = covariance(n)
    plain, scaled = solved(matrix), solved(np.ldexp(matrix, exponent))
    assert scaled.value == pytest.approx(float(np.ldexp(plain.value, exponent)), rel=1e-13)
    np.testing.assert_allclose(scaled.vector, plain.vector, atol=1e-9)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", MATRICES)
def test_the_largest_eigenvalue_lies_between_the_value_and_its_allowance(kind: str, n: int) -> None:
    matrix = MATRICES[kind](n)
    true = float(np.linalg.eigvalsh(matrix)[-1])
    for seed in range(3):
        found = solved(matrix, seed)
        assert np.isfinite(found.vector).all()
        assert np.linalg.norm(found.vector) == pytest.approx(1)
        assert found.value <= true * (1 + 1e-12) + 1e-12
        assert true <= (found.value + found.allowance) * (1 + 1e-12)
        assert found.allowance <= 0.01 * true


def test_lanczos_says_how_much_may_be_missing_when_its_steps_run_out() -> None:
    n = 1000
    values = np.cos(np.pi * np.arange(n) / (2 * n)) ** 2
    short = 0
    for seed in range(20):
        found = top_of_operator(lambda v: values * v, np.random.default_rng(seed).standard_normal((n, 1)))
        short += found.value < 1 - 1e-6
        assert found.value <= 1 <= found.value + found.allowance <= 1.02
    assert short == 20


@pytest.mark.parametrize("n", SIZES)
def test_no_failure_of_lapack_escapes(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = covariance(n)
    true = float(np.linalg.eigvalsh(matrix)[-1])

    def fail(*_: object, **__: object) -> None:
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    monkeypatch.setattr(eigen, "_dsyevx", lambda: None)
    monkeypatch.setattr(np.linalg, "eigh", fail)
    monkeypatch.setattr(np.linalg, "eigvalsh", fail)
    found = solved(matrix)
    assert np.isfinite(found.vector).all()
    assert 0 <= found.value <= true * (1 + 1e-9) <= found.value + found.allowance + 1e-9


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_matrix_that_is_not_finite_has_an_infinite_eigenvalue(n: int, bad: float) -> None:
    matrix = covariance(n)
    matrix[0, 1] = matrix[1, 0] = bad
    found = solved(matrix)
    assert found.value + found.allowance == np.inf
    assert np.isfinite(found.vector).all()


@pytest.mark.parametrize("kind", ["gram", "sketch", "gaussian", "short rows"])
@pytest.mark.parametrize("scale", [1e-150, 1e-85, 1e-30, 1e30, 1e85, 1e150])
def test_a_common_scale_scales_the_answer_and_its_bound(kind: str, scale: float) -> None:
    rows = gaussian(200, 60 if kind == "short rows" else 1200)
    rows[:40] += 1.0
    call = {"f": 40, "seed": 1, "geometry": "sketch" if kind == "short rows" else kind}
    plain, scaled = randeigen.aggregate(rows, **call), randeigen.aggregate(rows * scale, **call)
    np.testing.assert_allclose(scaled.weights, plain.weights, atol=1e-6)
    assert scaled.bias_bound / scale == pytest.approx(plain.bias_bound, rel=1e-4)


@pytest.mark.parametrize("kind", ["gram", "sketch", "short rows"])
@pytest.mark.parametrize("scale", [1e-36, 1e-25, 1e18, 1e30, 5e37])
def test_a_common_scale_over_the_range_of_float32_changes_nothing_else(kind: str, scale: float) -> None:
    rows = gaussian(200, 60 if kind == "short rows" else 1200)
    rows[:40] += 1.0
    rows = rows.clip(-6, 6).astype(np.float32)
    call = {"f": 40, "seed": 1, "geometry": "sketch" if kind == "short rows" else kind}
    plain = randeigen.aggregate(rows, **call)
    scaled = randeigen.aggregate((rows.astype(np.float64) * scale).astype(np.float32), **call)
    np.testing.assert_allclose(scaled.weights, plain.weights, atol=1e-3)
    assert scaled.bias_bound / scale == pytest.approx(plain.bias_bound, rel=1e-3)


def test_the_certificate_covers_what_lanczos_leaves_out() -> None:
    n, f = 300, 60
    rng = np.random.default_rng(0)
    side = np.where(np.arange(n) < f, np.sqrt((n - f) / f), -np.sqrt(f / (n - f))) / np.sqrt(n)
    basis = np.linalg.qr(np.column_stack([side, np.ones(n), rng.normal(size=(n, n - 2))]))[0]
    axes = np.column_stack([basis[:, 0], basis[:, 2:]])
    rows = axes * np.sqrt(np.cos(np.pi * np.arange(n - 1) / (2 * n - 2)) ** 2 * n)
    for seed in range(5):
        result = randeigen.aggregate(rows, rule=rules.Mean(f=f), geometry="gram", seed=seed)
        moved = np.linalg.norm(rows.mean(0) - rows[f:].mean(0))
        assert moved <= result.bias_bound <= 1.01 * moved


@pytest.mark.parametrize("geometry", ["gram", "sketch"])
def test_one_huge_row_among_equal_ones_is_no_trouble(geometry: str) -> None:
    rows = np.zeros((200, 300))
    rows[110:] = gaussian(90, 300)
    rows[199] *= 1e90
    result = randeigen.aggregate(rows, f=20, geometry=geometry)
    assert np.isfinite(result.mean).all()
    assert abs(result.mean).max() < 1
