"""Hostile numbers in tensors of every dtype, on a CPU and, marked gpu, on a GPU."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import randeigen
from clouds import gaussian
from randeigen import rules
from randeigen.geometry import measure
from randeigen.geometry.products import scaled_gram
from randeigen.rows import as_rows

torch = pytest.importorskip("torch")
DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]
FLOATS = ("float16", "bfloat16", "float32", "float64")
N, D, F = 40, 3000, 6
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.7976e308}
HALF = ("float16", "bfloat16")

pytestmark = [pytest.mark.parametrize("device", DEVICES), pytest.mark.filterwarnings("error")]
every_dtype = pytest.mark.parametrize("dtype", FLOATS)


def on(device: str, rows: np.ndarray, dtype: str) -> Any:
    return torch.from_numpy(np.asarray(rows, np.float64)).to(device, getattr(torch, dtype))


def numbers(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.double().cpu().numpy())


def moved(rows: Any, result: Any, corrupt: list[int]) -> float:
    """How far the answer is from the mean of the others at its own weights."""
    weights = result.weights.copy()
    weights[corrupt] = 0
    live = np.flatnonzero(weights)
    return float(np.linalg.norm(numbers(result.mean) - weights[live] / weights.sum() @ numbers(rows)[live]))


@every_dtype
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", [0, D - 1, slice(None)])
def test_rows_that_are_not_finite_get_no_weight(device: str, dtype: str, bad: float, where: Any) -> None:
    rows = on(device, gaussian(N, D), dtype)
    rows[:F, where] = bad
    result = randeigen.aggregate(rows, f=F, seed=0)
    assert list(result.unusable) == list(range(F))
    without = randeigen.aggregate(rows[F:], f=0, seed=0)
    np.testing.assert_allclose(numbers(result.mean), numbers(without.mean), atol=1e-5)
    assert result.mean.dtype == rows.dtype


@every_dtype
@pytest.mark.parametrize("share", [1.0, 1e-3, 1e-15])
@pytest.mark.parametrize("offset", [0.0, 50.0])
def test_rows_as_large_as_floats_go_do_not_hide_the_others(
    device: str, dtype: str, share: float, offset: float
) -> None:
    rows = on(device, gaussian(N, D) + offset, dtype)
    signs = torch.sign(rows[:F] - offset)
    rows[:F] = signs * max(LARGEST[dtype] * share, 3e4)
    rows[F] += 3.0  # behind them, one that is seen only if they are set aside
    result = randeigen.aggregate(rows, f=F + 1, seed=0)
    assert result.weights[:F].sum() < 1e-6
    assert result.weights[F] < 0.5 / N
    assert moved(rows, result, [*range(F + 1)]) <= result.bias_bound < 1.2 * np.sqrt(D)


@every_dtype
@pytest.mark.parametrize("columns", ["one", "a few", "a block", "all"])
def test_offsets_in_some_columns_do_not_hide_the_distances(device: str, dtype: str, columns: str) -> None:
    rows = on(device, gaussian(N, D), dtype)
    where = {"one": [7], "a few": [3, 99, 2000], "a block": slice(1000, 2000), "all": slice(None)}[columns]
    rows[:, where] += {"float16": 500.0, "bfloat16": 60.0, "float32": 1e5, "float64": 1e9}[dtype]
    geometry, unusable = measure(as_rows(rows, block_bytes=2**15), "gram", seed=1)
    exact = numbers(rows)
    exact -= np.median(exact, axis=0)
    inner = exact @ exact.T
    true = inner.diagonal()[:, None] + inner.diagonal() - 2 * inner
    assert not unusable
    allowed = 3e-5 if device == "cuda" else 1e-5
    assert abs(geometry.squared_distances() * geometry.scale**2 - true).max() < allowed * true.max()


@pytest.mark.parametrize("offsets", [(1e4, 1e20), (1e20, 1e4), (1e37, -1e37)])
def test_every_block_may_have_an_offset_of_its_own(device: str, offsets: tuple[float, float]) -> None:
    blocks = [o + abs(o) * 1e-4 * gaussian(N, 2048) for o in offsets]
    rows = on(device, np.hstack(blocks), "float32")
    state_dicts = [{"a": row[:2048], "b": row[2048:]} for row in rows]
    for source in (as_rows(rows), as_rows(state_dicts, block_bytes=2**15)):
        geometry, unusable = measure(source, "gram", seed=1)
        assert not unusable
        assert np.isfinite(geometry.squared_norms()).all()


@every_dtype
@pytest.mark.parametrize("n", [5, 50, 200])
def test_a_common_scale_changes_no_weight(device: str, dtype: str, n: int) -> None:
    rows = gaussian(n, 400)
    rows[: n // 10 or 1, 0] += 20
    plain = randeigen.aggregate(on(device, rows, dtype), eps=0.2, seed=1)
    scales = {
        "float16": (2.0**-4, 2.0**8),
        "bfloat16": (2.0**-100, 2.0**-64, 2.0**64, 2.0**120),
        "float32": (2.0**-110, 2.0**-64, 2.0**64, 2.0**120),
        "float64": (1e-300, 1e-150, 1e-85, 1e85, 1e150, 1e300),
    }[dtype]
    for scale in scales:
        result = randeigen.aggregate(on(device, rows * scale, dtype), eps=0.2, seed=1)
        np.testing.assert_allclose(result.weights, plain.weights, atol=2e-3 if dtype in HALF else 1e-4)
        assert result.bias_bound == pytest.approx(plain.bias_bound * scale, rel=0.02)


@pytest.mark.parametrize(("dtype", "scale"), [("float16", 2.0**-19), ("float32", 1e-41), ("float64", 1e-310)])
def test_numbers_with_few_bits_left_are_judged_by_those(device: str, dtype: str, scale: float) -> None:
    rows = gaussian(30, 300)
    rows[:3, 0] += 20
    result = randeigen.aggregate(on(device, rows * scale, dtype), f=6, seed=1)
    plain = randeigen.aggregate(on(device, rows, "float64"), f=6, seed=1)
    np.testing.assert_allclose(result.weights, plain.weights, atol=0.03)


@every_dtype
@pytest.mark.parametrize("share", [1.0, 1e-4])
@pytest.mark.parametrize(("n", "d"), [(9, 400), (170, 400), (170, 9000), (700, 400)])
def test_equal_rows_are_the_answer(device: str, dtype: str, share: float, n: int, d: int) -> None:
    row = on(device, np.linspace(-1, 1, d) * LARGEST[dtype] * share, dtype)
    result = randeigen.aggregate(row.repeat(n, 1), eps=0.2, seed=0)
    np.testing.assert_allclose(numbers(result.mean), numbers(row), rtol=1e-14 if dtype == "float64" else 0)
    assert result.bias_bound <= 1e-12 * (d / 400) ** 0.5 * LARGEST[dtype] * share


@every_dtype
@pytest.mark.parametrize("rule", [rules.RandEigen(0.2), rules.Mean(0.2), rules.Median(0.2)])
def test_a_mean_of_the_largest_numbers_is_finite(device: str, dtype: str, rule: Any) -> None:
    rows = on(device, np.full((10, 300), LARGEST[dtype]), dtype)
    rows[:, 1::3] *= -1
    rows[::2, 2::3] *= -1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = randeigen.aggregate(rows, rule=rule, seed=0)
    assert torch.isfinite(result.mean).all()
    np.testing.assert_allclose(numbers(result.mean)[::3], LARGEST[dtype], rtol=0.01)


@every_dtype
@pytest.mark.parametrize("offset", [0.0, 1.0, 100.0])
def test_the_answers_own_rounding_is_in_the_certificate(device: str, dtype: str, offset: float) -> None:
    rng = np.random.default_rng(0)
    made = offset + rng.standard_normal(D) + 1e-4 * rng.standard_normal((N, D))
    rows = on(device, made, dtype)
    result = randeigen.aggregate(rows, f=F, seed=0)
    assert moved(rows, result, [*range(F)]) <= result.bias_bound


@pytest.mark.parametrize("step", [64, 128, 384, 1024, 33792, 2**16])
@pytest.mark.parametrize("n", [10, 130])
def test_no_arrangement_of_numbers_takes_more_from_an_entry_than_is_allowed_for(
    device: str, step: int, n: int
) -> None:
    v = np.ones((2**17 if device == "cuda" else 2**12) + 40, np.float32)
    v[::step] = 4096
    rows = on(device, np.outer(np.linspace(0.5, 1, n), v), "float32")
    rows = rows if device == "cuda" else rows.numpy()
    for pivot in (None, (0, n // 2, n - 1)):
        found, allowed = scaled_gram(rows, pivot)
        exact = np.asarray(rows.cpu() if device == "cuda" else rows, np.float64)
        exact = exact - (0.0 if pivot is None else np.median(exact[list(pivot)], axis=0))
        gram = exact @ exact.T
        lengths = np.sqrt(gram.diagonal())
        assert (abs(found.gram[:-1, :-1] - gram) <= allowed * np.outer(lengths, lengths) + 1e-6).all()
