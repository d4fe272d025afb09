"""Parts judged by the kernels of a GPU as Triton's interpreter runs them, against the same parts on a CPU.

TRITON_INTERPRET=1 python -m pytest tests/parts/test_kernels_interpreted.py
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import randeigen
from randeigen.backend.device_blocks import MAX_KERNEL_ROWS
from randeigen.geometry import gram_batch
from randeigen.parts import combining, hybrid

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = [
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
PARTS, WIDTH = 12, 35


def rows_in_parts(n: int, dtype: str) -> np.ndarray:
    """Ordinary parts, and some of every kind that the rule ends differently in or that need another pivot."""
    rng = np.random.default_rng(n)
    rows = rng.standard_normal((PARTS, n, WIDTH))
    few = max(n // 5, 1)
    rows[0, :few] += 2
    rows[1] = 0
    rows[2] = rows[2, :1]
    rows[3] += 100
    rows[4, : n // 2 + 1] = 0
    rows[5, 0] *= 1e12
    rows[6] = np.eye(n, WIDTH) * 5.0 ** np.arange(n)[:, None]
    rows[7] *= rng.lognormal(0, 2, (n, 1))
    rows[8] = 50 * rng.standard_normal(WIDTH) + 1e-3 * rows[8]
    rows[8, :few] = 0
    if dtype == "float64":
        rows[9, 0] *= 1e200
        rows[10] *= 1e-170
    return np.asarray(rows.swapaxes(0, 1).reshape(n, -1).astype(dtype))


def on_kernels(rows: np.ndarray, monkeypatch: Any, **options: Any) -> Any:
    def in_kernels(numbers: Any) -> bool:
        return not isinstance(numbers, np.ndarray) and numbers.shape[1] <= MAX_KERNEL_ROWS

    with monkeypatch.context() as patch:
        for module in (gram_batch, combining, hybrid):
            patch.setattr(module, "in_kernels", in_kernels)
        patch.setattr(combining, "as_host_array", lambda block: torch.from_numpy(np.ascontiguousarray(block)))
        return randeigen.aggregate(rows, seed=0, **options)


def alike(here: Any, there: Any) -> None:
    assert here.parts.stops == there.parts.stops
    assert here.parts.own.tolist() == there.parts.own.tolist()
    np.testing.assert_allclose(here.parts.weights, there.parts.weights, atol=1e-5)
    np.testing.assert_allclose(here.parts.bounds, there.parts.bounds, rtol=1e-4, atol=1e-9)
    assert here.bias_bound == pytest.approx(there.bias_bound, rel=1e-4)
    assert here.distance_to_mean == pytest.approx(there.distance_to_mean, rel=1e-4)
    np.testing.assert_allclose(here.mean, there.mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "f"), [(3, 1), (8, 0), (20, 4), (32, 10)])
def test_each_part_has_the_verdict_of_a_cpu(n: int, f: int, dtype: str, monkeypatch: Any) -> None:
    rows, cut = rows_in_parts(n, dtype), f"columns:{WIDTH}"
    here = on_kernels(rows, monkeypatch, f=f, partition=cut)
    alike(here, randeigen.aggregate(rows, seed=0, f=f, partition=cut))


def test_a_row_that_is_not_finite_in_one_part_is_left_out_of_all(monkeypatch: Any) -> None:
    rows, cut = rows_in_parts(20, "float32"), f"columns:{WIDTH}"
    rows[2, 5 * WIDTH] = np.nan
    here = on_kernels(rows, monkeypatch, f=4, partition=cut)
    alike(here, randeigen.aggregate(rows, seed=0, f=4, partition=cut))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [0.0, 1e-44, 1e-170, 3e38, 1e200])
def test_sums_that_do_not_fit_are_those_of_a_cpu(size: float, dtype: str, monkeypatch: Any) -> None:
    rows = size * (1 + 0.1 * np.random.default_rng(0).random((9, 5 * 20)))
    rows = np.minimum(rows, np.finfo(dtype).max).astype(dtype)
    here = on_kernels(rows, monkeypatch, f=2, partition="columns:20")
    there = randeigen.aggregate(rows, seed=0, f=2, partition="columns:20")
    np.testing.assert_allclose(here.mean, there.mean, rtol=1e-6)
    np.testing.assert_allclose(here.parts.weights, there.parts.weights, atol=1e-5)
    assert here.bias_bound == pytest.approx(there.bias_bound, rel=1e-3, abs=1e-300)


@pytest.mark.parametrize("n", [7, 20, 32])
def test_the_parts_that_stand_out_of_a_hybrid_are_those_of_a_cpu(n: int, monkeypatch: Any) -> None:
    rows = np.random.default_rng(0).standard_normal((n, 300 * 40), dtype=np.float32)
    rows[: n // 5, 400:440] += 5
    rows[n // 2 :, 800:840] = 0  # a word that half of the clients have
    here = on_kernels(rows, monkeypatch, f=n // 5, partition="hybrid:columns:40")
    there = randeigen.aggregate(rows, seed=0, f=n // 5, partition="hybrid:columns:40")
    assert there.parts.own.any()
    alike(here, there)
